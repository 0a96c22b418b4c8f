"""The whole way from records to a shard: what is kept, in which order, and what is left when something goes wrong."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from megatron_ext.config.schema import Data, Source, Tokenizer
from preprocess import metadata, pipeline, readers
from preprocess.encode import default_workers
from preprocess.prepare import prepare
from preprocess.shards import SUFFIXES, Shard, read_sidecar
from preprocess.tokenizer import HuggingFace, SentencePiece
from preprocess.verify import problems
from tests.preprocess import steps, test_shards
from tests.preprocess.conftest import WORDS, write_jsonl

FILES = [f"out{suffix}" for suffix in SUFFIXES]


def content(folder: Path, stem: str = "out") -> dict:
    return {suffix: (folder / f"{stem}{suffix}").read_bytes() for suffix in SUFFIXES}


def left_in(folder: Path) -> list:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("out"))


def rows(folder: Path) -> list:
    return pq.read_table(folder / "out.parquet").to_pylist()


# --- empty texts (D01, D02, D03) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_empty_documents_are_dropped_and_counted(tmp_path, make_data, workers):
    """D01: an empty first document too; for every number of workers the same."""
    sidecar = prepare(make_data([{"text": text} for text in ("", "hello world", "", "x")], workers=workers))
    assert (sidecar.read, sidecar.kept, sidecar.dropped, sidecar.documents) == (4, 2, {"empty": 2}, 2)
    assert [row["line"] for row in rows(tmp_path)] == [2, 4]
    assert not list(problems(str(tmp_path / "out")))


def test_rows_stay_with_their_documents(tmp_path, make_data, sentencepiece_model):
    """D02: decoding document i gives the text whose id and hash row i has."""
    texts = dict(zip("abcde", ["one", "", "three", "   \n", "five"]))
    prepare(make_data([{"id": id, "text": text, "n": n} for n, (id, text) in enumerate(texts.items())]))
    shard, model = Shard(str(tmp_path / "out")), SentencePiece(Path(sentencepiece_model).read_bytes())
    assert [row["id"] for row in rows(tmp_path)] == ["a", "c", "e"]
    for i, row in enumerate(rows(tmp_path)):
        text = model.decode(shard[i].tolist()[:-1])
        assert text == texts[row["id"]] and metadata.text_hash(text) == row["text_hash"]
        assert json.loads(row["metadata"]) == {"n": "abcde".index(row["id"])}
        assert shard.tokens[row["token_start"] :][: row["token_count"]].tolist() == shard[i].tolist()


@pytest.mark.parametrize(
    "records, run_steps, said",
    [
        ([], pipeline.STEPS, "of 0 read (the inputs are empty)"),
        ([{"text": ""}, {"text": "\n"}], pipeline.STEPS, "of 2 read (2 empty)"),
        ([{"text": "a"}], [steps.nothing], "of 1 read (1 not wanted)"),
    ],
)
def test_when_nothing_is_kept_there_is_no_shard(tmp_path, make_data, records, run_steps, said):
    """D03 (c): megatron-core's builder writes a pair that its own reader cannot open."""
    with pytest.raises(ValueError) as error:
        prepare(make_data(records), steps=run_steps)
    assert said in str(error.value) and left_in(tmp_path) == []


def test_a_text_without_tokens_is_dropped(tmp_path, make_data, tokenizer_json):
    """A byte-level model without an alphabet has no token for what it never saw."""
    lame = json.loads(Path(tokenizer_json).read_text())
    lame["model"]["vocab"] = {key: id for key, id in lame["model"]["vocab"].items() if id < 2 or key == "a"}
    lame["model"]["merges"] = []
    (tmp_path / "lame.json").write_text(json.dumps(lame))
    sidecar = prepare(make_data([{"text": "é"}, {"text": "a"}], tokenizer=str(tmp_path / "lame.json")))
    assert (sidecar.kept, sidecar.dropped) == (1, {"no tokens": 1})


# --- tokens (D05, D06, D07) --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sentencepiece", "huggingface"])
def test_one_end_of_document_at_the_end(tmp_path, make_data, sentencepiece_model, tokenizer_json, kind):
    """D05, D07: also when the text spells the token out, or the tokenizer's own post-processor adds it."""
    path = sentencepiece_model if kind == "sentencepiece" else tokenizer_json
    sidecar = prepare(make_data([{"text": text} for text in ("hi", "a</s>b", "</s>", "three</s>")], tokenizer=path))
    shard = Shard(str(tmp_path / "out"))
    assert len(shard) == 4 and sidecar.tokens == len(shard.tokens) == shard.lengths.sum()
    for i in range(4):
        assert (shard[i] == sidecar.eod_id).sum() == 1 and shard[i][-1] == sidecar.eod_id
    assert not list(problems(str(tmp_path / "out")))


def test_without_end_of_document(tmp_path, make_data, tokenizer_json):
    """D06: exactly the tokens of the text, and the sidecar says so."""
    sidecar = prepare(make_data([{"text": "hi"}], tokenizer=tokenizer_json, append_eod=False))
    ids = HuggingFace(Path(tokenizer_json).read_bytes()).encode(["hi"])[0]
    assert Shard(str(tmp_path / "out"))[0].tolist() == ids
    assert (sidecar.append_eod, sidecar.eod_id) == (False, 1)
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
    """D17: a model without byte fallback loses characters; the sidecar says how many."""
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([WORDS] * 30), model_writer=model, vocab_size=60, minloglevel=2, hard_vocab_limit=False
    )
    (tmp_path / "lossy.model").write_bytes(model.getvalue())
    sidecar = prepare(make_data([{"text": "fox 猫 fox"}, {"text": "fox"}], tokenizer=str(tmp_path / "lossy.model")))
    assert sidecar.unknown_tokens == 1


# --- order and workers -------------------------------------------------------------------------------------------


def test_the_same_bytes_for_every_number_of_workers(tmp_path, make_data, monkeypatch):
    monkeypatch.setattr(readers, "BATCH_RECORDS", 3)
    monkeypatch.setattr(metadata, "_GROUP_ROWS", 7)
    random = np.random.default_rng(0)
    records = [{"text": WORDS[: random.integers(0, 60)] * random.integers(0, 9), "id": n, "k": n} for n in range(40)]
    results = []
    for workers in (1, 2, 3):
        prepare(make_data(records, workers=workers))
        results.append(content(tmp_path))
    assert results[0] == results[1] == results[2]
    assert not list(problems(str(tmp_path / "out")))


def test_torch_is_imported_nowhere(tmp_path, make_data):
    """Neither in the command's process nor in its workers: it costs seconds and half a gigabyte in each."""
    data = make_data([{"text": "hello"}])
    code = f"""
import sys, preprocess.cli, preprocess.verify
from megatron_ext.config.schema import Data, Source, Tokenizer, TokenizerKind
from preprocess.prepare import prepare
from tests.preprocess import steps
for workers in (1, 2):
    source = Source(inputs={data.source.inputs!r}, output={data.source.output!r}, workers=workers)
    prepare(Data(tokenizer=Tokenizer(path={data.tokenizer.path!r}), source=source), steps=[steps.no_torch])
assert preprocess.verify.main([{data.source.output!r}]) == 0
assert "torch" not in sys.modules and "megatron.core" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_workers_default_to_the_cores_of_this_process():
    assert default_workers() == len(os.sched_getaffinity(0))


# --- things that go wrong ----------------------------------------------------------------------------------------


def test_a_killed_worker_fails_the_run(tmp_path, make_data):
    with pytest.raises(ChildProcessError, match="worker process died"):
        prepare(make_data([{"text": "a"}, {"text": "die"}], workers=2), steps=[steps.killed])
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_line_fails_the_run_and_spares_the_old_shard(tmp_path, make_data, monkeypatch, workers):
    """The first bad line in the order of the input is named, whichever worker met one first."""
    monkeypatch.setattr(readers, "BATCH_RECORDS", 2)
    prepare(make_data([{"text": "old"}]))
    before = content(tmp_path)
    data = make_data([{"text": "a"}] * 5 + [{"none": 1}] + [{"text": "b"}] * 3 + [{"none": 2}], workers=workers)
    with pytest.raises(ValueError, match=r"in.jsonl:6: no field 'text'"):
        prepare(data)
    assert content(tmp_path) == before and left_in(tmp_path) == sorted(FILES)


def test_a_cut_input_leaves_no_shard(tmp_path, make_data):
    """D15: what was read before the cut is not passed off as the whole."""
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(b'{"text":"a"}\n' * 9)[:-5])
    with pytest.raises(ValueError, match="in.jsonl.gz is damaged"):
        prepare(make_data(inputs=[str(tmp_path / "in.jsonl.gz")]))
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_kill_in_the_middle_then_again(tmp_path, make_data, monkeypatch, workers):
    """D25: after kill -9 nothing has a final name and no worker lives; the same command then gives the same bytes."""
    records = [{"text": WORDS[n:], "id": n} for n in range(60)]
    data = make_data(records, workers=workers)
    code = f"""
from megatron_ext.config.schema import *
from preprocess import readers
from preprocess.prepare import prepare
from tests.preprocess import steps
readers.BATCH_RECORDS = 10
source = Source(inputs={data.source.inputs!r}, output={data.source.output!r}, workers={workers})
prepare(Data(tokenizer=Tokenizer(path={data.tokenizer.path!r}), source=source), steps=[steps.slow])
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: len(list(tmp_path.glob("pid.*"))) == workers)
    process.kill()
    process.wait()
    assert left_in(tmp_path) == ["out.partial"]
    pids = [path.suffix[1:] for path in tmp_path.glob("pid.*")]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))

    prepare(data)
    again = content(tmp_path)
    assert left_in(tmp_path) == sorted(FILES)
    prepare(dataclasses.replace(data, source=dataclasses.replace(data.source, output=str(tmp_path / "calm"))))
    assert content(tmp_path, "calm") == again


def until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("renames", range(4))
def test_killed_between_two_renames(tmp_path, make_data, monkeypatch, renames):
    """Replacing a shard: at no moment does a sidecar stand beside files of another run."""
    prepare(make_data([{"text": "old"}]))
    calls = iter(range(renames))

    def replace(source, target, real=os.replace):
        if Path(target).parent == tmp_path and next(calls, None) is None:
            raise KeyboardInterrupt
        real(source, target)

    data = make_data([{"text": "new"}, {"text": "newer"}])
    with monkeypatch.context() as patch:
        patch.setattr("preprocess.staging.os.replace", replace)
        with pytest.raises(KeyboardInterrupt):
            prepare(data)
    assert not (tmp_path / "out.json").exists()
    prepare(data)
    assert len(Shard(str(tmp_path / "out"))) == 2 and not list(problems(str(tmp_path / "out")))


def test_two_at_once_are_refused(tmp_path, make_data):
    data = make_data([{"text": "a"}])
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / "out.partial").mkdir()
        owner = {"host": os.uname().nodename, "pid": other.pid, "job": ""}
        (tmp_path / "out.partial/lock.json").write_text(json.dumps(owner))
        with pytest.raises(ValueError, match=f"being made by pid {other.pid}"):
            prepare(data)
        assert (tmp_path / "out.partial/lock.json").exists()
        other.send_signal(signal.SIGKILL)
    prepare(data)
    assert left_in(tmp_path) == sorted(FILES)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"output": ""}, "data.source.output is empty"),
        ({"output": "/tmp"}, "is a folder"),
        ({"output": "new/"}, "is a folder"),
        ({"workers": -1}, "data.source.workers=-1"),
        ({"inputs": []}, "data.source.inputs is empty"),
        ({"inputs": ["gone.jsonl"]}, "no file matches 'gone.jsonl'"),
        ({"text_key": "body"}, "no field 'body'"),
        ({"tokenizer": "gone.model"}, "gone.model does not exist.*train_vocab_size"),
        ({"tokenizer": ""}, "data.tokenizer.path is empty"),
    ],
)
def test_wrong_settings(tmp_path, make_data, monkeypatch, change, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said):
        prepare(make_data([{"text": "a"}], **change))
    assert left_in(tmp_path) == []


# --- training the tokenizer --------------------------------------------------------------------------------------


def training(tmp_path: Path, size: int = 300, path: str = "new/t.model", **tokenizer) -> Data:
    write_jsonl(tmp_path / "in.jsonl", [{"text": WORDS * 3}] * 10)
    source = Source(inputs=[str(tmp_path / "in.jsonl")], output=str(tmp_path / "out"), workers=1)
    return Data(tokenizer=Tokenizer(path=str(tmp_path / path), train_vocab_size=size, **tokenizer), source=source)


def test_a_missing_tokenizer_is_trained_once(tmp_path):
    sidecar = prepare(training(tmp_path))
    assert sidecar.vocab_size == 300 and sidecar.eod_id == 2
    trained = (tmp_path / "new/t.model").read_bytes()
    write_jsonl(tmp_path / "in.jsonl", [{"text": "other text altogether"}])
    data = training(tmp_path)
    assert prepare(data).tokenizer_sha256 == sidecar.tokenizer_sha256
    assert (tmp_path / "new/t.model").read_bytes() == trained


def test_a_trained_tokenizer_of_another_size_is_not_taken(tmp_path):
    prepare(training(tmp_path))
    with pytest.raises(ValueError, match="has 300 ids, not data.tokenizer.train_vocab_size=310"):
        prepare(training(tmp_path, 310))


def test_only_sentencepiece_is_trained(tmp_path):
    with pytest.raises(ValueError, match="only SentencePiece models are trained"):
        prepare(training(tmp_path, kind="huggingface"))
    assert left_in(tmp_path) == [] and not (tmp_path / "new").exists()


def test_too_little_text_to_train_on(tmp_path):
    with pytest.raises(ValueError, match="train_vocab_size=4096 does not fit"):
        prepare(training(tmp_path, 4096))
    assert left_in(tmp_path) == [] and not (tmp_path / "new").exists()


# --- sidecar -----------------------------------------------------------------------------------------------------


def test_the_sidecar_says_what_was_made_of_what(tmp_path, make_data, sentencepiece_model):
    data = make_data([{"text": "héllo"}, {"text": ""}])
    sidecar = prepare(data)
    assert read_sidecar(str(tmp_path / "out")) == sidecar
    assert dataclasses.asdict(sidecar) == {
        "format_version": 1,
        "tokenizer_kind": "sentencepiece",
        "tokenizer_sha256": test_shards.sha(Path(sentencepiece_model)),
        "vocab_size": 300,
        "append_eod": True,
        "eod_id": 2,
        "dtype": "uint16",
        "documents": 1,
        "tokens": len(Shard(str(tmp_path / "out")).tokens),
        "text_bytes": 6,
        "unknown_tokens": 0,
        "read": 2,
        "kept": 1,
        "dropped": {"empty": 1},
        "inputs": [{"path": str(tmp_path / "in.jsonl"), "bytes": (tmp_path / "in.jsonl").stat().st_size}],
    }
