"""Packs: no conversation is lost, cut in silence or mixed with another, on disk too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.label import packing
from preprocess.label.packed import Packs
from preprocess.label.packing import pack
from preprocess.shards import ShardWriter
from tests.preprocess.label.conftest import chat, learned


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(1, 20))
def test_every_conversation_is_in_one_pack_and_no_pack_is_too_long(lengths, window):
    lengths, normal = np.asarray(lengths, np.int64), packing.WINDOW
    packing.WINDOW = window
    try:
        packs = pack(lengths, 100)
    finally:
        packing.WINDOW = normal
    assert sorted(int(number) for one in packs for number in one) == list(range(len(lengths)))
    assert all(lengths[one].sum() <= 100 and (np.diff(one) > 0).all() for one in packs)
    assert [one[0] for one in packs] == sorted(one[0] for one in packs)
    halves = [lengths[one].sum() for one in packs if len(lengths) <= window]
    assert sum(half <= 50 for half in halves) <= 1  # two that are half empty would be one


def test_without_a_length_each_conversation_is_a_pack():
    assert [one.tolist() for one in pack(np.asarray([5, 7]), 0)] == [[0], [1]]


def test_packs_of_chats_as_they_are_fill_nearly_whole():
    lengths = np.random.default_rng(0).lognormal(5.5, 1, 4096).clip(10, 4096).astype(np.int64)
    packs = pack(lengths, 4096)
    assert lengths.sum() / (4096 * len(packs)) > 0.995


@pytest.fixture
def packed(label_all, tmp_path):
    """-> prefix of a shard of five conversations in packs of 64 tokens, made of what `label_all` gave."""
    records = [chat("q" * number, "a" * (30 - number)) for number in (1, 10, 3, 20, 12)]
    (documents, ids, lengths, mask, packs), _ = label_all("chatml", records, pack_length=64)
    with ShardWriter(tmp_path / "out", np.dtype(np.uint16)) as shard:
        shard.add(ids.astype(np.uint16), lengths)
    mask.tofile(tmp_path / "out.mask")
    np.cumsum([0, *packs]).astype(np.int64).tofile(tmp_path / "out.packs")
    return tmp_path / "out", [document.id for document in documents]


def test_packs_on_disk_restart_positions_at_the_boundaries(packed, tokenizer_file):
    prefix, order = packed
    packs = Packs(str(prefix))
    said = []
    for number in range(len(packs)):
        one = packs[number]
        assert len(one.ids) == len(one.mask) == len(one.positions) == one.boundaries[-1] <= 64
        for start, end in zip(one.boundaries, one.boundaries[1:]):
            assert one.positions[start:end].tolist() == list(range(end - start))
            said += learned(tokenizer_file, one.ids[start:end], one.mask[start:end])
    lengths = {"0": 29, "1": 20, "2": 27, "3": 10, "4": 18}
    assert said == ["a" * lengths[id] + "<|im_end|>" for id in order] and sorted(order) == list("01234")
    assert 0.5 < packs.fill(64) <= 1
    with pytest.raises(IndexError):
        packs[len(packs)]


@pytest.mark.parametrize("suffix", [".mask", ".packs"])
@pytest.mark.parametrize("cut", [1, 8])
def test_files_that_do_not_belong_together_are_refused_by_name(suffix, cut, packed):
    path = packed[0].with_suffix(suffix)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ValueError, match=f"out{suffix}"):
        Packs(str(packed[0]))
    path.unlink()
    with pytest.raises(ValueError, match=f"out{suffix} is missing"):
        Packs(str(packed[0]))


def test_a_mask_of_other_numbers_is_refused(packed):
    path = packed[0].with_suffix(".mask")
    path.write_bytes(b"\x02" * path.stat().st_size)
    with pytest.raises(ValueError, match="pack 0"):
        Packs(str(packed[0]))[0]


@pytest.mark.parametrize("long", ["drop", "truncate"])
def test_a_conversation_longer_than_a_pack_is_dropped_or_cut_as_set(long, label_all):
    records = [chat("q", "a" * 99), chat("q", "b")]
    (documents, _, lengths, mask, _), dropped = label_all("chatml", records, pack_length=40, long=long)
    assert dropped == ({"longer than a pack": 1} if long == "drop" else {})
    assert len(documents) == len(lengths) == (1 if long == "drop" else 2) and lengths.max() <= 40
    assert mask.sum() > 0


def test_a_conversation_cut_before_its_answer_has_nothing_to_learn(label_all):
    _, dropped = label_all("chatml", [chat("q" * 99, "a")], pack_length=40, long="truncate")
    assert dropped == {"nothing to learn": 1}
