"""Packs of conversations: in a pack each is computed as if it were alone, and only what is to be learned is."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from benchmarks.equivalence import write_packs, write_shard
from megatron_ext.config import load, validate
from megatron_ext.config.load import ConfigError
from megatron_ext.data.loader import Loader, Microbatch
from megatron_ext.data.packed import Packs
from megatron_ext.data.source import Source
from megatron_ext.model import spec
from megatron_ext.runtime.fork import run_ranks
from preprocess.shards import ShardWriter
from tests.megatron_ext.training import TINY, curve, make_run, train

CHATS = [[5, 6, 7, 8], [9, 10], [11, 12, 13], [14, 15, 16, 17, 18, 19], [4, 3]]
MASKS = [[0, 0, 1, 1], [0, 1], [1, 0, 1], [1, 1, 0, 0, 1, 1], [0, 1]]
PACKS = [0, 2, 4, 5]
LENGTH = 9


@pytest.fixture
def prefix(tmp_path):
    with ShardWriter(tmp_path / "out", np.dtype(np.uint16)) as shard:
        shard.add(np.concatenate(CHATS).astype(np.uint16), np.asarray([len(one) for one in CHATS]))
    np.concatenate(MASKS).astype(np.uint8).tofile(tmp_path / "out.mask")
    np.asarray(PACKS, np.int64).tofile(tmp_path / "out.packs")
    return str(tmp_path / "out")


def packs_of(prefix, length=LENGTH, split="1,0,0", which="train"):
    return Packs(Source(prefix), split, which, length, seed=1)


def in_order(packs):
    """The samples of an epoch, by the first document in them."""
    numbers = sorted(range(packs.per_epoch), key=lambda number: packs.spans(number)[0].document)
    return [packs.sample(number) for number in numbers]


def test_a_pack_has_its_tokens_and_ends_in_padding(prefix):
    first, full, last = in_order(packs_of(prefix))
    assert first.tokens.tolist() == [5, 6, 7, 8, 9, 10, 0, 0, 0, 0]
    assert first.lengths.tolist() == [4, 2, 3] and last.lengths.tolist() == [2, 7]
    assert first.learned.tolist() == [0, 1, 1, 0, 1, 0, 0, 0, 0]
    assert first.tokens[1:][first.learned].tolist() == [7, 8, 10]
    assert full.lengths.tolist() == [3, 6], "no padding where there is no room for it"


def test_a_first_token_is_never_predicted_from_another_conversation(prefix):
    """Conversations 2 and 3 say that their first tokens are to be learned: nothing stands before them."""
    assert in_order(packs_of(prefix))[1].learned.tolist() == [0, 1, 0, 1, 0, 0, 1, 1, 0]


def test_each_epoch_has_every_pack_once_in_another_order_and_splits_are_apart(tmp_path):
    write_shard(tmp_path / "s", 120, documents=60, longest=20)
    write_packs(tmp_path / "s", 32)
    train, rest = (packs_of(str(tmp_path / "s"), 32, "80,20,0", which) for which in ("train", "validation"))
    epochs = [[train.spans(e * train.per_epoch + i) for i in range(train.per_epoch)] for e in range(2)]
    orders = [[spans[0].document for spans in epoch] for epoch in epochs]
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]
    held_out = [rest.spans(i) for i in range(rest.per_epoch)]
    seen = sorted(span.document for spans in [*epochs[0], *held_out] for span in spans)
    assert seen == list(range(60)) and len(held_out) > 1


def losses_of(folder, position, crossing):
    """Of one rank's model: [(loss, weights' gradient)] of a pack, and of its conversations one by one."""
    from megatron_ext.model.build import build
    from megatron_ext.runtime import parallel
    from megatron_ext.step import forward_step

    packed = load.compose(
        [*TINY, f"data.blend=[{folder}/out]", f"model.position={position}", "model.seq_length=9", "data.split='1,0,0'"]
        + ["train.global_batch_size=3", "train.micro_batch_size=3", "model.implementation=local"]
    )
    grid = parallel.start(packed)
    (model,) = build(packed, grid)

    def of(batches):
        total, tokens = torch.zeros(()), 0
        for batch in batches:
            output, loss = forward_step(iter([batch]), model, packed, grid)
            part, count, _ = loss(output)
            total, tokens = total + part, tokens + int(count)
        found = torch.autograd.grad(total, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
        return total.item(), tokens, [grad.numpy() for grad in found if grad is not None]

    (batch,) = Loader(packed, grid, "train").microbatches(0)
    if crossing:
        batch = Microbatch(batch.tokens, batch.labels, batch.positions, batch.learned)
    alone = []
    for chat, mask in zip(CHATS, MASKS):
        tokens, learned = torch.tensor([chat]), torch.tensor([mask[1:]], dtype=torch.bool)
        places = torch.arange(len(chat) - 1)[None]
        alone.append(Microbatch(tokens[:, :-1], tokens[:, 1:], places, learned))
    return of([batch]), of(alone)


@pytest.mark.parametrize("position", ["rope", "learned"])
def test_losses_and_gradients_of_packs_are_those_of_each_conversation_alone(prefix, tmp_path, position):
    (loss, tokens, grads), (expected, count, expected_grads) = run_ranks(1, losses_of, tmp_path, position, False)[0]
    assert tokens == count == sum(sum(mask[1:]) for mask in MASKS)
    assert loss == pytest.approx(expected, rel=1e-6)
    for grad, right in zip(grads, expected_grads):
        np.testing.assert_allclose(grad, right, atol=1e-5, rtol=1e-5)


def test_the_comparison_sees_attention_that_crosses(prefix, tmp_path):
    (loss, _, _), (expected, _, _) = run_ranks(1, losses_of, tmp_path, "rope", True)[0]
    assert abs(loss - expected) > 1e-4


@pytest.mark.slow
def test_a_run_learns_answers_and_goes_on_where_it_was_stopped(tmp_path):
    """Three conversations of which only the answer, always the same token, is learned: the loss goes to nought, though
    what stands between them is noise. Stopped and resumed, the numbers are those of the run that was not."""
    random = np.random.default_rng(0)
    chats = [[*random.integers(0, 119, random.integers(3, 9)), 119] for _ in range(60)]
    with ShardWriter(tmp_path / "shard", np.dtype(np.uint16)) as shard:
        shard.add(np.concatenate(chats).astype(np.uint16), np.asarray([len(one) for one in chats]))
    np.concatenate([[0] * (len(chat) - 1) + [1] for chat in chats]).astype(np.uint8).tofile(tmp_path / "shard.mask")
    write_facts(tmp_path / "shard", 32)
    bounds = np.arange(0, 61, 3)
    bounds.astype(np.int64).tofile(tmp_path / "shard.packs")
    settings = ["train.steps=40", "optim.lr=1e-2", "train.recompute=full", "data.split='9,1,0'", "train.eval_every=20"]
    whole, stopped = (make_run(tmp_path, *settings, "parallel.data=2", name=name) for name in ("whole", "stopped"))
    assert [code for code, _ in train(*whole)] == [0, 0]
    losses = [loss for _, loss, _ in curve(whole[1])]
    assert losses[0] > 4 and losses[-1] < 0.1
    assert [code for code, _ in train(*stopped, stop_after=15)] == [75, 75]
    assert [code for code, _ in train(*stopped)] == [0, 0]
    assert curve(stopped[1]) == curve(whole[1])


def write_facts(prefix, pack_length):
    told = {
        "tokenizer": {"vocab_size": 120, "sha256": "x"},
        "settings": {"source": {"label": {"template": "chat.jinja", "pack_length": pack_length}}},
    }
    prefix.with_name(f"{prefix.name}.json").write_text(json.dumps(told))


def test_the_launcher_refuses_packs_longer_than_a_sequence(prefix, tmp_path):
    write_facts(tmp_path / "out", 64)
    run = load.compose([*TINY, f"data.blend=[{prefix}]"])
    with pytest.raises(ConfigError, match=r"packs of up to 64 tokens, but model.seq_length=32.*pack_length=32"):
        validate.check(run)
    write_facts(tmp_path / "out", 32)
    validate.check(run)


def test_a_pack_longer_than_a_sequence_is_refused_with_the_remedy(prefix):
    with pytest.raises(ValueError, match="a pack of 9 tokens, a sequence has 8.*pack_length=8"):
        packs_of(prefix, 8)


def test_a_split_without_a_pack_is_refused_with_the_remedy(prefix):
    with pytest.raises(ValueError, match="the validation split.*has none of its 3 packs; change data.split"):
        packs_of(prefix, LENGTH, "98,2,0", "validation")


def test_transformer_engine_would_see_one_text_and_is_refused(monkeypatch):
    monkeypatch.setattr(spec, "_transformer_engine_imports", lambda: True)
    with pytest.raises(ValueError, match="set model.implementation=local"):
        spec.check_packs(load.compose([*TINY, "model.implementation=auto"]))
    spec.check_packs(load.compose([*TINY, "model.implementation=local"]))


@pytest.mark.parametrize("suffix", ["mask", "packs"])
@pytest.mark.parametrize("content", [None, b"", b"\x00" * 8])
def test_files_that_do_not_belong_together_are_refused_by_name(suffix, content, prefix, tmp_path):
    path = tmp_path / f"out.{suffix}"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"out\.{suffix}"):
        packs_of(prefix)
