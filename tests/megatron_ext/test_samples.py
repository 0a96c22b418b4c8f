"""Shards -> samples: nothing twice, nothing lost, however long the run."""

from __future__ import annotations

import json
import struct
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_ext.data.samples import SPLITS, Samples, part_of
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
    ranges = [part_of(split, which, documents) for which in SPLITS]
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


def test_a_set_without_a_fingerprint_has_one_of_all_its_shards(tmp_path):
    found = []
    for lengths in ([2, 3], [2, 3], [2, 4], [3, 3]):
        for number, length in enumerate(lengths):
            write(tmp_path / f"set-{number}", [[[1] * length]])
        (tmp_path / "set.json").write_text(json.dumps({"shards": [{"name": "set-0"}, {"name": "set-1"}]}))
        found.append(Source(str(tmp_path / "set")).fingerprint())
    assert found[0] == found[1] and len(set(found)) == 3 and found[0].startswith("idx-")
