"""The fast library is used when it gives the same ids on this run's texts, and for no other reason."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess.tokenizer import fast
from tests.preprocess.conftest import WORDS
from tests.preprocess.test_tokenizer import opened, opened_json, special


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(list(" \t\r\n'sd1<|/>\u2581"))))
)
@pytest.mark.parametrize("file", ["sentencepiece_model", "tokenizer_json"])
def test_any_text_has_the_ids_of_the_exact_library(request, file, text):
    path = request.getfixturevalue(file)
    exact, quick = _pair(path)
    assert np.array_equal(exact.encode([text])[0], quick.encode([text])[0])


def _pair(path: str, kept: dict = {}) -> tuple:  # noqa: B006
    if path not in kept:
        kept[path] = opened(path), opened(path, fast=True)
        assert "gigatoken" in kept[path][1].exact
    return kept[path]


def test_it_says_on_how_many_texts_it_was_proved(tokenizer_json):
    few, more = (opened(tokenizer_json, True, [WORDS] * n).exact for n in (0, 10))
    assert few.startswith("gigatoken ") and "equal to tokenizers " in few
    assert int(more.split()[-2]) == int(few.split()[-2]) + 10


class Lying:
    """gigatoken but for one text, or one that dies as Rust does."""

    def __init__(self, right, wrong_on: str = "", dies: bool = False) -> None:
        self.right, self.wrong_on, self.dies = right, wrong_on, dies

    def encode(self, text: str):
        if self.dies:
            raise Panic("index out of bounds\n  at src/lib.rs")
        return self.right.encode("other" if self.wrong_on in text else text)


class Panic(BaseException):
    """As pyo3's PanicException, which is no Exception."""


@pytest.mark.parametrize("lie, said", [
    (dict(wrong_on="wizards"), "(gigatoken differs on 'the quick brown fox jumps over the lazy ')"),
    (dict(wrong_on="\u2581"), "(gigatoken differs on '\u2581lower one eighth')"),
    (dict(dies=True), "(gigatoken cannot load it: index out of bounds)"),
])  # fmt: skip
def test_one_other_id_in_the_sample_or_in_odd_texts_is_enough(tokenizer_json, monkeypatch, lie, said):
    load = fast._load
    monkeypatch.setattr(fast, "_load", lambda *given: Lying(load(*given), **lie))
    model = opened(tokenizer_json, True, ["fine", WORDS])
    assert model.exact.startswith("tokenizers ") and model.exact.endswith(said)
    assert np.array_equal(model.encode([WORDS])[0], opened(tokenizer_json).encode([WORDS])[0])


def test_it_need_not_be_installed(tokenizer_json, monkeypatch):
    monkeypatch.setitem(sys.modules, "gigatoken._load.sentencepiece", None)
    assert "(gigatoken is not there: " in opened(tokenizer_json, True).exact


def test_it_is_not_used_when_it_is_not_wanted(tokenizer_json):
    assert "gigatoken" not in opened(tokenizer_json, False).exact


@pytest.mark.parametrize("is_special", [True, False])
def test_added_tokens_are_those_of_the_exact_library(tokenizer_json, is_special):
    """Special: their spelling stays text. Others: found in text, by either library."""
    content = json.loads(Path(tokenizer_json).read_text())
    content["added_tokens"] += [special(300, "<|tool|>", is_special), special(301, "quick brown", is_special)]
    exact, quick = opened_json(content), opened_json(content, fast=True)
    assert quick.exact.startswith("gigatoken") and quick.vocab_size == 302
    text = f"x<|tool|>y {WORDS} <|tool|></s>"
    ids = quick.encode([text])[0]
    assert np.array_equal(ids, exact.encode([text])[0]) and quick.decode(ids.tolist()) == text
    assert (300 in ids, 301 in ids, 1 in ids) == (not is_special, not is_special, False)
