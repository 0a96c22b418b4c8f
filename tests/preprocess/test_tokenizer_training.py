"""Training: what is learned is the same each time, restores any text, and fits the settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_ext.config.schema import SentencePieceModel, Tokenizer, TokenizerKind
from preprocess.document import Document
from preprocess.tokenizer import open_tokenizer
from preprocess.tokenizer import train as training
from tests.preprocess.conftest import WORDS

CHINESE = "".join(map(chr, range(0x4E00, 0x5200)))
KINDS = [
    {"kind": TokenizerKind.sentencepiece, "train_model": SentencePieceModel.bpe},
    {"kind": TokenizerKind.sentencepiece, "train_model": SentencePieceModel.unigram},
    {"kind": TokenizerKind.huggingface},
]


def train(path: Path, text: str, size: int = 290, **options) -> bytes:
    return training.train(
        [Document(text, "a", {}, "a", 1)], Tokenizer(path=str(path), train_vocab_size=size, **options)
    )


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_the_same_text_gives_the_same_file(tmp_path, options):
    blobs = [train(tmp_path / name / "t", WORDS * 30, **options) for name in ("new", "newer")]
    assert blobs[0] == blobs[1] == (tmp_path / "new/t").read_bytes()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["t"], "no temporary file is left"
    model = open_tokenizer(Tokenizer(path="t", **options), blobs[0])
    assert model.vocab_size == model.entries == 290 and model.eod is not None and model.bos is not None


def test_a_byte_level_bpe_is_the_same_in_another_process_with_other_threads(tmp_path):
    """Its maps are hashed with a seed that differs from process to process, and there are many ties."""
    code = """
import sys
from pathlib import Path
from tests.preprocess.test_tokenizer_training import KINDS, WORDS, train
train(Path(sys.argv[1]), WORDS * 3, 310, **KINDS[2])
"""
    made = set()
    for number in range(2):
        path = tmp_path / f"{number}.json"
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": str(1 + number)}
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, env=environment)
        made.add(path.read_bytes())
    assert len(made) == 1


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    blob = train(tmp_path_factory.mktemp("t") / "tokenizer.json", WORDS, **KINDS[2])
    return open_tokenizer(Tokenizer(path="t", **KINDS[2]), blob), json.loads(blob)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_byte_level_bpe_restores_any_text(byte_level, text):
    model, _ = byte_level
    assert model.decode(model.encode([text])[0].tolist()) == text


def test_a_byte_level_bpe_has_its_ends_all_bytes_and_the_fast_library(byte_level):
    model, content = byte_level
    assert (model.eod, model.bos, model.unknown) == (0, 1, None) and model.exact.startswith("gigatoken")
    assert [token["content"] for token in content["added_tokens"]] == ["<|endoftext|>", "<|begin_of_text|>"]
    assert sum(len(token) == 1 for token in content["model"]["vocab"]) == 256


@pytest.mark.parametrize("text, size, options, said", [
    (WORDS, 259, KINDS[0], "must be above 259"),
    (WORDS, 4096, KINDS[0], "=4096 does not fit 81 characters of text: Vocabulary size too high"),
    (WORDS, 4096, KINDS[2], "=4096 does not fit 81 characters of text: it gives [0-9]+ ids"),
    (CHINESE, 300, KINDS[0], "=300 does not fit 1024 characters"),
    ("", 300, KINDS[0], "no document"),
    (WORDS, 300, {"kind": TokenizerKind.tiktoken}, "no tiktoken file is trained here"),
])  # fmt: skip
def test_sizes_and_kinds_that_cannot_be(tmp_path, text, size, options, said):
    with pytest.raises(ValueError, match=said):
        train(tmp_path / "t.model", text, size, **options)
    assert not list(tmp_path.iterdir())


@settings(deadline=None)
@given(text=st.text(st.sampled_from("ab\né😀"), max_size=300))
def test_pieces_join_to_the_text(text):
    """Nothing is lost or doubled, and no piece is longer than SentencePiece reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "PIECE_BYTES", 40)
        pieces = list(training._pieces(text))
    assert "".join(pieces) == text
    assert all(0 < len(piece.encode()) <= 40 for piece in pieces)


def test_the_sample_is_bounded_uniform_and_the_same_each_time(monkeypatch):
    monkeypatch.setattr(training, "SAMPLE_BYTES", 100 * training.PIECE_BYTES)
    sample = training._sample(map(str, range(10_000)))
    assert len(set(sample)) == 100 and sample == training._sample(map(str, range(10_000)))
    assert 4000 < sum(map(int, sample)) / 100 < 6000
