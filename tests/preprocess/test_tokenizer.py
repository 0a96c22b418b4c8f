"""All kinds of tokenizers: exact ids, beginning and end, control tokens in text, what the self-test tells."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_ext.config.schema import Tokenizer, TokenizerKind
from preprocess import tokenizer
from preprocess.shards import dtype_for
from preprocess.tokenizer import tiktoken
from preprocess.tokenizer.frame import frame
from preprocess.tokenizer.selftest import self_test
from tests.preprocess.conftest import WORDS

ODD = [
    "a\0b",
    "a\x07b",
    "a\u200db",
    "  two  spaces \n\n\tand a tab\r\n",
    " leading",
    "\n",
    "žluťoučký 猫 😀",
    "x</s><s> <unk><|endoftext|>y",
]


def opened(path: str, fast: bool = False, sample=()) -> tokenizer.Tokenizer:
    kind = {".json": "huggingface", ".model": "sentencepiece"}.get(Path(path).suffix, "tiktoken")
    return tokenizer.open_tokenizer(
        Tokenizer(kind=TokenizerKind(kind), path=path, fast=fast), Path(path).read_bytes(), sample
    )


def opened_json(content: dict, **options) -> tokenizer.Tokenizer:
    settings_ = Tokenizer(kind=TokenizerKind.huggingface, path="t.json", **{"fast": False, **options})
    return tokenizer.open_tokenizer(settings_, json.dumps(content).encode())


def rows(model: tokenizer.Tokenizer, texts: list) -> list:
    ids, lengths = model.encode(texts)
    assert ids.dtype == np.int32 and lengths.dtype == np.int64 and lengths.sum() == len(ids)
    return [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])]


@pytest.fixture
def rank_file(tmp_path, monkeypatch) -> str:
    """Bytes, and "th"; as an encoding of that size."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"th"]
    path = tmp_path / "tiny.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
    pattern, _, _ = tiktoken.PATTERNS["r50k_base"]
    monkeypatch.setitem(tiktoken.PATTERNS, "tiny", (pattern, 257, {"<|endoftext|>": 300}))
    return str(path)


@pytest.fixture(params=["sentencepiece", "sentencepiece fast", "huggingface", "huggingface fast", "tiktoken"])
def each_kind(request, sentencepiece_model, tokenizer_json, rank_file):
    kind, _, fast = request.param.partition(" ")
    paths = {"sentencepiece": sentencepiece_model, "huggingface": tokenizer_json, "tiktoken": rank_file}
    model = opened(paths[kind], fast=bool(fast))
    assert model.exact.startswith("gigatoken") == bool(fast), model.exact
    return model


# --- text <-> ids ------------------------------------------------------------------------------------------------


def test_text_is_restored_and_never_becomes_a_control_token(each_kind):
    """D17: control characters and rare ones too, never <unk>."""
    for text, ids in zip(ODD, rows(each_kind, ODD)):
        assert each_kind.decode(ids) == text
        assert not {each_kind.unknown, each_kind.eod, each_kind.bos} & set(ids)


def test_no_texts_and_empty_texts(each_kind):
    assert [part.tolist() for part in each_kind.encode([])] == [[], []]
    ids, lengths = each_kind.encode(["", "a", ""])
    assert lengths.tolist() == [0, len(ids), 0]


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")))
def test_any_text_is_restored_by_a_trained_model(sentencepiece_model, text):
    """U+2581 is left out: SentencePiece writes a space so, and decodes it as one."""
    model = opened(sentencepiece_model)
    assert model.decode(model.encode([text])[0].tolist()) == text


def test_ids_are_those_of_the_library(sentencepiece_model, tokenizer_json, rank_file):
    import sentencepiece
    from tokenizers import Tokenizer as Library

    theirs = sentencepiece.SentencePieceProcessor(model_file=sentencepiece_model)
    assert rows(opened(sentencepiece_model), [WORDS, "x"]) == [theirs.encode(WORDS), theirs.encode("x")]
    library = Library.from_file(tokenizer_json)
    library.no_truncation()
    library.no_padding()
    assert rows(opened(tokenizer_json), [WORDS]) == [library.encode(WORDS, add_special_tokens=False).ids]
    assert rows(opened(rank_file), ["the t"]) == [[256, ord("e"), ord(" "), ord("t")]]


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("bos, eod, expected", [(None, None, []), (None, 1, [1]), (0, 1, [0, 1]), (0, None, [0])])
def test_beginning_and_end_are_exactly_those_asked_for(tokenizer_json, fast, bos, eod, expected):
    """D06, D07: that file's post-processor adds <s> and </s>, and it truncates to 4 and pads to 8."""
    ids, lengths = opened(tokenizer_json, fast).encode(["hi", "", WORDS])
    assert not {0, 1} & set(ids.tolist()) and lengths[1] == 0 and lengths[2] > 8
    plain = ids[: lengths[0]].tolist()
    framed, lengths = frame(ids, lengths, bos, eod)
    hi, empty, words = (row.tolist() for row in np.split(framed, np.cumsum(lengths)[:-1]))
    assert empty == expected
    assert hi == [0] * (bos == 0) + plain + [1] * (eod == 1)
    assert (words.count(0), words.count(1)) == (expected.count(0), expected.count(1))


@given(documents=st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6), bos=st.booleans(), eod=st.booleans())
def test_a_frame_is_put_around_each_document(documents, bos, eod):
    begin, end = (70 if bos else None), (71 if eod else None)
    ids, lengths = frame(*tokenizer.flat(documents), begin, end)
    framed = [[70] * bos + document + [71] * eod for document in documents]
    assert ids.tolist() == sum(framed, []) and lengths.tolist() == [len(one) for one in framed]


# --- control tokens ----------------------------------------------------------------------------------------------


def special(number: int, text: str, is_special: bool = True) -> dict:
    return {"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": is_special}  # fmt: skip


def file(model: dict, *added: dict, **parts) -> dict:
    return {"version": "1.0", "added_tokens": list(added), "model": model, **parts}


LETTERS = ["<", "/", "s", ">", "a"]
UNIGRAM = {"type": "Unigram", "unk_id": 0,
           "vocab": [["<unk>", 0.0], ["</s>", 0.0], *([letter, -2.0] for letter in LETTERS)]}  # fmt: skip
MERGING = {"type": "BPE", "vocab": {"</s>": 0, **{c: i for i, c in enumerate([*LETTERS, "</", "s>"], 1)}},
           "merges": [["<", "/"], ["s", ">"], ["</", "s>"]]}  # fmt: skip
WHOLE = {"type": "BPE", "vocab": {"</s>": 0, **{c: i for i, c in enumerate(LETTERS, 1)}}, "merges": [],
         "ignore_merges": True}  # fmt: skip


@pytest.mark.parametrize("model, end", [(UNIGRAM, 1), (MERGING, 0), (WHOLE, 0)], ids=["unigram", "merges", "whole"])
def test_a_model_that_would_make_control_tokens_of_text_does_not(model, end):
    """The library leaves added tokens alone, but these models have the token in their own vocabulary."""
    made = opened_json(file(model, special(end, "</s>")))
    assert made.eod == end and made.vocab_size == len(model["vocab"])
    (ids,) = rows(made, ["a</s>"])
    assert end not in ids and made.decode(ids).replace(" ", "") == "a</s>" and made.decode([end]) == "</s>"
    assert self_test(made, []).controls_stay_text


def words(*names: str, is_special: bool = True, **parts) -> dict:
    letters = sorted({letter for name in names for letter in name})
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    added = [special(1000 + i, name, is_special) for i, name in enumerate(names)]
    vocabulary.update({name: 1000 + i for i, name in enumerate(names)})
    return file({"type": "BPE", "vocab": vocabulary, "merges": []}, *added, **parts)


@pytest.mark.parametrize("names, end, begin", [
    (["</s>", "<|endoftext|>", "<s>"], 1001, 1002), (["<|end_of_text|>", "<|begin_of_text|>"], 1000, 1001),
    (["x", "eos"], 1001, None), (["<eos>", "<bos>"], 1000, 1001),
    (["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"], 1001, 1000),
    (["<|im_end|>", "</s>"], 1001, None),
])  # fmt: skip
def test_beginning_and_end_of_a_tokenizer_json(names, end, begin):
    model = opened_json(words(*names))
    assert tokenizer.end_of_document(model, "t") == end and model.bos == begin
    assert model.vocab_size == 1000 + len(names), "D09: the greatest id counts, not the number of entries"


def test_a_word_of_the_text_is_no_end():
    """A token called eos that is not special is the word `eos`, and would end a document in its midst."""
    model = opened_json(words("eos", "bos", is_special=False))
    assert model.eod is None and model.bos is None


@pytest.mark.parametrize("of, said", [
    (tokenizer.end_of_document, "mine.json has no end-of-document token.*append_eod=false"),
    (tokenizer.beginning, "mine.json has no beginning token.*prepend_bos=false"),
])  # fmt: skip
def test_no_end_or_beginning_is_an_error(of, said):
    with pytest.raises(ValueError, match=said):
        of(opened_json(words("stop")), "mine.json")


def test_ids_of_sentencepiece_and_tiktoken(sentencepiece_model, rank_file):
    model, ranks = opened(sentencepiece_model), opened(rank_file)
    assert (model.unknown, model.bos, model.eod) == (0, 1, 2)
    assert (ranks.unknown, ranks.bos, ranks.eod, ranks.vocab_size) == (None, None, 300, 301)


def test_unknown_of_a_tokenizer_json():
    named = words("</s>", "<unk>")
    named["model"]["unk_token"] = "<unk>"
    assert opened_json(named).unknown == 1001
    model = opened_json(file(UNIGRAM))
    assert model.unknown == 0 and 0 in rows(model, ["aü"])[0]


@pytest.mark.parametrize("is_special", [True, False])
def test_the_greatest_id_that_can_occur_decides(is_special):
    """D09: 65000 words, one token far above them."""
    vocabulary = {f"w{i}": i for i in range(2000)} | {"<big>": 70000}
    content = file({"type": "BPE", "vocab": vocabulary, "merges": []}, special(70000, "<big>", is_special))
    model = opened_json(content)
    assert model.vocab_size == 70001 and dtype_for(model.vocab_size) == np.int32
    assert self_test(model, []).unused_ids == 70001 - 2001


def test_bpe_dropout_is_off(tokenizer_json):
    content = json.loads(Path(tokenizer_json).read_text())
    content["model"]["dropout"] = 0.9
    for fast in (False, True):
        assert rows(opened_json(content, fast=fast), [WORDS] * 3) == rows(opened(tokenizer_json), [WORDS] * 3)


# --- self-test ---------------------------------------------------------------------------------------------------


def test_a_byte_level_tokenizer_restores_all(tokenizer_json):
    told = self_test(opened(tokenizer_json), [WORDS])
    assert told.restored == told.tried > 30 and not told.not_restored and told.controls_stay_text
    assert (told.bos, told.eod, told.unknown, told.vocab_size, told.unused_ids) == (0, 1, None, 300, 0)


@pytest.mark.parametrize("token", ["č", "<č>"])
def test_an_added_token_that_decodes_to_another_character_is_told(tokenizer_json, token):
    """D08: the byte-level decoder takes letters of added tokens for bytes; no text of the input need have it."""
    content = json.loads(Path(tokenizer_json).read_text())
    content["added_tokens"].append(special(300, token, is_special=False))
    told = self_test(opened_json(content), [])
    assert told.restored == told.tried - 3 and f"'x{token}y' becomes " in told.not_restored[0]


def test_a_model_that_drops_characters_silently_is_told():
    """No <unk> and no bytes to fall back to."""
    told = self_test(opened_json(file(WHOLE, decoder={"type": "Fuse"})), ["a" * 50 + "üa"])
    assert told.not_restored[0].endswith("aaaüa' becomes 'aaaaaaaaaaaaaaaaaaaaa'")
    assert len(told.not_restored) == 5 < told.tried - told.restored


def test_text_that_becomes_unknown_is_told(tmp_path):
    """D17: SentencePiece without bytes to fall back to loses NUL and U+200D."""
    import sentencepiece

    (tmp_path / "text").write_text(WORDS * 30)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "plain"), vocab_size=35, minloglevel=2, num_threads=1
    )
    model = opened(str(tmp_path / "plain.model"), fast=True)
    assert "only BPE" in model.exact and "sentencepiece" in model.exact
    told = self_test(model, ["a\0b", "a\u200db", "a"])
    assert "⁇" in told.not_restored[0] and "⁇" in told.not_restored[1]
    assert model.unknown in model.encode(["a\0b"])[0]


# --- wrong files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(TokenizerKind))
@pytest.mark.parametrize("blob", [b"", b"nonsense", b"\xff\xfe", b"{}", b"[]", b'{"model": {}}', b"YQ== 0\n"])
def test_what_is_no_tokenizer_is_refused(kind, blob):
    with pytest.raises(ValueError, match=f"t.bin is not a {kind} tokenizer"):
        tokenizer.open_tokenizer(Tokenizer(kind=kind, path="t.bin"), blob)


def test_a_tokenizer_of_another_kind_is_refused(sentencepiece_model, tokenizer_json, rank_file):
    paths = [sentencepiece_model, tokenizer_json, rank_file]
    for kind, own in zip(TokenizerKind, paths):
        for path in set(paths) - {own}:
            with pytest.raises(ValueError, match="set data.tokenizer.kind to one of"):
                tokenizer.open_tokenizer(Tokenizer(kind=kind, path="t"), Path(path).read_bytes())


@pytest.mark.parametrize("kind, pattern, said", [
    (TokenizerKind.tiktoken, "cl100k", "pattern=cl100k; known are r50k_base.*cl100k_base"),
    (TokenizerKind.tiktoken, "cl100k_base", "has 257 ranks, cl100k_base has 100256"),
    (TokenizerKind.huggingface, "gpt2", "pattern=gpt2 is for data.tokenizer.kind=tiktoken, not huggingface"),
])  # fmt: skip
def test_patterns_that_cannot_be(rank_file, kind, pattern, said):
    with pytest.raises(ValueError, match=said):
        tokenizer.open_tokenizer(Tokenizer(kind=kind, path="t", pattern=pattern), Path(rank_file).read_bytes())


def test_no_file(tmp_path):
    for path, said in (("", "path is empty"), (str(tmp_path / "gone"), "gone does not exist")):
        with pytest.raises(ValueError, match=said):
            tokenizer.read(path)


def test_fingerprint_is_the_sha256_of_the_file(sentencepiece_model):
    blob = Path(sentencepiece_model).read_bytes()
    assert tokenizer.fingerprint(tokenizer.read(sentencepiece_model)) == hashlib.sha256(blob).hexdigest()


def test_opening_imports_only_what_it_uses(sentencepiece_model, tokenizer_json):
    """awkward, gigatoken's own way to return ids, costs each worker time and memory."""
    code = f"""
import sys
from tests.preprocess.test_tokenizer import opened
assert opened({tokenizer_json!r}, fast=True).exact.startswith("gigatoken")
assert not {{"torch", "transformers", "awkward", "sentencepiece", "tiktoken"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
