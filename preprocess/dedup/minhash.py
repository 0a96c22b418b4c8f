"""Texts -> hashes of the bands of their MinHash signatures, and the choice of bands for a similarity.

Signatures are those of "Fast Similarity Sketching" (Dahlgaard, Knudsen, Thorup 2017): a shingle goes to one place of
the signature, not to all, and only places that stay empty are filled in further rounds. A place of two of them agrees
with the probability of the texts' Jaccard similarity, as with classic MinHash, for a fraction of the work.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Iterator, List, Tuple

import numpy as np

from preprocess.dedup.words import mix, words

PLACES = 112  # of a signature: 14 bands of 8 at similarity 0.7, as FineWeb has (Penedo et al. 2024)
_ROUNDS = 12
_PAIRS = 1 << 19  # (shingle, empty place) filled at once
_EMPTY = np.uint32(0xFFFFFFFF)
_NEXT_WORD = np.uint64(0xD1342543DE82EF95)


@dataclass(frozen=True)
class Scheme:
    bands: int
    rows: int
    ngram: int
    seed: int

    def found(self, similarity: float) -> float:
        """The probability that two texts of this similarity agree in all places of some band."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)


def scheme_for(similarity: float, ngram: int, seed: int) -> Scheme:
    """Of those with at most PLACES the one that finds most nearly half of the pairs of this similarity."""
    schemes = [Scheme(PLACES // rows, rows, ngram, seed) for rows in range(1, PLACES + 1)]
    return min(schemes, key=lambda one: abs(one.found(similarity) - 0.5))


def standard_error(places: int, similarity: float) -> float:
    """Of the share of places that agree."""
    return float(np.sqrt(similarity * (1 - similarity) / places))


def jaccard(one: str, other: str, ngram: int) -> float:
    """The exact similarity of two texts' sets of shingles."""
    first, second = (np.unique(shingles([text], ngram)[0]) for text in (one, other))
    common = len(np.intersect1d(first, second, assume_unique=True))
    return common / (len(first) + len(second) - common)


def shingles(texts: List[str], ngram: int) -> Tuple[np.ndarray, np.ndarray]:
    """-> hashes uint64, text after text, and how many of each (1 or more).

    A text of fewer than `ngram` words is one shingle as a whole; one without words, its very characters.
    """
    hashes, owners = words(texts)
    counts = np.bincount(owners, minlength=len(texts))
    short, begins = np.flatnonzero(counts < ngram), np.cumsum(counts) - counts
    numbers = np.maximum(counts - ngram + 1, 1)
    found, whole = np.empty(numbers.sum(), np.uint64), np.zeros(numbers.sum(), bool)
    places = (np.cumsum(numbers) - numbers)[short]
    whole[places] = True
    found[~whole] = _windows(hashes, counts, ngram)
    found[places] = _whole(hashes, begins[short], counts[short], ngram)
    for place, number in zip(places[counts[short] == 0], short[counts[short] == 0]):
        raw = texts[number].encode("utf-8", "surrogatepass")
        found[place] = int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")
    return found, numbers


def band_hashes(texts: List[str], scheme: Scheme) -> np.ndarray:
    """uint64 [texts, bands]. Each row depends on its text alone."""
    hashes, counts = shingles(texts, scheme.ngram)
    size = scheme.bands * scheme.rows
    salts = np.arange(1, 1 + _ROUNDS + size + scheme.rows + scheme.bands, dtype=np.uint64)
    salts = mix(salts + np.uint64(scheme.seed << 20))
    rounds, places, rows, bands = np.split(salts, np.cumsum([_ROUNDS, size, scheme.rows]))
    signatures = _signatures(hashes, counts, rounds, places)
    banded = signatures.reshape(len(texts), scheme.bands, scheme.rows).astype(np.uint64)
    banded *= rows | np.uint64(1)
    return mix(banded.sum(axis=2, dtype=np.uint64) + bands)


def _windows(hashes: np.ndarray, counts: np.ndarray, ngram: int) -> np.ndarray:
    """Of all runs of n words within one text."""
    number = len(hashes) - ngram + 1
    if number <= 0:
        return np.zeros(0, np.uint64)
    found = hashes[:number].copy()
    for k in range(1, ngram):
        found *= _NEXT_WORD
        found += hashes[k : number + k]
    inside = np.ones(number, bool)
    crossing = (np.cumsum(counts)[:, None] - np.arange(1, ngram)).ravel()  # they begin among the last n - 1 words
    inside[crossing[(crossing >= 0) & (crossing < number)]] = False
    return mix(found[inside])


def _whole(hashes: np.ndarray, begins: np.ndarray, counts: np.ndarray, ngram: int) -> np.ndarray:
    found = counts.astype(np.uint64)
    for k in range(ngram - 1):
        there = counts > k
        found[there] = found[there] * _NEXT_WORD + hashes[begins[there] + k]
    return mix(found)


def _signatures(hashes: np.ndarray, counts: np.ndarray, rounds: np.ndarray, places: np.ndarray) -> np.ndarray:
    """uint32 [texts, places]."""
    signatures = np.full((len(counts), len(places)), _EMPTY, np.uint32)
    active = np.arange(len(counts))  # texts with empty places; `owners` are positions in it
    owners = np.repeat(active, counts)
    for salt in rounds:
        signatures[active] = now = _one_round(signatures[active], hashes, owners, salt)
        empty = (now == _EMPTY).any(axis=1)
        active, left = active[empty], empty[owners]
        hashes, owners = hashes[left], (np.cumsum(empty) - 1)[owners[left]]
        if not len(active):
            break
    for first, last in _groups(signatures[active], np.bincount(owners, minlength=len(active))):
        mine = slice(*np.searchsorted(owners, [first, last]))
        _fill(signatures, active[first:last], hashes[mine], np.bincount(owners[mine] - first), places)
    return signatures


def _one_round(signatures: np.ndarray, hashes: np.ndarray, owners: np.ndarray, salt: np.uint64) -> np.ndarray:
    """Each shingle draws a place and a rank; the least rank takes a place that is empty."""
    drawn, size = mix(hashes ^ salt), signatures.shape[1]
    places = ((drawn >> np.uint64(32)) * np.uint64(size) >> np.uint64(32)).astype(np.int64)
    taken = np.full(signatures.size, _EMPTY, np.uint32)
    np.minimum.at(taken, owners * size + places, _ranks(drawn))
    return np.where(signatures == _EMPTY, taken.reshape(signatures.shape), signatures)


def _fill(
    signatures: np.ndarray, active: np.ndarray, hashes: np.ndarray, counts: np.ndarray, places: np.ndarray
) -> None:
    """Classic MinHash for the places that are empty still: of short texts only."""
    texts, empty = np.nonzero(signatures[active] == _EMPTY)
    lengths = counts[texts]
    begins = np.cumsum(lengths) - lengths
    pairs = np.repeat((np.cumsum(counts) - counts)[texts] - begins, lengths) + np.arange(lengths.sum())
    drawn = _ranks(mix(hashes[pairs] ^ np.repeat(places[empty], lengths)))
    signatures[active[texts], empty] = np.minimum.reduceat(drawn, begins)


def _ranks(drawn: np.ndarray) -> np.ndarray:
    return np.minimum(drawn.astype(np.uint32), _EMPTY - np.uint32(1))  # the low bits; the high ones chose the place


def _groups(signatures: np.ndarray, counts: np.ndarray) -> Iterator[Tuple[int, int]]:
    """Ranges of texts with about _PAIRS (shingle, empty place)."""
    pairs = np.cumsum((signatures == _EMPTY).sum(axis=1) * counts)
    first = 0
    while first < len(counts):
        before = pairs[first - 1] if first else 0
        last = max(int(np.searchsorted(pairs, before + _PAIRS, "right")), first + 1)
        yield first, last
        first = last
