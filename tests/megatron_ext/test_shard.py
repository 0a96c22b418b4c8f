"""Shards as they lie on disk: read as megatron-core reads them, and every damage refused by name."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from megatron_ext.data.shard import Shard
from tests.megatron_ext.test_samples import CODES, write

pytestmark = pytest.mark.usefixtures("megatron_core")


@pytest.mark.parametrize("dtype", list(CODES))
def test_documents_of_several_sequences_and_empty_ones(tmp_path, dtype):
    shard = Shard(write(tmp_path / "s", [[[1, 2], [3]], [[]], [[4]], [], [[5, 6, 7]]], dtype))
    found = [shard.tokens[a : a + n].tolist() for a, n in zip(shard.starts(np.arange(5)), shard.lengths)]
    assert found == [[1, 2, 3], [], [4], [], [5, 6, 7]] and len(shard) == 5


def test_a_shard_by_megatron_core_is_read_alike(tmp_path):
    """The library's own builder writes; both readers agree on every document."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(tmp_path / "s.bin"), dtype=np.uint16)
    for length in (3, 1, 7, 40000 % 97):
        builder.add_document(torch.arange(length) + 1000, [length])
    builder.finalize(str(tmp_path / "s.idx"))
    ours, theirs = Shard(str(tmp_path / "s")), IndexedDataset(str(tmp_path / "s"))
    assert len(ours) == len(theirs.document_indices) - 1 == 4
    for number in range(4):
        start = int(ours.starts(number))
        assert ours.tokens[start : start + ours.lengths[number]].tolist() == theirs.get(number).tolist()


def test_of_many_documents_nothing_is_copied(tmp_path):
    """Each rank opens each shard: what is not in memory once per rank is on the pages of the files."""
    shard = Shard(write(tmp_path / "s", [[[1, 2]], [[3]], [[4]]]))
    assert (
        all(isinstance(part, np.memmap) for part in (shard.tokens, shard.lengths)) and shard.lengths.dtype == np.int32
    )
    assert shard.starts(np.arange(4)).tolist() == [0, 2, 3, 4]


@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("place", range(5))
def test_a_wrong_number_in_any_chunk_of_an_index_is_seen(tmp_path, monkeypatch, chunk, place):
    """Long indices are checked in pieces: offsets and boundaries on both sides of each seam."""
    from megatron_ext.data import shard

    monkeypatch.setattr(shard, "_CHUNK", chunk)
    prefix = tmp_path / "s"
    write(prefix, [[[1] * n] for n in (3, 1, 4, 1, 5)])
    assert Shard(str(prefix)).lengths.tolist() == [3, 1, 4, 1, 5]
    index = prefix.with_suffix(".idx")
    for first in (34 + 5 * 4, 34 + 5 * 12 + 8):
        raw = bytearray(index.read_bytes())
        raw[first + 8 * place] ^= 16
        index.write_bytes(raw)
        assert "contradicts itself" in refusal(prefix)
        raw[first + 8 * place] ^= 16
        index.write_bytes(raw)


def refusal(prefix):
    with pytest.raises(ValueError) as caught:
        Shard(str(prefix))
    assert "llm-preprocess" in str(caught.value)
    return str(caught.value)


def test_missing_files_are_named(tmp_path):
    assert f"{tmp_path}/s.idx does not exist" in refusal(tmp_path / "s")
    write(tmp_path / "s", [[[1, 2]]])
    (tmp_path / "s.bin").unlink()
    assert f"{tmp_path}/s.bin does not exist" in refusal(tmp_path / "s")


def test_every_truncation_is_refused(tmp_path):
    prefix = tmp_path / "s"
    write(prefix, [[[1, 2, 3]], [[4, 5]]])
    for suffix in (".idx", ".bin"):
        whole = prefix.with_suffix(suffix).read_bytes()
        for length in range(len(whole)):
            prefix.with_suffix(suffix).write_bytes(whole[:length])
            assert f"s{suffix}" in refusal(prefix)
        prefix.with_suffix(suffix).write_bytes(whole)
    (tmp_path / "s.bin").write_bytes((tmp_path / "s.bin").read_bytes() + b"\x00\x00")
    assert "has 12 bytes, its index says 10" in refusal(prefix)


@pytest.mark.parametrize(
    "damage, part",
    [
        (lambda index: b"X" + index[1:], "not a Megatron index"),
        (lambda index: index[:9] + struct.pack("<Q", 2) + index[17:], "not a Megatron index"),
        (lambda index: index[:17] + b"\x07" + index[18:], "not a Megatron index"),  # floats
        (lambda index: index[:17] + b"\x00" + index[18:], "not a Megatron index"),
        (lambda index: index[:17] + b"\x04" + index[18:], "its index says 20"),  # int32 in place of uint16
        (lambda index: index[:18] + struct.pack("<Q", 2**60) + index[26:], "cut short"),
        (lambda index: index[:34] + struct.pack("<i", 4) + index[38:], "its index says 12"),
        (lambda index: index[:34] + struct.pack("<ii", -1, 6) + index[42:], "contradicts itself"),
        (lambda index: index[:50] + struct.pack("<q", 2) + index[58:], "contradicts itself"),  # second offset
        (lambda index: index[:58] + struct.pack("<qqq", 0, 1, 1) + index[82:], "contradicts itself"),
        (lambda index: index[:58] + struct.pack("<qqq", 0, 9, 2) + index[82:], "contradicts itself"),
        (lambda index: index[:58] + struct.pack("<qqq", 1, 1, 2) + index[82:], "contradicts itself"),
    ],
)
def test_damaged_indices_are_refused(tmp_path, damage, part):
    prefix = tmp_path / "s"
    write(prefix, [[[1, 2, 3]], [[4, 5]]])
    index = prefix.with_suffix(".idx")
    index.write_bytes(damage(index.read_bytes()))
    assert part in refusal(prefix)


def test_shards_without_documents_or_tokens_are_refused(tmp_path):
    assert "holds no documents" in refusal(write(tmp_path / "a", []))
    assert "has 0 bytes" in refusal(write(tmp_path / "b", [[[]], [[]]]))
