"""`python -m preprocess.show`: documents by number, id, address or token, decoded, with what is known of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess import manifest, merge_shards, show
from preprocess.dataset import Dataset
from preprocess.merge import ShardSet
from preprocess.prepare import prepare
from preprocess.shards import Shard
from tests.preprocess.test_merge_shards import write_set

TEXTS = ["lazy dog", "", "the fox. a dog.", "a box of jugs", "fox"]


@pytest.fixture(
    params=[{}, {"shard_tokens": 9}, {"split_sentences": True}, {"prepend_bos": True}, {"append_eod": False}]
)
def prefix(request, tmp_path, make_data):
    """Of four documents: one shard or several, several sequences a document, each frame."""
    records = [
        {"id": f"id-{n}", "text": text, "url": f"https://example.org/{n}", "scores": {"good": n / 2}, "n": n}
        for n, text in enumerate(TEXTS)
    ]
    prepare(make_data([{**record, "license": "CC0-1.0"} for record in records], **request.param))
    return str(tmp_path / "out")


def shown(capsys, *arguments):
    assert show.main([*arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    "arguments, ids",
    [
        ([], [0]),
        (["--document", "3"], [4]),
        (["--id", "id-2"], [2]),
        (["--find", "example.org/3"], [3]),
        (["--find", "id-"], [0, 2, 3, 4]),
        (["--sample", "99"], [0, 2, 3, 4]),
    ],
)
def test_documents_come_with_text_and_metadata(prefix, capsys, arguments, ids):
    found = shown(capsys, prefix, *arguments)
    assert [one["id"] for one in found] == [f"id-{n}" for n in ids]
    for one, n in zip(found, ids):
        assert one["text"].split() == TEXTS[n].split() and one["metadata"] == {"n": n}
        assert (one["licence"], one["scores"], one["line"]) == ("CC0-1.0", {"good": n / 2}, n + 1)


def test_every_token_leads_to_its_document(prefix, capsys):
    """What a ledger of training needs: positions run through all shards, and an EOD is of the document it ends."""
    data = Dataset(prefix)
    owners = [number for number in range(len(data)) for _ in data.tokens(number)]
    assert [data.at_token(position) for position in range(len(owners))] == owners
    assert shown(capsys, prefix, "--token", str(len(owners) - 1))[0]["id"] == "id-4"


def test_a_shard_of_a_set_is_opened_by_itself(tmp_path, make_data, capsys):
    prepare(make_data([{"id": str(n), "text": text} for n, text in enumerate(TEXTS)], shard_tokens=9))
    names = [shard.name for shard in manifest.read(str(tmp_path / "out")).shards]
    assert len(names) > 1
    assert shown(capsys, str(tmp_path / names[-1]), "--sample", "9")[-1]["id"] == "4"
    assert Dataset(str(tmp_path / names[1])).at_token(0) == 0


@given(
    lengths=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=8),
    limit=st.integers(0, 6),
)
def test_a_token_is_of_the_document_that_holds_it(tmp_path_factory, lengths, limit):
    """For all sets: documents of some sequences, in shards of any size."""
    folder = tmp_path_factory.mktemp("set")
    write_set(folder / "a", lengths)
    shard = Shard(str(folder / "a"))
    with ShardSet(folder, "set", np.dtype(np.uint16), limit, False) as shards:
        merge_shards._copy(str(folder / "a"), shards, False)
    data = Dataset.__new__(Dataset)
    data.shards = [Shard(str(folder / one.name)) for one in shards.shards]
    data._ends = np.cumsum([len(one) for one in data.shards])
    data._token_ends = np.cumsum([len(one.tokens) for one in data.shards])
    owners = [number for number, some in enumerate(lengths) for _ in range(sum(some))]
    assert [data.at_token(position) for position in range(len(shard.tokens))] == owners


def test_the_sample_is_the_same_each_time_and_spread(tmp_path, make_data):
    prepare(make_data([{"text": f"fox {n}"} for n in range(50)]))
    data = Dataset(str(tmp_path / "out"))
    chosen = show.sample(data, 10)
    assert chosen == show.sample(data, 10) == sorted(set(chosen)) and chosen[-1] - chosen[0] > 20


def test_a_document_cannot_command_the_terminal(tmp_path, make_data, capsys):
    prepare(make_data([{"text": "fox \x1b[2J\x07 \u202e box\nsecond", "id": "\x1b]0;owned"}]))
    assert show.main([str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out and "\u202e" not in out
    assert "fox \\u001b[2J\\u0007 \\u202e box\nsecond" in out and "id: \\u001b]0;owned" in out


def test_the_reader_may_stop_early(prefix):
    """As `| head -1` does."""
    command = [sys.executable, "-m", "preprocess.show", prefix, "--sample", "4"]
    made = subprocess.run(["bash", "-c", '"$@" | true', "bash", *command], capture_output=True, text=True)
    assert "Traceback" not in made.stderr and "BrokenPipe" not in made.stderr


# --- what is refused ----------------------------------------------------------------------------------------------


def test_a_changed_tokenizer_is_refused_and_the_old_one_found_elsewhere(
    tmp_path, make_data, sentencepiece_model, capsys
):
    here, there = tmp_path / "here.model", tmp_path / "there.model"
    for path in (here, there):
        shutil.copy(sentencepiece_model, path)
    prepare(make_data([{"text": "fox"}], tokenizer=str(here)))
    here.write_bytes(here.read_bytes() + b"\n\x07\n\x01a\x15\0\0\0\0")
    assert show.main([str(tmp_path / "out")]) == 2
    assert "is not the one that made the shard" in capsys.readouterr().err
    here.unlink()
    assert show.main([str(tmp_path / "out")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert show.main([str(tmp_path / "out"), "--tokenizer", str(there)]) == 0


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (["--document", "4"], 2, "document 4 does not exist: there are 4"),
        (["--document", "-1"], 2, "document -1 does not exist"),
        (["--token", "9999"], 2, "token 9999 does not exist"),
        (["--sample", "0"], 2, "give 1 or more"),
        (["--id", "nobody"], 1, "none of 4 documents"),
        (["--find", "nowhere"], 1, "none of 4 documents"),
    ],
)
def test_what_is_not_there_is_said(prefix, capsys, arguments, code, said):
    assert show.main([prefix, *arguments]) == code
    assert said in capsys.readouterr().err


def test_no_such_set(tmp_path, capsys):
    assert show.main([str(tmp_path / "gone")]) == 2
    assert "is not complete" in capsys.readouterr().err


def test_a_set_of_nothing_is_refused(prefix, capsys):
    path = Path(f"{prefix}.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "shards": []}))
    assert show.main([prefix]) == 2
    assert "names no shard" in capsys.readouterr().err


def test_a_table_of_another_shard_is_refused(tmp_path, make_data, capsys):
    prepare(make_data([{"text": text} for text in TEXTS], output=str(tmp_path / "other")))
    prepare(make_data([{"text": "fox"}]))
    shutil.copy(tmp_path / "other.parquet", tmp_path / "out.parquet")
    assert show.main([str(tmp_path / "out")]) == 2
    assert "4 rows for 1 documents" in capsys.readouterr().err
    Path(tmp_path / "out.parquet").write_bytes(b"PAR1")
    assert show.main([str(tmp_path / "out")]) == 2
    assert "out.parquet is damaged" in capsys.readouterr().err
