"""Samples -> microbatches: the same in every layout and however long the run; and other data on resume is refused."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from megatron_ext.config import rundir
from megatron_ext.config.load import compose
from megatron_ext.data import order
from megatron_ext.data.loader import Loader, _on_rank
from tests.megatron_ext.test_samples import write
from tests.megatron_ext.training import make_run, train

pytestmark = pytest.mark.usefixtures("megatron_core")


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
        assert expected == [whole.blend.sample(8 * step + i).tokens[:-1].tolist() for i in range(8)]
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


def test_training_builds_nothing_once_it_has_begun(shard, tmp_path, monkeypatch):
    """The files of all epochs of the run are there before the first step; a later epoch does not stop all ranks."""
    monkeypatch.setattr(order, "IN_MEMORY", 10)
    data = loader(shard, f"data.cache={tmp_path}/cache", "train.steps=200")
    last = data.position(200) - 1
    assert last // data.blend.sources[0].per_epoch >= 1, "the run has several epochs"
    monkeypatch.setattr(order, "_shuffled", None)
    for index in range(last + 1):
        data.blend.sample(index)


def test_a_source_without_a_sample_is_named_in_the_log(tmp_path, caplog):
    big, small = (write(tmp_path / name, [[[1] * 100] * 9]) for name in ("big", "small"))
    loader(f"{big},{small}", "data.weights=[0.9999,0.0001]")
    assert [r.message for r in caplog.records] == [
        f"{small} gets none of 24 samples: its weight is too small for so few"
    ]


def test_sources_of_two_dtypes_are_blended(tmp_path):
    """D10: each is read with its own; what comes out is what went in."""
    narrow = write(tmp_path / "narrow", [[list(range(50))] * 9], np.uint16)
    wide = write(tmp_path / "wide", [[list(range(50, 110))] * 9], np.int32)
    blend = loader(f"{narrow},{wide}").blend
    of_narrow, of_wide = set(), set()
    for index in range(80):
        (of_narrow, of_wide)[blend.place(index)[0]].update(blend.sample(index).tokens.tolist())
    assert of_narrow == set(range(50)) and of_wide == set(range(50, 110))


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
    write(tmp_path / "s", [[list(range(99)) + [7]] for _ in range(9)])
    (tmp_path / "s.json").write_text(json.dumps({"fingerprint": "another"}))
    with pytest.raises(ValueError, match="source 0 .*fingerprint idx-.* -> another; .*data.allow_change=true"):
        loader(prefix).compare(before)
    loader(prefix, "data.allow_change=true").compare(before)
    with pytest.raises(ValueError, match="1 sources became 2"):
        loader(f"{prefix},{prefix}").compare(before)


def test_a_checkpoint_that_does_not_say_what_its_data_was_is_resumed_with_a_warning(shard, caplog):
    run = loader(shard).run
    Loader(run, grid(), "train", 0, 0).compare([])
    assert not caplog.records
    Loader(run, grid(), "train", 1, 8).compare([])
    assert "does not say what its data was" in caplog.text


def test_a_run_goes_on_with_other_data_only_when_told_to(tmp_path):
    """The whole way: the fingerprint goes into the checkpoint, and the resumed run compares before its first step."""
    train(*make_run(tmp_path, "train.steps=2"))
    other = ["train.steps=3", "data.split='50,50,0'"]
    run, folder = make_run(tmp_path, *other)
    ((code, said),) = train(run, folder)
    assert code == rundir.EXIT_BAD_INPUT and "source 0" in said and "split 98,2,0 -> 50,50,0" in said
    assert "data.allow_change=true" in said and not (rundir.checkpoints(folder) / "iter_0000003").exists()
    ((code, said),) = train(*make_run(tmp_path, *other, "data.allow_change=true"))
    assert code == rundir.EXIT_DONE, said
    kept = torch.load(rundir.checkpoints(folder) / "iter_0000003" / "common.pt", weights_only=True)["data"]
    assert [(one["split"], len(one["fingerprint"]) > 32) for one in kept] == [("50,50,0", True)]
