"""Packs of conversations: in a pack each is computed as if it were alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, embedding

from megatron_ext.data.packed import Packs
from preprocess.shards import ShardWriter

CHATS = [[5, 6, 7, 8], [9, 10], [11, 12, 13], [14, 15, 16, 17, 18, 19], [4, 3]]
MASKS = [[0, 0, 1, 1], [0, 1], [1, 0, 1], [1, 1, 0, 0, 1, 1], [0, 1]]
PACKS = [0, 2, 4, 5]
WIDTH, IDS, LENGTH = 8, 20, 9


@pytest.fixture
def prefix(tmp_path):
    with ShardWriter(tmp_path / "out", np.dtype(np.uint16)) as shard:
        shard.add(np.concatenate(CHATS).astype(np.uint16), np.asarray([len(one) for one in CHATS]))
    np.concatenate(MASKS).astype(np.uint8).tofile(tmp_path / "out.mask")
    np.asarray(PACKS, np.int64).tofile(tmp_path / "out.packs")
    return str(tmp_path / "out")


def test_a_pack_has_its_tokens_positions_and_boundaries_and_ends_in_padding(prefix):
    packs = Packs(prefix, LENGTH)
    assert len(packs) == 3
    first, full = packs[0], packs[1]
    assert first.tokens.tolist() == [5, 6, 7, 8, 9, 10, 0, 0, 0]
    assert first.positions.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2]
    assert first.boundaries.tolist() == [0, 4, 6, 9] and first.boundaries.dtype == torch.int32
    assert first.loss_mask.tolist() == [0, 1, 1, 0, 1, 0, 0, 0, 0]
    assert [int(label) for label, wanted in zip(first.labels, first.loss_mask) if wanted] == [7, 8, 10]
    assert full.boundaries.tolist() == [0, 3, 9], "no padding where there is no room for it"


def test_a_first_token_is_never_predicted_from_another_conversation(prefix):
    """Conversations 2 and 3 say that their first tokens are to be learned: nothing stands before them."""
    full = Packs(prefix, LENGTH)[1]
    assert full.loss_mask.tolist() == [0, 1, 0, 1, 0, 0, 1, 1, 0]


def losses(tokens, labels, positions, allowed):
    """Of one layer of attention with learned positions; allowed [query, key]."""
    draw = torch.Generator().manual_seed(0)
    table, places, out = (torch.randn(IDS, WIDTH, generator=draw, dtype=torch.float64) for _ in range(3))
    query, key, value = (torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64) for _ in range(3))
    hidden = embedding(tokens, table) + embedding(positions, places)
    scores = (hidden @ query) @ (hidden @ key).T / WIDTH**0.5
    hidden = hidden + scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ (hidden @ value)
    return cross_entropy(hidden @ out.T, labels, reduction="none")


def causal(size):
    return torch.ones(size, size, dtype=torch.bool).tril()


@pytest.mark.parametrize("number", range(3))
def test_within_its_boundaries_a_pack_gives_the_losses_of_each_conversation_alone(number, prefix):
    pack = Packs(prefix, LENGTH)[number]
    owner = torch.bucketize(torch.arange(LENGTH), pack.boundaries.long(), right=True)
    allowed = causal(LENGTH) & (owner[:, None] == owner[None, :])
    packed = losses(pack.tokens, pack.labels, pack.positions, allowed)[pack.loss_mask.bool()]
    alone = []
    for chat, mask in list(zip(CHATS, MASKS))[PACKS[number] : PACKS[number + 1]]:
        tokens, wanted = torch.tensor(chat), torch.tensor(mask[1:], dtype=torch.bool)
        size = len(chat) - 1
        alone.append(losses(tokens[:-1], tokens[1:], torch.arange(size), causal(size))[wanted])
    assert torch.allclose(packed, torch.cat(alone), rtol=1e-12)
    crossing = losses(pack.tokens, pack.labels, pack.positions, causal(LENGTH))[pack.loss_mask.bool()]
    assert number == 2 or not torch.allclose(packed, crossing), "the test sees attention that crosses"


def test_a_pack_longer_than_a_sequence_is_refused_with_the_remedy(prefix):
    with pytest.raises(ValueError, match="a pack of 9 tokens, a sequence has 8.*pack_length=8"):
        Packs(prefix, 8)


@pytest.mark.parametrize("suffix", ["mask", "packs"])
@pytest.mark.parametrize("content", [None, b"", b"\x00" * 8])
def test_files_that_do_not_belong_together_are_refused_by_name(suffix, content, prefix, tmp_path):
    path = tmp_path / f"out.{suffix}"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"out\.{suffix}"):
        Packs(prefix, LENGTH)


def test_there_is_no_pack_behind_the_last(prefix):
    packs = Packs(prefix, LENGTH)
    with pytest.raises(IndexError):
        packs[3]
    assert len(list(packs)) == 3
