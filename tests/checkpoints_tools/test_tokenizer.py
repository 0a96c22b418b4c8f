"""The tokenizer goes along, and gives transformers the ids that SentencePiece gave the training data."""

from __future__ import annotations

import json
import random

import pytest
import torch

from checkpoints_tools.hf import sentencepiece as rebuilt
from megatron_ext.config import load
from megatron_ext.config.schema import Data, Model, Run, Tokenizer, TokenizerKind
from tests.checkpoints_tools.samples import checkpoint, convert, weights

TINY = Model(num_layers=1, hidden_size=16, ffn_size=24, num_heads=4, vocab_size=320)
WORDS = "the quick brown fox jumps over lazy dogs naïve café 123 x=1; foo_bar 日本 Hello World, (why) don't".split()
PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
TEXTS = ["Hello quick World", "  two  spaces ", "café\tnaïve\n日本", "ﬁne ① ｆｕｌｌ", "unseen: Ж 😀", ""]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    import sentencepiece

    folder = tmp_path_factory.mktemp("tokenizers")
    rng = random.Random(0)
    (folder / "text").write_text("\n".join(" ".join(rng.choices(WORDS, k=12)) for _ in range(1000)))

    def train(kind: str, **options: object):
        path = folder / f"{kind}{len(list(folder.iterdir()))}.model"
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"),
            model_prefix=str(path)[:-6],
            model_type=kind,
            vocab_size=320,
            **{"hard_vocab_limit": False, "byte_fallback": True, "minloglevel": 2, "num_threads": 1, **options},
        )
        return path

    return train


def _run_with(folder, path, kind=TokenizerKind.sentencepiece):
    checkpoint(folder, weights(TINY, torch.bfloat16), TINY)
    run = Run(model=TINY, data=Data(tokenizer=Tokenizer(path=str(path), kind=kind)))
    load.freeze(run, folder / "run.yaml")
    return folder


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("options", [{}, PLAIN, {"add_dummy_prefix": False, "user_defined_symbols": ["<sep>"]}])
def test_transformers_gives_sentencepieces_ids(tmp_path, trained, kind, options):
    import sentencepiece
    from transformers import AutoTokenizer

    path = trained(kind, **options)
    assert convert(_run_with(tmp_path / "source", path), tmp_path / "hf", "--to", "hf") == 0
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path / "hf"), sentencepiece.SentencePieceProcessor(str(path))
    assert len(theirs) == ours.vocab_size()
    for text in [*TEXTS, " ".join(WORDS * 3), *(["a<sep>b"] if "user_defined_symbols" in options else [])]:
        assert theirs(text)["input_ids"] == ours.encode(text), text
    assert theirs.decode(ours.encode("Hello quick World")) == "Hello quick World"
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2) == (theirs.bos_token_id, theirs.eos_token_id)


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("word", {}, "neither a unigram nor a BPE model"),
        ("bpe", {"user_defined_symbols": ["<sep>"]}, "has user-defined symbols"),
        ("bpe", {"treat_whitespace_as_suffix": True}, "treats spaces in a way"),
    ],
)
def test_what_would_give_other_ids_is_left_out_and_said(tmp_path, capsys, trained, kind, options, message):
    path = trained(kind, **options)
    assert convert(_run_with(tmp_path / "source", path), tmp_path / "hf", "--to", "hf") == 0
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "hf").glob("tokenizer*"))


def test_a_wrong_rebuild_is_noticed(trained, monkeypatch):
    monkeypatch.setattr(rebuilt, "_merges", lambda proto, vocabulary: iter(()))
    with pytest.raises(ValueError, match="rebuilt for Hugging Face it gives"):
        rebuilt.build(trained("bpe"))


def test_a_tokenizer_json_goes_there_and_back(tmp_path, trained, capsys):
    tokenizer, _, _ = rebuilt.build(trained("bpe"))
    tokenizer.save(str(tmp_path / "mine.json"))
    source = _run_with(tmp_path / "source", tmp_path / "mine.json", TokenizerKind.huggingface)
    assert convert(source, tmp_path / "hf", "--to", "hf") == 0
    assert (tmp_path / "hf" / "tokenizer.json").read_bytes() == (tmp_path / "mine.json").read_bytes()
    assert convert(tmp_path / "hf", tmp_path / "ours", "--from", "hf") == 0
    named = load.read(tmp_path / "ours" / "run.yaml").data.tokenizer
    assert named == Tokenizer(kind=TokenizerKind.huggingface, path=str(tmp_path / "ours" / "tokenizer.json"))
    assert (tmp_path / "ours" / "tokenizer.json").read_bytes() == (tmp_path / "mine.json").read_bytes()


def test_a_tokenizer_that_is_gone_is_said(tmp_path, capsys):
    source = _run_with(tmp_path / "source", tmp_path / "gone.model")
    assert convert(source, tmp_path / "hf", "--to", "hf") == 0
    assert "gone.model does not exist" in capsys.readouterr().err


def test_a_tiktoken_file_is_left_out_and_said(tmp_path, capsys):
    (tmp_path / "ranks.tiktoken").write_text("YQ== 0\n")
    source = _run_with(tmp_path / "source", tmp_path / "ranks.tiktoken", TokenizerKind.tiktoken)
    assert convert(source, tmp_path / "hf", "--to", "hf") == 0
    assert "tokenizer: left out, transformers does not load tiktoken" in capsys.readouterr().err
