"""`python -m preprocess.merge_shards`: the result is the concatenation, or nothing is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess import manifest, merge_shards, verify
from preprocess.dataset import Dataset
from preprocess.merge_shards import merge
from preprocess.prepare import prepare
from preprocess.shards import Shard, ShardWriter
from tests.preprocess.test_shards import cut
from tests.preprocess.test_verify import chat

LEFT, RIGHT = ("lazy dog", "", "the fox. the dog."), ("a box of jugs", "fox", "", "")


@pytest.fixture
def make(tmp_path, make_data):
    """make(name, texts, **source) -> prefix of a finished set."""

    def made(name, texts, **source):
        prefix = str(tmp_path / name)
        records = [{"id": f"{name}{n}", "text": text, "source": name, "n": n} for n, text in enumerate(texts)]
        prepare(make_data(records, output=prefix, **source))
        return prefix

    return made


def widened(prefix):
    """The same shard as a tool writes it that always takes 32 bits."""
    shard, told = Shard(prefix), json.loads(Path(f"{prefix}.json").read_text())
    tokens, lengths, bounds = (np.array(one) for one in (shard.tokens, shard.lengths, shard.boundaries))
    with ShardWriter(Path(prefix), np.dtype(np.int32)) as writer:
        writer.add(tokens.astype(np.int32), lengths, np.diff(bounds))
    Path(f"{prefix}.json").write_text(
        json.dumps({**told, "dtype": "int32", "fingerprint": verify.fingerprint([prefix])})
    )
    return prefix


def documents(*prefixes):
    return [data.tokens(number).tolist() for data in map(Dataset, prefixes) for number in range(len(data))]


def rows(*prefixes):
    """Without what tells the place in the shard."""
    found = [data.row(number) for data in map(Dataset, prefixes) for number in range(len(data))]
    return [{name: row[name] for name in row if name not in ("document", "token_start")} for row in found]


@pytest.mark.parametrize("wide", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("source", [{}, {"split_sentences": True}])
def test_the_result_is_the_concatenation_in_the_wider_type(tmp_path, make, source, wide):
    """D10, merge: tools disagree where 16 bits end, so shards of one corpus can be of two types."""
    prefixes = [make("a", LEFT, **source), make("b", RIGHT, **source)]
    for number in wide:
        widened(prefixes[number])
    made = merge(prefixes, str(tmp_path / "c"))
    assert made.dtype == ("int32" if wide else "uint16") == Shard(str(tmp_path / "c")).dtype.name
    assert documents(str(tmp_path / "c")) == documents(*prefixes)
    assert rows(str(tmp_path / "c")) == rows(*prefixes)
    assert verify.main([str(tmp_path / "c"), "--text", "0"]) == 0


def test_counts_add_up(tmp_path, make):
    first, second = (manifest.read(prefix) for prefix in (make("a", LEFT), make("b", RIGHT)))
    made = merge([str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "c"))
    for name in ("documents", "sequences", "tokens", "text_bytes", "read", "kept", "created", "unreadable"):
        assert getattr(made, name) == getattr(first, name) + getattr(second, name)
    assert made.dropped == {"empty: empty": 3} and made.inputs == first.inputs + second.inputs
    assert [(step.name, step.dropped) for step in made.steps if step.dropped] == [("empty", {"empty": 3})]
    assert [one["fingerprint"] for one in made.settings["merged"]] == [first.fingerprint, second.fingerprint]
    assert made == manifest.read(str(tmp_path / "c"))


def test_a_merged_set_is_merged_again_like_any_other(tmp_path, make):
    a, b, c = make("a", LEFT), make("b", RIGHT), make("c", ["five wizards"])
    merge([a, b], str(tmp_path / "ab"))
    merge([str(tmp_path / "ab"), c], str(tmp_path / "ab_c"))
    merge([a, b, c], str(tmp_path / "abc"))
    for suffix in (".bin", ".idx", ".parquet"):
        assert (tmp_path / f"ab_c{suffix}").read_bytes() == (tmp_path / f"abc{suffix}").read_bytes()


def test_a_set_of_many_shards_becomes_one(tmp_path, make):
    many, one = make("many", [*LEFT, *RIGHT], shard_tokens=6), make("one", [*LEFT, *RIGHT])
    assert len(manifest.read(many).shards) > 2
    merge([many], str(tmp_path / "c"))
    assert Path(f"{one}.bin").read_bytes() == (tmp_path / "c.bin").read_bytes()


def test_mask_and_packs_are_joined(tmp_path, make_data, tokenizer_json):
    from preprocess.label.packed import Packs

    for name, lines in (("a", 3), ("b", 2)):
        chat(tmp_path, make_data, tokenizer_json, name, lines)
    prefixes = [str(tmp_path / name) for name in "ab"]
    merge(prefixes, str(tmp_path / "c"))
    assert (tmp_path / "c.mask").read_bytes() == b"".join((tmp_path / f"{name}.mask").read_bytes() for name in "ab")
    separate = [one.ids.tolist() for packs in map(Packs, prefixes) for one in (packs[n] for n in range(len(packs)))]
    together = Packs(str(tmp_path / "c"))
    assert [together[number].ids.tolist() for number in range(len(together))] == separate
    assert list(verify.problems(str(tmp_path / "c"))) == []


def test_dropped_documents_stay_together(tmp_path, make):
    prefixes = [make("a", LEFT, keep_dropped=True), make("b", RIGHT, keep_dropped=True)]
    merge(prefixes, str(tmp_path / "c"))
    with open(tmp_path / "c.dropped.jsonl.zst", "rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read().decode()
    assert [json.loads(line)["id"] for line in text.splitlines()] == ["a1", "b2", "b3"]


def test_the_command_makes_the_report_too(tmp_path, make, capsys):
    assert merge_shards.main([make("a", LEFT), make("b", RIGHT), "--output", str(tmp_path / "new" / "c")]) == 0
    assert "4 documents" in capsys.readouterr().out
    suffixes = (".bin", ".card.html", ".idx", ".json", ".parquet", ".report.json")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [f"c{suffix}" for suffix in suffixes]


# --- what is refused ----------------------------------------------------------------------------------------------


def refused(tmp_path, prefixes, said, output="c"):
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(ValueError) as error:
        merge(prefixes, str(tmp_path / output))
    assert said in str(error.value)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_another_tokenizer_is_refused(tmp_path, make, tokenizer_json):
    refused(tmp_path, [make("a", LEFT), make("b", RIGHT, tokenizer=tokenizer_json)], "another tokenizer")


@pytest.mark.parametrize(
    "source, said", [({"append_eod": False}, "append_eod"), ({"prepend_bos": True}, "prepend_bos")]
)
def test_another_frame_is_refused(tmp_path, make, source, said):
    refused(tmp_path, [make("a", LEFT), make("b", RIGHT, **source)], f"has {said} ")


def test_a_damaged_set_is_refused(tmp_path, make):
    prefixes = [make("a", LEFT), make("b", RIGHT)]
    cut(tmp_path / "b.bin", -2)
    refused(tmp_path, prefixes, "b is not sound")


def test_the_same_tokens_twice_are_refused(tmp_path, make):
    a = make("a", LEFT)
    refused(tmp_path, [a, a], "hold the same tokens")


@pytest.mark.parametrize("output", ["a", "many", "many-00001", "n", "."])
def test_an_output_that_would_replace_an_input_is_refused(tmp_path, make, output):
    prefixes = [make("a", LEFT), make("many", RIGHT, shard_tokens=5), make("n-00000", ["jugs"])]
    refused(tmp_path, prefixes, "choose another name" if output != "." else "is a folder", output)


def test_an_older_output_stays_when_the_disk_is_full(tmp_path, make, monkeypatch, capsys):
    prefixes = [make("a", LEFT), make("b", RIGHT)]
    merge(prefixes[:1], str(tmp_path / "c"))
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(merge_shards, "_copy", full)
    assert merge_shards.main([*prefixes, "--output", str(tmp_path / "c")]) == 1
    assert "No space left" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert not (tmp_path / "c.work").exists()


# --- sizes --------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    lengths=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=12),
    most=st.integers(1, 9),
    batch=st.integers(1, 5),
)
def test_pieces_of_any_size_give_the_same_shard(tmp_path_factory, lengths, most, batch):
    """Documents of some sequences, copied a few tokens and rows at a time."""
    folder = tmp_path_factory.mktemp("pieces")
    write_set(folder / "a", lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_shards, "_TOKENS", most)
        patch.setattr(merge_shards, "BATCH_ROWS", batch)
        from preprocess.merge import ShardSet

        with ShardSet(folder, "c", np.dtype(np.uint16), 0, False) as shards:
            merge_shards._copy(str(folder / "a"), shards, False)
    for suffix in (".bin", ".idx"):
        assert (folder / f"a{suffix}").read_bytes() == (folder / f"c{suffix}").read_bytes()
    assert pq.read_table(folder / "a.parquet") == pq.read_table(folder / "c.parquet")


def write_set(stem, lengths, repeat=1):
    """Shard and table of documents with sequences of these lengths, without a manifest; `repeat`: of all of them."""
    from preprocess.document import Document
    from preprocess.metadata import TableWriter, describe

    flat = np.asarray([one for some in lengths for one in some], np.int32)
    sequences = np.asarray([len(some) for some in lengths], np.int32)
    tokens = np.arange(flat.sum(), dtype=np.int64).astype(np.uint16)
    documents = [Document(str(n), f"id {n}", {}, "file", n) for n in range(len(lengths))]
    described = describe(documents, [document.text.encode() for document in documents])
    sums = np.asarray([sum(some) for some in lengths])
    with ShardWriter(Path(stem), np.dtype(np.uint16)) as shard, TableWriter(Path(f"{stem}.parquet")) as table:
        for _ in range(repeat):
            shard.add(tokens, flat, sequences)
            table.add(described, sums, 0)


_MEASURE = """
import sys
from pathlib import Path
import numpy as np
from benchmarks.measure import own_peak
from preprocess import merge_shards, verify
from preprocess.merge import ShardSet
from tests.preprocess.test_merge_shards import write_set
folder, thousands = Path(sys.argv[1]), int(sys.argv[2])
write_set(folder / "a", [[1]] * 1000, thousands)
with ShardSet(folder, "c", np.dtype(np.int32), 0, False) as shards:
    merge_shards._copy(str(folder / "a"), shards, False)
print(shards.shards[0].documents, own_peak())
"""


@pytest.mark.slow
def test_millions_of_documents_cost_no_python_object_each(tmp_path):
    """D12: 31 million documents ran out of 1.5 TB. Written, and copied to a wider type; bytes a document."""
    peaks = {}
    for thousands in (200, 2000):
        made = subprocess.run(
            [sys.executable, "-c", _MEASURE, str(tmp_path), str(thousands)], capture_output=True, text=True
        )
        assert made.returncode == 0, made.stderr
        documents, peak = map(int, made.stdout.split())
        assert documents == 1000 * thousands
        peaks[thousands] = peak
    assert (peaks[2000] - peaks[200]) / 1_800_000 < 40 and peaks[2000] < 600e6
