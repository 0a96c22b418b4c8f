"""Sorting on disk equals sorting in memory, and clusters equal those of a plain search."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from preprocess.dedup import clusters, groups, sorting
from preprocess.dedup.words import words

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(2**64 - 2, 2**64 - 1)), max_size=60)


@given(rows=ROWS, cut=st.integers(0, 60), memory=st.sampled_from([1, 100, 1000, 1 << 20]))
def test_rows_come_in_order(tmp_path_factory, rows, cut, memory):
    numbered = np.asarray([(*row, n) for n, row in enumerate(rows)], np.uint64).reshape(-1, 3)
    folder = tmp_path_factory.mktemp("sort")
    found = list(sorting.in_order([numbered[:cut], numbered[cut:]], 3, memory, folder))
    assert [tuple(row) for block in found for row in block.tolist()] == sorted(map(tuple, numbered.tolist()))
    assert not list(folder.iterdir()), "sorted runs are left"


@given(rows=ROWS, size=st.integers(1, 7), chain=st.booleans())
def test_pairs_join_each_with_the_first_of_its_key(rows, size, chain):
    """Also when a group goes over several blocks."""
    ordered = np.asarray(sorted((*row, n) for n, row in enumerate(rows)), np.uint64).reshape(-1, 3)
    blocks = [ordered[begin : begin + size] for begin in range(0, len(ordered), size)]
    pairs = {tuple(pair) for pair in groups.unique(groups.stars(blocks, 2, chain)).tolist()}
    by_key = {}
    for *key, number in ordered.tolist():
        by_key.setdefault(tuple(key), []).append(number)
    expected = {(numbers[0], other) for numbers in by_key.values() for other in numbers[1:]}
    if chain:
        expected |= {pair for numbers in by_key.values() for pair in zip(numbers, numbers[1:])}
    assert pairs == expected


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).filter(lambda pair: pair[0] != pair[1]), max_size=40))
def test_clusters_are_those_of_a_plain_search(pairs):
    gone, stays = clusters.decide(np.asarray(pairs, np.uint64).reshape(-1, 2))
    lead = {number: number for pair in pairs for number in pair}
    for _ in lead:
        for one, other in pairs:
            lead[one] = lead[other] = min(lead[one], lead[other])
    assert dict(zip(gone.tolist(), stays.tolist())) == {n: first for n, first in lead.items() if n != first}


@given(st.lists(st.text(alphabet="abé猫 ,“\n", max_size=30), max_size=6))
def test_words_are_those_of_a_plain_loop(texts):
    """Equal words have equal hashes, other words others; Chinese characters are words, punctuation is none."""
    hashes, owners = words(texts)
    plain = []
    for number, text in enumerate(texts):
        for part in text.lower().replace("猫", " 猫 ").replace(",", " ").replace("“", " ").split():
            plain.append((number, part))
    assert owners.tolist() == [number for number, _ in plain]
    names = {}
    for value, (_, word) in zip(hashes.tolist(), plain):
        assert names.setdefault(word, value) == value
    assert len(set(names.values())) == len(names)
