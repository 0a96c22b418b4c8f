"""Orders of documents and samples: 64-bit, each once, shared as files where they are large."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_ext.data import order as orders
from megatron_ext.data.permutation import Permutation
from megatron_ext.data.samples import Samples
from tests.megatron_ext.test_samples import numbered, samples_of


class Lengths:
    """A source of which only the lengths exist."""

    prefix = "imagined"

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def place(self, document):
        return self, document


def test_positions_beyond_32_bits(tmp_path):
    """D11: six thousand million tokens in three documents: every span inside its document, all of them covered."""
    source = Lengths(np.array([2**31 - 1, 2**31 - 1, 2**31 - 1], np.int64))
    samples = Samples(source, "1,0,0", "train", 4096, 0, tmp_path)
    assert samples.tokens_per_epoch == 3 * (2**31 - 1) and samples.per_epoch == (3 * (2**31 - 1) - 1) // 4096
    for index in (0, 1, samples.per_epoch - 1, 2**31, 2**40 + 7):
        spans = samples.spans(index)
        assert sum(span.count for span in spans) == 4097
        assert all(0 <= span.start and span.start + span.count <= 2**31 - 1 for span in spans)
    assert max(span.start for index in range(200) for span in samples.spans(index)) > 2**30


@pytest.mark.parametrize("documents", [10, 11])
def test_numbers_of_documents_take_more_bits_where_they_must(monkeypatch, documents):
    monkeypatch.setattr(orders, "_SMALL", 10)
    found = orders.order(np.ones(documents, np.int64), (0, documents), 0, 0, Path("unused"))
    assert found.documents.dtype == (np.int32 if documents <= 10 else np.int64)


def test_the_order_of_a_large_source_is_a_file_that_all_ranks_share(tmp_path, monkeypatch):
    shard = numbered(tmp_path, [3, 9, 4, 8] * 20)
    whole = [samples_of(shard, "1,0,0", "train", 5, 1).tokens(i).tolist() for i in range(60)]
    monkeypatch.setattr(orders, "IN_MEMORY", 10)
    mapped = Samples(shard, "1,0,0", "train", 5, 1, tmp_path / "cache")
    assert [mapped.tokens(i).tolist() for i in range(60)] == whole
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    assert len(files) == 2 and isinstance(mapped.epoch(0)[0].starts, np.memmap)
    again = Samples(shard, "1,0,0", "train", 5, 1, tmp_path / "cache")
    assert again.tokens(7).tolist() == whole[7]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == files
    Samples(numbered(tmp_path, [3, 9, 4, 9] * 20, name="other"), "1,0,0", "train", 5, 1, tmp_path / "cache").epoch(0)
    assert len(list((tmp_path / "cache").iterdir())) == 4, "other lengths have an order of their own"


@given(size=st.integers(1, 400), seed=st.integers(0, 9))
def test_a_permutation_has_every_number_once(size, seed):
    assert sorted(map(Permutation(size, [seed]), range(size))) == list(range(size))


def test_a_permutation_mixes():
    """Neighbours go far apart, and of a huge one single places can be asked for."""
    found = [Permutation(10_000, [1])(i) for i in range(10_000)]
    distance = np.abs(np.diff(found)).mean()
    assert 3000 < distance < 3700 and np.corrcoef(found, range(10_000))[0, 1] < 0.05
    huge = Permutation(2**45 + 3, [1])
    assert len({huge(i) for i in range(1000)}) == 1000 and max(huge(i) for i in range(1000)) < 2**45 + 3
