"""Signatures: each place agrees with the probability of the similarity, for texts of every length."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess.dedup import minhash
from preprocess.dedup.words import words

PLACE_BY_PLACE = minhash.Scheme(minhash.PLACES, 1, 1, 5)  # a band a place, a shingle a word
TEXTS = st.lists(st.text(alphabet="ab é猫.\n", max_size=40), max_size=8)


def sets(common: int, other: int, pairs: int):
    """Pairs of texts of distinct words, of which `common` are in both and `other` in one."""
    rng = random.Random(common)
    for _ in range(pairs):
        drawn = [f"w{n}" for n in rng.sample(range(1 << 30), common + 2 * other)]
        yield " ".join(drawn[: common + other]), " ".join(drawn[:common] + drawn[common + other :])


@pytest.mark.parametrize("common, other", [(1, 1), (3, 1), (10, 10), (60, 20), (200, 100), (900, 100)])
def test_a_place_agrees_with_the_probability_of_the_similarity(common, other):
    """From two words, where most places are filled in the last step, to a thousand, where one round fills all."""
    pairs = list(sets(common, other, 150))
    first, second = (minhash.band_hashes(list(texts), PLACE_BY_PLACE) for texts in zip(*pairs))
    similarity = common / (common + 2 * other)
    agreeing = (first == second).mean(axis=1)
    error = agreeing.std() / np.sqrt(len(pairs)) + 1e-9
    assert abs(agreeing.mean() - similarity) < 4 * error


@pytest.mark.parametrize("length, edits", [(12, 1), (40, 1), (300, 5)])
def test_pairs_are_found_as_often_as_the_curve_says(length, edits):
    """Bands of short texts are not more alike than those of long ones: their places are drawn one by one."""
    scheme = minhash.Scheme(14, 8, 1, 7)
    pairs = list(sets(length - edits, edits, 400))
    first, second = (minhash.band_hashes(list(texts), scheme) for texts in zip(*pairs))
    expected = scheme.found((length - edits) / (length + edits))
    error = np.sqrt(expected * (1 - expected) / len(pairs)) + 1 / len(pairs)
    assert abs((first == second).any(axis=1).mean() - expected) < 4 * error


@settings(max_examples=60)
@given(texts=TEXTS, ngram=st.integers(1, 7))
def test_shingles_are_those_of_a_plain_loop(texts, ngram):
    """Runs of words within one text; fewer words are one shingle; texts without words differ as their characters."""
    hashes, counts = minhash.shingles(texts, ngram)
    split = np.split(hashes, np.cumsum(counts)[:-1]) if texts else []
    names = {}
    for text, own in zip(texts, split):
        each = words([text])[0].tolist()
        expected = [tuple(each[n : n + ngram]) for n in range(len(each) - ngram + 1)] or [tuple(each) or text]
        assert len(own) == len(expected)
        for value, shingle in zip(own.tolist(), expected):
            assert names.setdefault(value, shingle) == shingle
    assert len({shingle: value for value, shingle in names.items()}) == len(names)


@settings(max_examples=40)
@given(texts=TEXTS)
def test_a_text_has_the_same_bands_in_every_batch(texts):
    scheme = minhash.scheme_for(0.7, 2, 1)
    alone = [minhash.band_hashes([text], scheme)[0].tolist() for text in texts]
    assert minhash.band_hashes(texts, scheme).tolist() == alone


def test_groups_that_are_filled_together_change_nothing(monkeypatch):
    texts = [f"{a} {b}" for a in "abcdefgh" for b in "stuvwxyz"]
    whole = minhash.band_hashes(texts, PLACE_BY_PLACE)
    monkeypatch.setattr(minhash, "_PAIRS", 1)
    assert np.array_equal(minhash.band_hashes(texts, PLACE_BY_PLACE), whole)
    assert whole.shape == (64, minhash.PLACES)
