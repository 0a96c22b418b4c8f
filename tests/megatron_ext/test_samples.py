"""Shards -> samples -> microbatches: nothing twice, nothing lost, the same in every layout and however long the run."""

from __future__ import annotations

import json
import struct
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_ext.config.load import compose
from megatron_ext.data.loader import Loader, _on_rank
from megatron_ext.data.samples import SPLITS, Samples, _range
from megatron_ext.data.shard import Shard
from megatron_ext.data.source import Source

pytestmark = pytest.mark.usefixtures("megatron_core")
CODES = {np.uint8: 1, np.int8: 2, np.int16: 3, np.int32: 4, np.int64: 5, np.uint16: 8}


def write(prefix, documents, dtype=np.uint16):
    """documents: each a list of sequences, each a list of ids. Written field by field from the format's description."""
    sequences = [sequence for document in documents for sequence in document]
    boundaries = [0]
    for document in documents:
        boundaries.append(boundaries[-1] + len(document))
    offsets, tokens = [], b""
    for sequence in sequences:
        offsets.append(len(tokens))
        tokens += np.array(sequence, dtype=dtype).tobytes()
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[dtype], len(sequences), len(boundaries))
    index += struct.pack(f"<{len(sequences)}i", *map(len, sequences)) + struct.pack(f"<{len(offsets)}q", *offsets)
    index += struct.pack(f"<{len(boundaries)}q", *boundaries)
    prefix.with_suffix(".idx").write_bytes(index)
    prefix.with_suffix(".bin").write_bytes(tokens)
    return str(prefix)


def numbered(folder, lengths, dtype=np.int32, name="numbered"):
    """A shard in which token i of the whole shard has the id i, so that every token tells where it is from."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    documents = [[list(range(int(a), int(b)))] for a, b in zip(starts, starts[1:])]
    return Source(write(folder / name, documents, dtype))


def samples_of(source, *more):
    return Samples(source, *more, cache=Path("unused"))


# --- shards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(CODES))
def test_documents_of_several_sequences_and_empty_ones(tmp_path, dtype):
    shard = Shard(write(tmp_path / "s", [[[1, 2], [3]], [[]], [[4]], [], [[5, 6, 7]]], dtype))
    found = [shard.tokens[a : a + n].tolist() for a, n in zip(shard.starts, shard.lengths)]
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
        start = ours.starts[number]
        assert ours.tokens[start : start + ours.lengths[number]].tolist() == theirs.get(number).tolist()


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


# --- samples -----------------------------------------------------------------------------------------------------


def slow_stream(shard, documents, order):
    return [int(token) for document in order for token in
            shard.read(document, 0, shard.lengths[document])
            if document in documents]  # fmt: skip


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(lambda x: sum(x) > 8),
    length=st.integers(1, 7),
    seed=st.integers(0, 2**32 - 1),
)
def test_samples_are_windows_of_the_shuffled_documents(tmp_path_factory, lengths, length, seed):
    """Against a slow reference, for two epochs: tokens, spans, and what becomes of every token."""
    shard = numbered(tmp_path_factory.getbasetemp(), lengths)
    samples = samples_of(shard, "1,0,0", "train", length, seed)
    total = sum(lengths)
    assert samples.per_epoch == (total - 1) // length
    for epoch in range(2):
        order = np.random.default_rng([seed, epoch]).permutation(len(shard))
        stream = slow_stream(shard, set(order), order)
        assert sorted(stream) == list(range(total))
        windows = [stream[place * length : (place + 1) * length + 1] for place in range(samples.per_epoch)]
        numbers = range(epoch * samples.per_epoch, (epoch + 1) * samples.per_epoch)
        found = [samples.tokens(number) for number in numbers]
        assert sorted(map(list, found)) == sorted(windows)
        assert all(tokens.dtype == np.int64 and len(tokens) == length + 1 for tokens in found)
        labels = Counter(int(token) for tokens in found for token in tokens[1:])
        assert max(labels.values()) == 1 and total - len(labels) <= length  # the first token and a tail
        for number, tokens in zip(numbers, found):
            rebuilt = []
            for span in samples.spans(number):
                assert span.prefix == shard.prefix and span.count > 0
                assert span.start + span.count <= shard.lengths[span.document]
                rebuilt += shard.read(span.document, span.start, span.count).tolist()
            assert rebuilt == tokens.tolist()


def test_epochs_and_seeds_differ_and_repeat(tmp_path):
    shard = numbered(tmp_path, [10] * 30)
    first, again, other = (samples_of(shard, "1,0,0", "train", 5, seed) for seed in (1, 1, 2))
    n = first.per_epoch
    run = [first.tokens(i).tolist() for i in range(2 * n)]
    assert run == [again.tokens(i).tolist() for i in range(2 * n)]
    assert run[:n] != run[n:] and run[:n] != [other.tokens(i).tolist() for i in range(n)]
    assert [again.tokens(i).tolist() for i in (2 * n - 1, 0, n)] == [run[i] for i in (2 * n - 1, 0, n)]  # any order


@given(documents=st.integers(1, 500), parts=st.tuples(*[st.floats(0, 1000)] * 3).filter(lambda p: sum(p) > 1e-6))
def test_splits_are_contiguous_disjoint_and_whole(documents, parts):
    split = ",".join(map(str, parts))
    ranges = [_range(split, which, documents) for which in SPLITS]
    assert ranges[0][0] == 0 and ranges[-1][1] == documents
    assert all(a[1] == b[0] for a, b in zip(ranges, ranges[1:]))
    for (begin, end), part in zip(ranges, parts):
        assert abs((end - begin) - part / sum(parts) * documents) <= 1 + 1e-6


def test_training_never_sees_a_document_of_another_split(tmp_path):
    shard = numbered(tmp_path, [7] * 50)
    seen = {}
    for which in SPLITS:
        samples = samples_of(shard, "80,15,5", which, 4, 0)
        seen[which] = {span.document for i in range(3 * samples.per_epoch) for span in samples.spans(i)}
    assert seen["train"] == set(range(40)) and seen["validation"] <= set(range(40, 48)) and seen["test"] <= {48, 49}


def test_a_split_too_short_is_refused_with_its_size(tmp_path):
    shard = numbered(tmp_path, [3, 4])
    with pytest.raises(ValueError, match=r"train split of .* has 7 tokens in 2 documents, fewer than one .* 7 \+ 1"):
        samples_of(shard, "1,0,0", "train", 7, 0)
    assert samples_of(shard, "1,0,0", "train", 6, 0).per_epoch == 1
    with pytest.raises(ValueError, match="test split of .*'1,0,0'.* has 0 tokens in 0 documents"):
        samples_of(shard, "1,0,0", "test", 1, 0)


def test_an_empty_split_is_refused_within_a_second(tmp_path):
    """D31: megatron-core 0.16.1 looks for the number of epochs for ever."""
    began = time.monotonic()
    with pytest.raises(ValueError, match="validation split of .*'98,1,1'.* has 0 tokens"):
        samples_of(numbered(tmp_path, [5] * 10), "98,1,1", "validation", 4, 0)
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("number", [1, 12, 13, 21, 24, 25])
def test_every_sample_of_an_epoch_before_any_comes_again(tmp_path, number):
    """D34: any number of samples, the last epoch partial like the others; the same seed gives the same order."""
    shard = numbered(tmp_path, [5] * 10)
    samples, again = (samples_of(shard, "1,0,0", "train", 4, 3) for _ in range(2))
    assert samples.per_epoch == 12
    found = [tuple(samples.tokens(i)) for i in range(number)]
    assert found == [tuple(again.tokens(i)) for i in range(number)]
    for epoch in range(0, number, 12):
        assert len(set(found[epoch : epoch + 12])) == len(found[epoch : epoch + 12])


def test_a_set_of_shards_is_one_source(tmp_path):
    """Shards of two dtypes under one manifest (D10): the same samples as from one shard that has it all."""
    lengths = [7, 3, 9, 5, 8]
    whole = numbered(tmp_path, lengths, name="whole")
    pieces = [whole.read(d, 0, n).tolist() for d, n in enumerate(lengths)]
    write(tmp_path / "set-00000", [[p] for p in pieces[:2]], np.uint16)
    write(tmp_path / "set-00001", [[p] for p in pieces[2:]], np.int32)
    (tmp_path / "set.json").write_text(json.dumps({"shards": [{"name": "set-00000"}, {"name": "set-00001"}]}))
    both = Source(str(tmp_path / "set"))
    assert len(both) == 5 and both.tokens == 32
    ours, theirs = (samples_of(one, "1,0,0", "train", 4, 0) for one in (both, whole))
    assert [ours.tokens(i).tolist() for i in range(20)] == [theirs.tokens(i).tolist() for i in range(20)]
    named = {(span.prefix, span.document) for i in range(7) for span in ours.spans(i)}
    every = {(str(tmp_path / f"set-{n:05}"), d) for n, k in ((0, 2), (1, 3)) for d in range(k)}
    assert named <= every and {prefix for prefix, _ in named} == {prefix for prefix, _ in every}


# --- loader ------------------------------------------------------------------------------------------------------


def grid(data=1, data_rank=0, context=1, context_rank=0):
    group = SimpleNamespace(size=lambda: context, rank=lambda: context_rank)
    return SimpleNamespace(data_size=data, data_rank=data_rank, device=torch.device("cpu"),
                           groups=SimpleNamespace(cp=group))  # fmt: skip


def loader(shard, *overrides, which="train", **place):
    run = compose([f"data.blend=[{shard}]", "model.seq_length=16", "model.vocab_size=120", "train.steps=3",
                   "train.global_batch_size=8", f"parallel.data={place.get('data', 1)}", *overrides])  # fmt: skip
    return Loader(run, grid(**place), which)


@pytest.mark.parametrize("data, micro", [(1, 1), (1, 4), (2, 1), (2, 2), (4, 2), (8, 1)])
def test_ranks_and_microbatches_together_are_the_global_batch(shard, data, micro):
    whole = loader(shard)
    for step in range(3):
        expected = [batch.tokens[0].tolist() for batch in whole.microbatches(step)]
        assert expected == [whole.blend.tokens(8 * step + i)[:-1].tolist() for i in range(8)]
        rows = {}
        for rank in range(data):
            of_rank = loader(shard, f"train.micro_batch_size={micro}", data=data, data_rank=rank)
            for number, batch in enumerate(of_rank.microbatches(step)):
                assert batch.tokens.shape == batch.labels.shape == batch.positions.shape == (micro, 16)
                assert torch.equal(batch.tokens[:, 1:], batch.labels[:, :-1])
                for row, tokens in enumerate(batch.tokens.tolist()):
                    rows[(number * data + rank) * micro + row] = tokens
        assert [rows[i] for i in range(8)] == expected and len(rows) == 8


@pytest.mark.parametrize("context", [2, 4])
def test_context_ranks_hold_chunks_that_make_up_the_sequence(shard, context):
    whole = next(loader(shard, "train.micro_batch_size=2").microbatches(1))
    parts = [
        next(loader(shard, "train.micro_batch_size=2", context=context, context_rank=rank).microbatches(1))
        for rank in range(context)
    ]
    length = 16 // (2 * context)
    for name in ("tokens", "labels", "positions"):
        found = torch.full((2, 16), -1)
        for rank, part in enumerate(parts):
            for half, chunk in enumerate((rank, 2 * context - 1 - rank)):
                mine = getattr(part, name)[:, half * length : (half + 1) * length]
                found[:, chunk * length : (chunk + 1) * length] = mine
        assert torch.equal(found, getattr(whole, name))


def test_chunks_of_context_ranks_have_even_causal_work():
    """Sum of positions, which is the number of keys seen, is the same on every rank."""
    positions = torch.arange(32)[None]
    work = {int(_on_rank(positions, grid(context=4, context_rank=rank).groups.cp).sum()) for rank in range(4)}
    assert len(work) == 1


def test_spans_are_those_of_the_global_batch(shard):
    data = loader(shard)
    assert data.spans(2) == [data.blend.spans(index) for index in range(16, 24)]


def test_another_number_of_steps_changes_no_earlier_batch(shard):
    short, long = loader(shard), loader(shard, "train.steps=50")
    for step in range(3):
        for a, b in zip(short.microbatches(step), long.microbatches(step)):
            assert torch.equal(a.tokens, b.tokens)


def test_validation_reads_its_own_split_and_is_the_same_each_time(shard):
    data = loader(shard, "data.split='80,20,0'", "train.eval_batches=2", which="validation")
    assert {span.document for step in range(2) for spans in data.spans(step) for span in spans} <= set(range(64, 80))
    first, again = (torch.cat([batch.tokens for batch in data.microbatches(0)]) for _ in range(2))
    assert torch.equal(first, again)


def test_weights_default_to_the_tokens_of_the_shards(tmp_path):
    big, small = (write(tmp_path / name, [[[1] * 100] * n]) for name, n in (("big", 9), ("small", 3)))
    data = loader(f"{big},{small}", "train.steps=50")
    chosen = Counter(data.blend.place(index)[0] for index in range(400))
    assert chosen == {0: 300, 1: 100}


def test_two_blended_copies_of_a_shard_are_shuffled_differently(tmp_path):
    prefix = write(tmp_path / "s", [[list(range(100))] for _ in range(9)])
    data = loader(f"{prefix},{prefix}")
    first, second = data.blend.sources
    assert [first.tokens(i).tolist() for i in range(9)] != [second.tokens(i).tolist() for i in range(9)]


def test_an_id_above_the_vocabulary_is_named_with_its_shard(tmp_path):
    prefix = write(tmp_path / "s", [[[1] * 60 + [120] + [1] * 60]])
    data = loader(prefix)
    with pytest.raises(ValueError) as caught:
        for step in range(3):
            list(data.microbatches(step))
    assert all(part in str(caught.value) for part in (prefix, "token id 120", "model.vocab_size=120", "tokenizer"))
    list(loader(prefix, "model.vocab_size=121").microbatches(0))


def test_a_negative_id_is_refused_too(tmp_path):
    """Signed dtypes can hold one; as an index it would silently read the end of the embedding."""
    data = loader(write(tmp_path / "s", [[[1] * 60 + [-3] + [1] * 60]], np.int32))
    with pytest.raises(ValueError, match="token id -3"):
        for step in range(3):
            list(data.microbatches(step))


def test_other_data_after_a_resume_is_refused_with_what_changed(tmp_path):
    """The checkpoint says what the run saw; nobody would ever find out otherwise."""
    prefix = write(tmp_path / "s", [[list(range(100))] for _ in range(9)])
    before = loader(prefix).fingerprint
    loader(prefix).compare(before)
    loader(prefix).compare([])  # a checkpoint of an earlier version
    write(tmp_path / "s", [[list(range(99)) + [7]] for _ in range(9)])
    (tmp_path / "s.json").write_text(json.dumps({"fingerprint": "another"}))
    with pytest.raises(ValueError, match="source 0 .*fingerprint idx-.* -> another; .*data.allow_change=true"):
        loader(prefix).compare(before)
    loader(prefix, "data.allow_change=true").compare(before)
    with pytest.raises(ValueError, match="1 sources became 2"):
        loader(f"{prefix},{prefix}").compare(before)
