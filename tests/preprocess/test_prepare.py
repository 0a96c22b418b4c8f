"""The whole way from records to a shard: what is kept, in which order, what it says of itself."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from megatron_ext.config.schema import Data, Source, Tokenizer, TokenizerKind
from preprocess import manifest, metadata, readers
from preprocess.pool import default_workers
from preprocess.prepare import prepare
from preprocess.shards import SUFFIXES, Shard
from preprocess.tokenizer import open_tokenizer
from preprocess.verify import problems
from tests.preprocess import test_shards
from tests.preprocess.conftest import WORDS, content, nothing_made, write_jsonl


def rows(folder: Path) -> list:
    return pq.read_table(folder / "out.parquet").to_pylist()


def tokenizer_at(path: str):
    kind = TokenizerKind.huggingface if path.endswith(".json") else TokenizerKind.sentencepiece
    return open_tokenizer(Tokenizer(kind=kind, path=path), Path(path).read_bytes())


# --- empty texts (D01, D02, D03) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_empty_documents_are_dropped_and_counted(tmp_path, make_data, workers):
    """D01: an empty first document too; for every number of workers the same."""
    made = prepare(make_data([{"text": text} for text in ("", "hello world", "", "x")], workers=workers))
    assert (made.read, made.kept, made.dropped, made.documents) == (4, 2, {"empty: empty": 2}, 2)
    assert [row["line"] for row in rows(tmp_path)] == [2, 4]
    assert not list(problems(str(tmp_path / "out")))


def test_rows_stay_with_their_documents(tmp_path, make_data, sentencepiece_model):
    """D02: decoding document i gives the text whose id and hash row i has."""
    texts = dict(zip("abcde", ["one", "", "three", "   \n", "five"]))
    prepare(make_data([{"id": id, "text": text, "n": n} for n, (id, text) in enumerate(texts.items())]))
    shard, model = Shard(str(tmp_path / "out")), tokenizer_at(sentencepiece_model)
    assert [row["id"] for row in rows(tmp_path)] == ["a", "c", "e"]
    for i, row in enumerate(rows(tmp_path)):
        text = model.decode(shard[i].tolist()[:-1])
        assert text == texts[row["id"]] and metadata.text_hash(text) == row["text_hash"]
        assert json.loads(row["metadata"]) == {"n": "abcde".index(row["id"])}
        assert shard.tokens[row["token_start"] :][: row["token_count"]].tolist() == shard[i].tolist()


@pytest.mark.parametrize(
    "records, steps, said",
    [
        ([], [], "of 0 read (the inputs are empty)"),
        ([{"text": ""}, {"text": "\n"}], [], "of 2 read (2 empty: empty)"),
        ([{"text": "a"}], ["Nothing"], "of 1 read (1 Nothing: not wanted)"),
    ],
)
def test_when_nothing_is_kept_there_is_no_shard(tmp_path, make_data, odd_steps, records, steps, said):
    """D03 (c): megatron-core's builder writes a pair that its own reader cannot open."""
    with pytest.raises(ValueError) as error:
        prepare(make_data(records, steps=steps))
    assert said in str(error.value) and nothing_made(tmp_path)


def test_a_text_without_tokens_is_dropped(tmp_path, make_data, tokenizer_json):
    """A byte-level model without an alphabet has no token for what it never saw."""
    lame = json.loads(Path(tokenizer_json).read_text())
    lame["model"]["vocab"] = {key: id for key, id in lame["model"]["vocab"].items() if id < 2 or key == "a"}
    lame["model"]["merges"] = []
    (tmp_path / "lame.json").write_text(json.dumps(lame))
    made = prepare(make_data([{"text": "é"}, {"text": "a"}], tokenizer=str(tmp_path / "lame.json")))
    assert (made.kept, made.dropped) == (1, {"tokenise: no tokens": 1})


# --- tokens (D05, D06, D07) --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sentencepiece", "huggingface"])
def test_one_end_of_document_at_the_end(tmp_path, make_data, sentencepiece_model, tokenizer_json, kind):
    """D05, D07: also when the text spells the token out, or the tokenizer's own post-processor adds it."""
    path = sentencepiece_model if kind == "sentencepiece" else tokenizer_json
    made = prepare(make_data([{"text": text} for text in ("hi", "a</s>b", "</s>", "three</s>")], tokenizer=path))
    shard = Shard(str(tmp_path / "out"))
    assert len(shard) == 4 and made.tokens == len(shard.tokens) == shard.lengths.sum()
    for i in range(4):
        assert (shard[i] == made.eod_id).sum() == 1 and shard[i][-1] == made.eod_id
    assert not list(problems(str(tmp_path / "out")))


@pytest.mark.parametrize("bos, eod", [(False, False), (False, True), (True, True), (True, False)])
def test_begin_and_end_are_there_as_asked(tmp_path, make_data, tokenizer_json, bos, eod):
    """D06: exactly those, and the manifest says so."""
    made = prepare(make_data([{"text": "hi"}], tokenizer=tokenizer_json, append_eod=eod, prepend_bos=bos))
    ids, _ = tokenizer_at(tokenizer_json).encode(["hi"])
    assert Shard(str(tmp_path / "out"))[0].tolist() == [0] * bos + ids.tolist() + [1] * eod
    assert (made.prepend_bos, made.append_eod, made.bos_id, made.eod_id) == (bos, eod, 0, 1)
    assert not list(problems(str(tmp_path / "out")))


def test_shard_is_what_megatron_writes(tmp_path, make_data, sentencepiece_model):
    """The loop of Megatron-LM's preprocess_data.py with --append-eod, over the same texts."""
    import sentencepiece

    texts = ["hello world", "x", WORDS * 20, "ž\0 猫", " a\n\n  b "]
    prepare(make_data([{"text": text} for text in texts]))
    model = sentencepiece.SentencePieceProcessor(model_file=sentencepiece_model)
    documents = [[*model.encode_as_ids(text), model.eos_id()] for text in texts]
    test_shards.write_as_megatron_does(tmp_path / "theirs", documents, model.vocab_size())
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"out{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()


def test_unknown_tokens_are_counted(tmp_path, make_data):
    """D17: a model without byte fallback loses characters; the manifest says how many."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([WORDS] * 30), model_writer=model, vocab_size=60, minloglevel=2, hard_vocab_limit=False
    )
    (tmp_path / "lossy.model").write_bytes(model.getvalue())
    made = prepare(make_data([{"text": "fox 猫 fox"}, {"text": "fox"}], tokenizer=str(tmp_path / "lossy.model")))
    assert made.unknown_tokens == 1


# --- sentences (D27) and shard size (D30) ------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_sentences_are_sequences_of_one_document(tmp_path, make_data, sentencepiece_model, workers):
    """D27: Megatron-LM's script ended well and wrote nothing. A text without a full stop is one sentence, not cut."""
    texts = ["One fox. Two dogs! Three?", "猫。狗。", "box of jugs " * 20_000]
    made = prepare(make_data([{"text": text} for text in texts], split_sentences=True, workers=workers))
    shard, model = Shard(str(tmp_path / "out")), tokenizer_at(sentencepiece_model)
    assert shard.boundaries.tolist() == [0, 3, 5, 6] and (made.documents, made.sequences) == (3, 6)
    assert [model.decode(shard[i].tolist()[:-1]) for i in range(3)] == texts
    starts = shard.pointers // shard.dtype.itemsize
    first = [model.decode(shard.tokens[s : s + n].tolist()) for s, n in zip(starts[:3], shard.lengths[:3])]
    assert [text.strip() for text in first][:2] == ["One fox.", "Two dogs!"]
    assert [shard[i].tolist().count(made.eod_id) for i in range(3)] == [1, 1, 1]
    assert not list(problems(str(tmp_path / "out")))


def test_a_limit_of_tokens_makes_a_set_of_shards(tmp_path, make_data):
    """D30: never an endless row of files; a document that is longer than a shard is alone in one, whole."""
    texts = ["a" * 10, "jug" * 3000, "b" * 10, "c" * 10]
    made = prepare(make_data([{"text": text} for text in texts], shard_tokens=1000, append_eod=False))
    assert [shard.name for shard in made.shards] == ["out-00000", "out-00001", "out-00002"]
    assert [shard.documents for shard in made.shards] == [1, 1, 2]
    whole = [Shard(prefix) for prefix in made.prefixes(str(tmp_path / "out"))]
    assert sum(len(shard.tokens) for shard in whole) == made.tokens
    assert not (tmp_path / "out.bin").exists() and not list(problems(str(tmp_path / "out")))
    made = prepare(make_data([{"text": text} for text in texts], append_eod=False))  # one shard takes their place
    assert sorted(path.name for path in tmp_path.glob("out*")) == sorted(f"out{suffix}" for suffix in SUFFIXES)
    assert np.array_equal(Shard(str(tmp_path / "out")).tokens, np.concatenate([shard.tokens for shard in whole]))


# --- order and workers -------------------------------------------------------------------------------------------


def test_the_same_bytes_for_every_number_of_workers_and_parts(tmp_path, make_data, monkeypatch):
    monkeypatch.setattr(readers, "BATCH_RECORDS", 3)
    monkeypatch.setattr(metadata, "_GROUP_ROWS", 7)
    random = np.random.default_rng(0)
    records = [{"text": WORDS[: random.integers(0, 60)] * random.integers(0, 9), "k": n} for n in range(900)]
    results = []
    for workers, part_bytes in ((1, 1 << 16), (2, 1 << 16), (3, 1 << 16)):
        made = prepare(make_data(records, workers=workers, part_bytes=part_bytes), force=True)
        assert len(made.inputs) > 2, "the file is to be cut into parts"
        results.append(content(tmp_path))
        assert [row["line"] for row in rows(tmp_path)] == [n + 1 for n, r in enumerate(records) if r["text"].strip()]
    assert results[0] == results[1] == results[2]
    whole = prepare(make_data(records), force=True)  # in one part
    assert len(whole.inputs) == 1 and content(tmp_path)[".bin"] == results[0][".bin"]
    assert content(tmp_path)[".idx"] == results[0][".idx"] and not list(problems(str(tmp_path / "out")))


def test_torch_is_imported_nowhere(tmp_path, make_data):
    """Neither in the command's process nor in its workers: it costs seconds and half a gigabyte in each."""
    data = make_data([{"text": "hello"}])
    code = f"""
import sys, preprocess.cli, preprocess.verify, preprocess.show
from megatron_ext.config.schema import Data, Source, Tokenizer, TokenizerKind
from preprocess.prepare import prepare
from tests.preprocess import steps
if __name__ == "__main__":
    steps.register()
    for workers in (1, 2):
        where = dict(inputs={data.source.inputs!r}, output={data.source.output!r})
        source = Source(**where, workers=workers, steps=["NoTorch"])
        prepare(Data(tokenizer=Tokenizer(path={data.tokenizer.path!r}), source=source), force=True)
    assert preprocess.verify.main([{data.source.output!r}]) == 0
    assert "torch" not in sys.modules and "megatron.core" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_workers_default_to_the_cores_of_this_process(monkeypatch):
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert default_workers() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    assert default_workers() == 1


# --- training the tokenizer --------------------------------------------------------------------------------------


def training(tmp_path: Path, size: int = 300, path: str = "new/t.model", **tokenizer) -> Data:
    write_jsonl(tmp_path / "in.jsonl", [{"text": WORDS * 3}] * 10)
    source = Source(inputs=[str(tmp_path / "in.jsonl")], output=str(tmp_path / "out"), workers=1)
    return Data(tokenizer=Tokenizer(path=str(tmp_path / path), train_vocab_size=size, **tokenizer), source=source)


def test_a_missing_tokenizer_is_trained_once(tmp_path):
    made = prepare(training(tmp_path))
    assert made.tokenizer.vocab_size == 300 and made.eod_id == 2
    trained = (tmp_path / "new/t.model").read_bytes()
    write_jsonl(tmp_path / "in.jsonl", [{"text": "other text altogether"}])
    data = training(tmp_path)
    assert prepare(data).tokenizer.sha256 == made.tokenizer.sha256
    assert (tmp_path / "new/t.model").read_bytes() == trained


def test_a_byte_level_bpe_is_trained_where_a_tokenizer_json_is_asked_for(tmp_path):
    made = prepare(training(tmp_path, path="new/tokenizer.json", kind=TokenizerKind.huggingface))
    assert made.tokenizer.vocab_size == 300 and not list(problems(str(tmp_path / "out")))
    assert json.loads((tmp_path / "new/tokenizer.json").read_text())["model"]["type"] == "BPE"


def test_a_trained_tokenizer_of_another_size_is_not_taken(tmp_path):
    prepare(training(tmp_path))
    with pytest.raises(ValueError, match="has 300 ids, not data.tokenizer.train_vocab_size=310"):
        prepare(training(tmp_path, 310))


def test_too_little_text_to_train_on(tmp_path):
    with pytest.raises(ValueError, match="train_vocab_size=4096 does not fit"):
        prepare(training(tmp_path, 4096))
    assert nothing_made(tmp_path) and not (tmp_path / "new").exists()


# --- manifest ----------------------------------------------------------------------------------------------------


def test_the_manifest_says_what_was_made_of_what(tmp_path, make_data, sentencepiece_model, odd_steps):
    data = make_data([{"text": "héllo"}, {"text": ""}, {"text": "jug"}], steps=["Twice"])
    made = prepare(data)
    assert manifest.read(str(tmp_path / "out")) == made
    source = tmp_path / "in.jsonl"
    told = dataclasses.asdict(made)
    for name in ("fingerprint", "stamp", "created_by", "settings", "tokenizer", "tokens"):
        assert told.pop(name)
    assert told == {
        "format_version": 3,
        "append_eod": True,
        "prepend_bos": False,
        "eod_id": 2,
        "bos_id": 1,
        "dtype": "uint16",
        "documents": 4,
        "sequences": 4,
        "text_bytes": 18,
        "unknown_tokens": 0,
        "read": 3,
        "kept": 4,
        "created": 3,
        "unreadable": 0,
        "unreadable_places": [],
        "dropped": {"empty: empty": 2},
        "steps": [
            {"name": "read", "settings": {}, "changed": {}, "dropped": {}},
            {"name": "Twice", "settings": {}, "changed": {}, "dropped": {}},
            {"name": "empty", "settings": {}, "changed": {}, "dropped": {"empty": 2}},
            {"name": "tokenise", "settings": {}, "changed": {}, "dropped": {}},
        ],
        "inputs": [
            {"path": str(source), "bytes": source.stat().st_size, "start": 0, "end": source.stat().st_size,
             "sha256": test_shards.sha(source), "records": 3}
        ],
        "shards": [{"name": "out", "documents": 4, "tokens": made.tokens}],
    }  # fmt: skip
    assert made.tokenizer.sha256 == test_shards.sha(Path(sentencepiece_model)) and made.tokenizer.vocab_size == 300
    assert made.settings["source"]["steps"] == ["Twice"] and made.created_by["libraries"]["sentencepiece"]
    parents = [row["parent"] for row in rows(tmp_path)]
    assert parents == [None, rows(tmp_path)[0]["id"], None, rows(tmp_path)[2]["id"]]


def test_the_fingerprint_is_of_the_content(tmp_path, make_data):
    """The same tokens in the same documents, whatever they were made of; any other tokens or bounds change it."""
    prints = []
    for texts in (["one", "two"], ["one", "two"], ["onetwo"], ["one", "tow"]):
        prints.append(prepare(make_data([{"text": text} for text in texts], append_eod=False), force=True).fingerprint)
    assert prints[0] == prints[1] and len(set(prints)) == 3


def test_what_is_dropped_is_written_aside(tmp_path, make_data, odd_steps, monkeypatch):
    """With file, line, step and reason; a record that cannot be read too."""
    import zstandard

    monkeypatch.setattr(readers, "BATCH_RECORDS", 2)
    lines = ['{"text": "a", "id": "x", "n": 1}', "", "{broken", '{"text": " "}', '{"text": "kept"}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    data = make_data(inputs=[str(tmp_path / "in.jsonl")], keep_dropped=True, max_bad_records=1)
    made = prepare(data)
    assert (made.read, made.kept, made.unreadable) == (5, 2, 1)
    assert made.dropped == {"empty: empty": 1, "read: blank line": 1}
    with open(tmp_path / "out.dropped.jsonl.zst", "rb") as file:
        aside = [json.loads(line) for line in zstandard.ZstdDecompressor().stream_reader(file).read().splitlines()]
    found = [(record["line"], record["step"], record["reason"], record["text"]) for record in aside]
    assert found == [(3, "read", "unreadable", "{broken"), (4, "empty", "empty", " ")]
