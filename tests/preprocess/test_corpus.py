"""The corpus in the repository is what its README says, its script is deterministic, the demo preset makes a shard."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import time
from pathlib import Path

import pytest
import zstandard

from megatron_ext.config import load
from preprocess import cli
from preprocess.shards import Shard
from preprocess.verify import problems

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "corpus/python_docs.jsonl.zst"


def read_corpus():
    with open(CORPUS, "rb") as file:
        return [json.loads(line) for line in zstandard.ZstdDecompressor().stream_reader(file).read().splitlines()]


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("corpus_build", ROOT / "corpus/build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_tells_the_truth():
    readme = (ROOT / "corpus/README.md").read_text()
    assert hashlib.sha256(CORPUS.read_bytes()).hexdigest() in readme
    assert CORPUS.stat().st_size < 4_000_000
    records = read_corpus()
    assert f"{len(records)} documents" in readme
    assert f"{sum(len(record['text'].encode()) for record in records):,} bytes" in readme
    assert all(list(record) == ["id", "text", "title", "source", "licence"] for record in records)
    assert len({record["id"] for record in records}) == len(records)
    assert {record["licence"] for record in records} == {"PSF-2.0"}
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in (ROOT / "corpus/LICENCE.python_docs.txt").read_text()


def test_build_is_deterministic(build, tmp_path):
    for root, names in (("a", ["x", "y", "z"]), ("b", ["z", "y", "x"])):
        for name in names:
            path = tmp_path / root / "doc/_sources/library" / f"{name}.rst.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f".. _{name}:\n\n=====\nTitle {name}\n=======\n\nText.\n")
    assert build.pack(tmp_path / "a") == build.pack(tmp_path / "b")
    first = min(build.documents(tmp_path / "a"), key=lambda document: document["id"])
    assert first["id"] == "python-3.11/library/x" and first["title"] == "Title x"
    assert first["source"] == "python3.11-doc: doc/_sources/library/x.rst.txt"


@pytest.mark.slow
def test_demo_preset(tmp_path, monkeypatch, capsys):
    """From the corpus alone: trains the tokenizer, tokenises; every text is found again from its tokens."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").symlink_to(ROOT / "corpus")
    began = time.process_time()
    assert cli.main(["data=demo", "data.source.workers=1"]) == 0
    assert time.process_time() - began < 40, "25 s to train and 15 s to tokenise, of processor time"
    assert "497 documents" in capsys.readouterr().out
    (prefix,) = load.compose(["data=demo"]).data.blend
    assert not list(problems(prefix))

    from preprocess.tokenizer.sentencepiece import SentencePiece

    model, shard = SentencePiece(Path("runs/data/demo/tokenizer.model").read_bytes()), Shard(prefix)
    records = read_corpus()
    assert all(model.decode(shard[i].tolist()[:-1]) == record["text"] for i, record in enumerate(records))
    assert model.vocab_size == 4096
