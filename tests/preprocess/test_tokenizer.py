"""Both kinds of tokenizers: exact ids, the end-of-document id, control tokens in text, and training."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_ext.config.schema import SentencePieceModel, TokenizerKind
from preprocess import tokenizer, vocabulary
from preprocess.document import Document
from tests.preprocess.conftest import WORDS

ODD = [
    "a\0b",
    "a\x07b",
    "a\u200db",
    "  two  spaces\n\n\tand a tab\r\n",
    " leading",
    "\n",
    "žluťoučký 猫 😀",
    "</s><|endoftext|>",
]


def opened(path: str) -> tokenizer.Tokenizer:
    kind = TokenizerKind.huggingface if path.endswith(".json") else TokenizerKind.sentencepiece
    return tokenizer.open_tokenizer(kind, Path(path).read_bytes(), path)


@pytest.fixture(params=["sentencepiece", "huggingface"])
def either(request, sentencepiece_model, tokenizer_json):
    return opened(sentencepiece_model if request.param == "sentencepiece" else tokenizer_json)


def test_text_is_restored(either):
    """D17: control characters and rare ones too, never <unk>."""
    for text, ids in zip(ODD, either.encode(ODD)):
        assert either.decode(ids) == text
        assert either.unknown not in ids and either.eod not in ids


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")))
def test_any_text_is_restored_by_a_trained_model(sentencepiece_model, text):
    """U+2581 is left out: SentencePiece writes a space so, and decodes it as one."""
    model = opened(sentencepiece_model)
    assert model.decode(model.encode([text])[0]) == text


def test_ids_are_those_of_the_library(sentencepiece_model, tokenizer_json):
    import sentencepiece
    from tokenizers import Tokenizer as Library

    theirs = sentencepiece.SentencePieceProcessor(model_file=sentencepiece_model)
    assert opened(sentencepiece_model).encode([WORDS, "x"]) == [theirs.encode(WORDS), theirs.encode("x")]
    library = Library.from_file(tokenizer_json)
    library.no_truncation()
    library.no_padding()
    assert opened(tokenizer_json).encode([WORDS]) == [library.encode(WORDS, add_special_tokens=False).ids]


def test_nothing_is_added_or_cut(tokenizer_json):
    """D06, D07: that file's post-processor adds <s> and </s>, and it truncates to 4 and pads to 8."""
    model = opened(tokenizer_json)
    ids = model.encode(["hi", "", WORDS])
    assert len(ids[0]) <= 2 and ids[1] == [] and len(ids[2]) > 8
    assert not {0, 1} & set(sum(ids, []))


def with_tokens(path: str, *names: str, **changes) -> bytes:
    """tokenizer.json with other special tokens than <s> </s>."""
    content = json.loads(Path(path).read_text())
    vocabulary_ = content["model"]["vocab"]
    for old in ("<s>", "</s>"):
        del vocabulary_[old]
    content["post_processor"] = None
    content["added_tokens"] = [
        {"id": 1000 + place, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for place, name in enumerate(names)
    ]  # fmt: skip
    vocabulary_.update({name: 1000 + place for place, name in enumerate(names)})
    content["model"].update(changes)
    return json.dumps(content).encode()


@pytest.mark.parametrize("names, end", [
    (["</s>", "<|endoftext|>"], 1001), (["<|end_of_text|>", "<|eot_id|>"], 1000), (["x", "eos"], 1001),
    (["<eos>"], 1000),
])  # fmt: skip
def test_end_of_document_of_a_tokenizer_json(tokenizer_json, names, end):
    model = tokenizer.open_tokenizer(TokenizerKind.huggingface, with_tokens(tokenizer_json, *names), "t")
    assert tokenizer.end_of_document(model, "t") == end
    assert model.vocab_size == 1000 + len(names), "D09: the greatest id counts, not the number of entries"


def test_no_end_of_document_is_an_error(tokenizer_json):
    model = tokenizer.open_tokenizer(TokenizerKind.huggingface, with_tokens(tokenizer_json, "stop"), "mine.json")
    with pytest.raises(ValueError, match="mine.json has no end-of-document token.*append_eod=false"):
        tokenizer.end_of_document(model, "mine.json")


def test_sentencepiece_ends_with_its_eos(sentencepiece_model):
    assert opened(sentencepiece_model).eod == 2 and opened(sentencepiece_model).unknown == 0


def test_unknown_of_a_tokenizer_json(tokenizer_json):
    blob = with_tokens(tokenizer_json, "</s>", "<unk>", unk_token="<unk>")
    assert tokenizer.open_tokenizer(TokenizerKind.huggingface, blob, "t").unknown == 1001
    unigram = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["?", 0.0], ["a", -1.0]]},
    }
    model = tokenizer.open_tokenizer(TokenizerKind.huggingface, json.dumps(unigram).encode(), "t")
    assert model.unknown == 0 and 0 in model.encode(["ab"])[0]


@pytest.mark.parametrize("kind", list(TokenizerKind))
@pytest.mark.parametrize("blob", [b"", b"nonsense", b"\xff\xfe", b"{}", b"[]"])
def test_what_is_no_tokenizer_is_refused(kind, blob):
    with pytest.raises(ValueError, match=f"t.bin is not a {kind} tokenizer"):
        tokenizer.open_tokenizer(kind, blob, "t.bin")


def test_a_tokenizer_of_the_other_kind_is_refused(sentencepiece_model, tokenizer_json):
    with pytest.raises(ValueError, match="data.tokenizer.kind"):
        tokenizer.open_tokenizer(TokenizerKind.huggingface, Path(sentencepiece_model).read_bytes(), "t")
    with pytest.raises(ValueError, match="data.tokenizer.kind"):
        tokenizer.open_tokenizer(TokenizerKind.sentencepiece, Path(tokenizer_json).read_bytes(), "t")


# --- training ----------------------------------------------------------------------------------------------------


def train(path: Path, text: str, size: int = 300, model: SentencePieceModel = SentencePieceModel.bpe) -> bytes:
    return vocabulary.train([Document(text, "a", {}, "a", 1)], size, model, str(path))


@pytest.mark.parametrize("model", list(SentencePieceModel))
def test_training_is_deterministic(tmp_path, model):
    blobs = [train(tmp_path / name / "t.model", WORDS * 30, 290, model) for name in ("new", "newer")]
    assert blobs[0] == blobs[1] == (tmp_path / "new/t.model").read_bytes()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["t.model"], "no temporary file is left"
    assert opened(str(tmp_path / "new/t.model")).vocab_size == 290


@pytest.mark.parametrize("text, size, said", [
    (WORDS, 259, "must be above 259"),
    (WORDS, 4096, "=4096 does not fit 81 characters of text: Vocabulary size too high"),
    ("".join(map(chr, range(0x4E00, 0x5200))), 300, "=300 does not fit 1024 characters"),
    ("", 300, "no document"),
])  # fmt: skip
def test_sizes_that_cannot_be(tmp_path, text, size, said):
    with pytest.raises(ValueError, match=said):
        train(tmp_path / "t.model", text, size)
    assert not list(tmp_path.iterdir())


@settings(deadline=None)
@given(text=st.text(st.sampled_from("ab\né😀"), max_size=300))
def test_pieces_join_to_the_text(text):
    """Nothing is lost or doubled, and no piece is longer than SentencePiece reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "PIECE_BYTES", 40)
        pieces = list(vocabulary._pieces(text))
    assert "".join(pieces) == text
    assert all(0 < len(piece.encode()) <= 40 for piece in pieces)


def test_the_sample_is_bounded_uniform_and_the_same_each_time(monkeypatch):
    monkeypatch.setattr(vocabulary, "SAMPLE_BYTES", 100 * vocabulary.PIECE_BYTES)
    sample = vocabulary._sample(map(str, range(10_000)))
    assert len(set(sample)) == 100 and sample == vocabulary._sample(map(str, range(10_000)))
    assert 4000 < sum(map(int, sample)) / 100 < 6000


def test_fingerprint_is_the_sha256_of_the_file(sentencepiece_model):
    blob = Path(sentencepiece_model).read_bytes()
    assert tokenizer.fingerprint(tokenizer.read(sentencepiece_model)) == hashlib.sha256(blob).hexdigest()
