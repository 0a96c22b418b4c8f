"""`python -m preprocess.verify`: each kind of disagreement between the four files is found and named."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preprocess import verify
from preprocess.prepare import prepare
from tests.preprocess.test_shards import cut


@pytest.fixture
def shard(tmp_path, make_data):
    prepare(make_data([{"text": text} for text in ("hello", "lazy dog", "fox", "")]))
    return tmp_path


def change_json(shard, **facts):
    path = shard / "out.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def change_array(path, dtype, offset, place, value):
    np.memmap(path, dtype, "r+", offset)[place] = value


def change_table(shard, change):
    pq.write_table(change(pq.read_table(shard / "out.parquet")), shard / "out.parquet")


def moved(table):
    return table.set_column(1, "token_start", pa.array([0, 1, 2], pa.int64()))


DAMAGES = {
    "tokens told": (lambda s: change_json(s, tokens=5), "out.json says (documents, tokens, dtype) (3, 5, 'uint16')"),
    "documents told": (lambda s: change_json(s, documents=4), "out.json says"),
    "dtype told": (lambda s: change_json(s, dtype="int32"), "out.json says"),
    "counts do not add up": (lambda s: change_json(s, read=7), "7 records read are not 3 kept and 1 dropped"),
    "no sidecar": (lambda s: (s / "out.json").unlink(), "not complete"),
    "short .bin": (lambda s: cut(s / "out.bin", -2), "out.bin has"),
    "no table": (lambda s: (s / "out.parquet").unlink(), "out.parquet"),
    "cut table": (lambda s: cut(s / "out.parquet", -9), "arquet"),
    "offsets": (lambda s: change_array(s / "out.idx", np.int64, 34 + 12, 1, 6), "offsets of documents 0 to 2"),
    "boundary": (lambda s: change_array(s / "out.idx", np.int64, 34 + 36, 1, 2), "boundaries of documents 0 to 2"),
    "last boundary": (lambda s: change_array(s / "out.idx", np.int64, 34 + 36, 3, 4), "last boundary is 4, not 3"),
    "id too large": (lambda s: change_array(s / "out.bin", np.uint16, 0, 0, 300), "has token id 300,"),
    "end missing": (lambda s: change_array(s / "out.bin", np.uint16, 0, -1, 9), "document 2 and 0 more do not end"),
    "end inside": (lambda s: change_array(s / "out.bin", np.uint16, 0, 0, 2), "4 end-of-document tokens for 3"),
    "row missing": (lambda s: change_table(s, lambda t: t.slice(1)), "2 rows for 3 documents"),
    "rows shifted": (lambda s: change_table(s, moved), "column token_start does not agree"),
    "column missing": (lambda s: change_table(s, lambda t: t.drop_columns(["url"])), "has columns"),
}  # fmt: skip


def test_a_sound_shard(shard, capsys, monkeypatch):
    monkeypatch.setattr(verify, "_PART", 2)
    assert verify.main([str(shard / "out")]) == 0
    assert "sound, 3 documents" in capsys.readouterr().out


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(shard, capsys, monkeypatch, name):
    """Beside a sound shard, which is still called sound."""
    for suffix in (".bin", ".idx", ".parquet", ".json"):
        shutil.copy(shard / f"out{suffix}", shard / f"good{suffix}")
    damage, said = DAMAGES[name]
    damage(shard)
    assert verify.main([str(shard / "out"), str(shard / "good")]) == 1
    out = capsys.readouterr().out
    assert said in out and "good: sound" in out


def test_no_such_shard(tmp_path, capsys):
    assert verify.main([str(tmp_path / "gone")]) == 2
    assert "no shard at" in capsys.readouterr().err
