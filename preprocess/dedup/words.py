"""Texts -> a 64-bit hash of each word, for many texts at once and without a Python object a word.

A word is a run of letters and digits of any script, case folded by str.lower; ASCII, Latin-1, general and CJK
punctuation separate words. Chinese characters, kana and full-width forms are words of one character: there is no space
between words there. All is decided on UTF-8 bytes: a word's hash is the sum of table[byte] * B^position over its bytes,
read off one running sum and multiplied by B^-start (all modulo 2^64, where an odd B has an inverse).
"""

from __future__ import annotations

from functools import lru_cache
from typing import List, Tuple

import numpy as np

BLOCK_BYTES = 1 << 18  # of text hashed at a time: bounds memory, and stays in the processor's cache
_BASE = 0x9E3779B97F4A7C15
_SEED = 0x5EED


def mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014): each bit of the outcome depends on all of x, uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def words(texts: List[str]) -> Tuple[np.ndarray, np.ndarray]:
    """-> hashes uint64 [words], owners uint32 [words]: the number of the text, ascending."""
    hashes, owners = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
    waiting: List[bytes] = []
    numbers: List[int] = []
    size = 0
    for number, text in enumerate(texts):
        for piece in _pieces(text.lower().encode("utf-8", "surrogatepass")):
            waiting.append(piece)
            numbers.append(number)
            size += len(piece) + 1
            if size >= BLOCK_BYTES:
                _add(waiting, numbers, hashes, owners)
                waiting, numbers, size = [], [], 0
    if waiting:
        _add(waiting, numbers, hashes, owners)
    return np.concatenate(hashes), np.concatenate(owners)


def _pieces(text: bytes) -> List[bytes]:
    """A long text in pieces of about a block, cut at spaces; where there is none, between characters."""
    found = []
    while len(text) > 2 * BLOCK_BYTES:
        end = max(text.rfind(b" ", BLOCK_BYTES, 2 * BLOCK_BYTES), text.rfind(b"\n", BLOCK_BYTES, 2 * BLOCK_BYTES))
        end = end if end > 0 else BLOCK_BYTES
        while end > BLOCK_BYTES - 4 and text[end] & 0xC0 == 0x80:
            end -= 1
        found.append(text[:end])
        text = text[end:]
    return [*found, text]


def _add(parts: List[bytes], numbers: List[int], hashes: List[np.ndarray], owners: List[np.ndarray]) -> None:
    data = np.frombuffer(b"\n".join(parts), np.uint8)
    if not len(data):
        return
    starts, ends = _bounds(data)
    power, inverse = _powers(1 << (len(data) - 1).bit_length())
    with np.errstate(over="ignore"):
        running = np.zeros(len(data) + 1, np.uint64)
        np.cumsum(_table()[data] * power[: len(data)], out=running[1:])
        hashes.append(mix((running[ends] - running[starts]) * inverse[starts]))
    first = np.cumsum([0, *(len(part) + 1 for part in parts[:-1])])
    owners.append(np.asarray(numbers, np.uint32)[np.searchsorted(first, starts, "right") - 1])


def _bounds(data: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """First byte of each word, and the byte after its last."""
    inside = _letters()[data]
    single = np.zeros(len(data), bool)  # first bytes of characters that are words
    if data.max() >= 0x80:
        padded = np.concatenate([data, np.zeros(2, np.uint8)])
        second, third = padded[1:-1], padded[2:]
        latin = data == 0xC2
        general = (data == 0xE2) & ((second == 0x80) | ((second == 0x81) & (third < 0xB0)))
        cjk = (data == 0xE3) & (second == 0x80)
        for places, length in ((latin, 2), (general, 3), (cjk, 3)):
            for start in (np.flatnonzero(places) + step for step in range(length)):
                inside[start[start < len(data)]] = False
        single = (((data >= 0xE3) & (data <= 0xE9)) | ((data == 0xEF) & (second == 0xBC))) & inside
    before = np.concatenate([[False], inside[:-1]])
    after_single = np.concatenate([np.zeros(3, bool), single[:-3]])[: len(data)]
    begins = inside & (~before | single | after_single)
    starts = np.flatnonzero(begins)
    last = inside & np.concatenate([~inside[1:] | begins[1:], [True]])
    return starts, np.flatnonzero(last) + 1


@lru_cache(maxsize=1)
def _letters() -> np.ndarray:
    table = np.zeros(256, bool)
    table[[*range(48, 58), *range(65, 91), *range(97, 123), *range(128, 256)]] = True
    return table


@lru_cache(maxsize=1)
def _table() -> np.ndarray:
    return mix(np.arange(256, dtype=np.uint64) + np.uint64(_SEED)) | np.uint64(1)


@lru_cache(maxsize=4)
def _powers(count: int) -> Tuple[np.ndarray, np.ndarray]:
    """B^0 ... B^(count - 1), and their inverses."""
    inverse = pow(_BASE, -1, 1 << 64)
    found = []
    for base in (_BASE, inverse):
        factors = np.full(count, base, np.uint64)
        factors[0] = 1
        found.append(np.cumprod(factors))
    return found[0], found[1]
