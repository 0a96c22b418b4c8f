"""`python -m preprocess.verify`: each kind of disagreement between the files of a set is found and named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preprocess import verify
from preprocess.prepare import prepare
from preprocess.shards import Shard
from tests.preprocess.test_shards import cut

TEXTS = ("hello", "lazy dog", "fox", "")


@pytest.fixture
def shard(tmp_path, make_data):
    prepare(make_data([{"text": text} for text in TEXTS]))
    return tmp_path


def change_json(folder, **facts):
    path = folder / "out.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def change_array(path, dtype, offset, place, value):
    np.memmap(path, dtype, "r+", offset)[place] = value


def change_table(folder, change, name="out.parquet"):
    pq.write_table(change(pq.read_table(folder / name)), folder / name)


def moved(table):
    return table.set_column(1, "token_start", pa.array([0, 1, 2], pa.int64()))


def swapped(path):
    """Two letters of a document: every count still agrees."""
    tokens = np.memmap(path, np.uint16, "r+")
    tokens[0], tokens[1] = tokens[1], tokens[0]


DAMAGES = {
    "tokens told": (lambda s: change_json(s, tokens=5), "out.json says (documents, tokens) (3, 5), its shards have"),
    "documents told": (lambda s: change_json(s, documents=4), "out.json says"),
    "dtype told": (lambda s: change_json(s, dtype="int32"), "(documents, tokens, dtype) (3, "),
    "counts do not add up": (lambda s: change_json(s, read=7), "7 records read are not 3 kept less 0 created, 1 "),
    "unreadable told": (lambda s: change_json(s, unreadable=1), "1 dropped and 1 unreadable"),
    "drops of the steps": (lambda s: change_json(s, steps=[]), "1 records dropped, its steps dropped 0"),
    "records of the inputs": (lambda s: change_json(s, inputs=[]), "4 records read, its inputs have 0"),
    "no manifest": (lambda s: (s / "out.json").unlink(), "not complete"),
    "cut manifest": (lambda s: cut(s / "out.json", -9), "out.json is damaged"),
    "another format": (lambda s: change_json(s, format_version=1), "has format 1"),
    "short .bin": (lambda s: cut(s / "out.bin", -2), "out.bin has"),
    "no .bin": (lambda s: (s / "out.bin").unlink(), "out.bin does not exist"),
    "no table": (lambda s: (s / "out.parquet").unlink(), "out.parquet"),
    "cut table": (lambda s: cut(s / "out.parquet", -9), "arquet"),
    "damage inside the table": (lambda s: change_array(s / "out.parquet", np.uint8, 0, slice(4, 90), 0), "arquet"),
    "offsets": (lambda s: change_array(s / "out.idx", np.int64, 34 + 12, 1, 6), "offsets of sequences 0 to 2"),
    "boundary": (lambda s: change_array(s / "out.idx", np.int64, 34 + 36, 1, 2), "boundaries of documents 0 to 2"),
    "last boundary": (lambda s: change_array(s / "out.idx", np.int64, 34 + 36, 3, 4), "from 0 to 4, not from 0 to 3"),
    "id too large": (lambda s: change_array(s / "out.bin", np.uint16, 0, 0, 300), "has token id 300,"),
    "end missing": (lambda s: change_array(s / "out.bin", np.uint16, 0, -1, 9), "document 2 and 0 more do not end"),
    "end inside": (lambda s: change_array(s / "out.bin", np.uint16, 0, 0, 2), "4 end-of-document tokens for 3"),
    "tokens changed": (lambda s: swapped(s / "out.bin"), "says fingerprint"),
    "row missing": (lambda s: change_table(s, lambda t: t.slice(1)), "2 rows for 3 documents"),
    "rows shifted": (lambda s: change_table(s, moved), "column token_start does not agree"),
    "column missing": (lambda s: change_table(s, lambda t: t.drop_columns(["url"])), "has columns"),
}  # fmt: skip


@pytest.mark.parametrize(
    "source", [{}, {"shard_tokens": 8}, {"split_sentences": True}, {"prepend_bos": True}, {"append_eod": False}]
)
def test_a_sound_set(tmp_path, make_data, capsys, monkeypatch, source):
    """Whatever the shape: one shard or several, documents of several sequences, each frame."""
    monkeypatch.setattr(verify, "_PART", 2)
    prepare(make_data([{"text": text} for text in (*TEXTS, "The fox. The dog. A box.")], **source))
    assert verify.main([str(tmp_path / "out"), "--text", "0"]) == 0
    assert "sound, 4 documents" in capsys.readouterr().out


@pytest.mark.parametrize("argument", ["out.json", "out-00000", "out-00001.bin"])
def test_a_file_or_a_shard_of_a_set_stands_for_the_set(tmp_path, make_data, capsys, argument):
    prepare(make_data([{"text": text} for text in TEXTS], shard_tokens=5))
    assert verify.main([str(tmp_path / argument)]) == 0
    assert f"{tmp_path}/out: sound, 3 documents" in capsys.readouterr().out
    (tmp_path / "out.json").write_text("{")
    assert verify.main([str(tmp_path / argument)]) == 1
    assert "out.json is damaged" in capsys.readouterr().out


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(shard, capsys, monkeypatch, name):
    """Beside a sound shard, which is still called sound."""
    for suffix in (".bin", ".idx", ".parquet", ".json"):
        shutil.copy(shard / f"out{suffix}", shard / f"good{suffix}")
    manifest = json.loads((shard / "good.json").read_text())
    manifest["shards"][0]["name"] = "good"
    (shard / "good.json").write_text(json.dumps(manifest))
    damage, said = DAMAGES[name]
    damage(shard)
    assert verify.main([str(shard / "out"), str(shard / "good")]) == 1
    out = capsys.readouterr().out
    assert said in out and "good: sound" in out


def test_a_missing_beginning_is_named(tmp_path, make_data):
    prepare(make_data([{"text": text} for text in TEXTS], prepend_bos=True))
    change_array(tmp_path / "out.bin", np.uint16, 0, 0, 9)
    found = list(verify.problems(str(tmp_path / "out")))
    assert len(found) == 1 and "document 0 and 0 more do not begin with token 1" in found[0]


@pytest.mark.parametrize("suffix, change", [(".bin", -2), (".bin", 1), (".idx", -8), (".idx", 1), (".parquet", -1)])
def test_any_shard_of_a_set_that_is_cut_or_grew_is_named_with_both_sizes(tmp_path, make_data, suffix, change):
    """D28: a short .bin opens in megatron-core, and its first documents read well."""
    prepare(make_data([{"text": text} for text in TEXTS], shard_tokens=5))
    last = sorted(tmp_path.glob(f"out-*{suffix}"))[-1]
    size = last.stat().st_size
    cut(last, change) if change < 0 else last.write_bytes(last.read_bytes() + b"\0")
    found = list(verify.problems(str(tmp_path / "out")))
    assert len(found) == 1 and str(last) in found[0]
    assert suffix == ".parquet" or (f"has {size + change} bytes" in found[0] and f"have {size}" in found[0])


def test_a_missing_shard_of_a_set_is_named(tmp_path, make_data):
    prepare(make_data([{"text": text} for text in TEXTS], shard_tokens=5))
    (tmp_path / "out-00001.idx").unlink()
    assert "out-00001.idx does not exist" in next(verify.problems(str(tmp_path / "out")))


def test_a_view_outlives_the_shard_that_it_is_of(shard):
    """D29: in megatron-core this reads memory that is no longer mapped."""
    code = "import gc, sys; from preprocess.shards import Shard; one = Shard(sys.argv[1])[1]; gc.collect()"
    made = subprocess.run(
        [sys.executable, "-c", f"{code}; print(one.sum())", str(shard / "out")], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert int(made.stdout) == int(np.asarray(Shard(str(shard / "out"))[1]).sum())


def rows_shifted(table):
    """D02: each row describes the document after it."""
    columns = ("id", "text_hash", "line")
    for name in columns:
        values = table[name].to_pylist()
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), pa.array(values[-1:] + values[:-1], table[name].type))
    return table


def test_rows_of_other_documents_are_found_by_their_texts(shard, capsys):
    """D02: counts and offsets agree; only the texts tell."""
    change_table(shard, rows_shifted)
    assert verify.main([str(shard / "out")]) == 0
    assert verify.main([str(shard / "out"), "--text", "0"]) == 1
    assert "0 of 3 documents decode to the text" in capsys.readouterr().out


@pytest.mark.parametrize("most, looked", [(0, 7), (1, 1), (3, 3), (100, 7)])
def test_texts_are_compared_by_sample(tmp_path, make_data, most, looked):
    prepare(make_data([{"text": f"fox {number}"} for number in range(7)], shard_tokens=12))
    assert verify.restored(str(tmp_path / "out"), most) == (looked, looked)


def test_another_tokenizer_does_not_decode(shard, tmp_path, tokenizer_json, capsys):
    other = tmp_path / "other.model"
    other.write_bytes(Path(tokenizer_json).read_bytes())
    assert verify.main([str(shard / "out"), "--text", "0", "--tokenizer", str(other)]) == 1
    assert "is not the one that made the shard" in capsys.readouterr().out


MASK_DAMAGES = {
    "no mask": (lambda s: (s / "out.mask").unlink(), "out.mask is missing"),
    "short mask": (lambda s: cut(s / "out.mask", -1), "out.mask is of"),
    "no packs": (lambda s: (s / "out.packs").unlink(), "out.packs is missing"),
    "packs": (lambda s: change_array(s / "out.packs", np.int64, 0, -1, 9), "does not divide"),
    "neither": (lambda s: change_array(s / "out.mask", np.uint8, 0, 3, 7), "out.mask holds 7"),
}


@pytest.fixture
def conversations(tmp_path, make_data, tokenizer_json):
    return chat(tmp_path, make_data, tokenizer_json)


def chat(folder, make_data, tokenizer, name="out", lines=3):
    """A set of short conversations."""
    from megatron_ext.config.schema import Label

    template = folder / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    turns = [{"role": "user", "content": "lazy"}, {"role": "assistant", "content": "fox"}]
    records = [
        {"messages": [*turns, *turns][: 2 + 2 * (number % 2)], "id": f"{name}{number}"} for number in range(lines)
    ]
    label = Label(template=str(template), pack_length=64)
    prepare(make_data(records, tokenizer=tokenizer, label=label, output=str(folder / name)))
    return folder


def test_sound_conversations(conversations):
    assert list(verify.problems(str(conversations / "out"))) == []


@pytest.mark.parametrize("name", MASK_DAMAGES)
def test_damage_of_the_mask_is_named(conversations, name):
    damage, said = MASK_DAMAGES[name]
    damage(conversations)
    assert said in "\n".join(verify.problems(str(conversations / "out")))


@pytest.mark.parametrize("arguments", [["gone"], ["gone", "--text", "-1"]])
def test_no_such_shard(tmp_path, capsys, arguments):
    assert verify.main([str(tmp_path / arguments[0]), *arguments[1:]]) == 2
    assert "no shard at" in capsys.readouterr().err
