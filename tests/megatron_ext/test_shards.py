"""Which elements a rank owns, and as which boxes of the whole model it saves them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_ext.config import megatron
from megatron_ext.config.schema import padded_vocab_size, world_size
from megatron_ext.model.places import Piece, find_places
from megatron_ext.optim.shards import Shard, boxes, find_shards, sharded_tensors
from megatron_ext.runtime import parallel
from megatron_ext.runtime.fork import run_ranks
from tests.megatron_ext.training import make_run

pytestmark = pytest.mark.usefixtures("megatron_core")


@st.composite
def ranges(draw):
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    start = draw(st.integers(0, math.prod(shape)))
    return shape, start, draw(st.integers(start, math.prod(shape)))


@given(case=ranges())
def test_boxes_are_the_range_in_order_and_few(case):
    shape, start, end = case
    whole = torch.arange(math.prod(shape)).view(shape)
    found = list(boxes(shape, start, end))
    parts = [whole[tuple(slice(a, a + n) for a, n in zip(offset, size))].reshape(-1) for offset, size in found]
    assert torch.cat([torch.arange(0), *parts]).tolist() == list(range(start, end))
    assert len(found) <= 2 * len(shape) - 1
    assert all(n > 0 for _, size in found for n in size)


def test_boxes_of_the_docstring():
    assert list(boxes((4, 10), 7, 25)) == [((0, 7), (1, 3)), ((1, 0), (1, 10)), ((2, 0), (1, 5))]
    assert list(boxes((4, 10), 0, 40)) == [((0, 0), (4, 10))]
    assert list(boxes((4, 10), 3, 3)) == []


@st.composite
def parameters(draw):
    """A parameter of one or two pieces (gate and up) in a layer of a bigger tensor, and cuts of its elements."""
    rows, columns, pieces = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 2))
    layer, layers = draw(st.integers(0, 2)), 3
    shift = draw(st.integers(0, 2)) * rows  # tensor-parallel rank's first row
    found = []
    for number in range(pieces):
        offset = (layer, number * 3 * rows + shift, 0)
        found.append(Piece("w", number * rows * columns, (rows, columns), (layers, pieces * 3 * rows, columns), offset,
                           1, (0, 0, 0)))  # fmt: skip
    numel = pieces * rows * columns
    return found, sorted(draw(st.lists(st.integers(0, numel), max_size=4))) + [numel]


@given(case=parameters())
def test_the_shards_of_a_parameter_cover_each_of_its_elements_once_and_in_its_place(case):
    pieces, cuts = case
    numel = sum(piece.numel for piece in pieces)
    whole = torch.full(pieces[0].global_shape, -1)
    start = 0
    for cut in cuts:
        values = torch.arange(start, cut)
        shard = Shard(torch.nn.Parameter(torch.zeros(numel)), start, values, values, pieces, True)
        for entry in sharded_tensors(shard, values, "optimizer.state.exp_avg"):
            assert entry.key == "optimizer.state.exp_avg.w" and tuple(entry.local_shape) == tuple(entry.data.shape)
            where = tuple(slice(a, a + n) for a, n in zip(entry.global_offset, entry.local_shape))
            assert (whole[where] == -1).all(), "an element twice"
            whole[where] = entry.data
            assert (
                entry.data.numel() == 0
                or entry.data.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
            )
        start = cut
    for piece in pieces:
        layer, row, _ = piece.offset
        expected = torch.arange(piece.start, piece.start + piece.numel).view(piece.shape)
        assert torch.equal(whole[layer, row : row + piece.shape[0]], expected)
    assert (whole >= 0).sum() == numel


def test_only_counted_shards_are_saved_as_the_main_copy():
    values, piece = torch.zeros(6), Piece("w", 0, (2, 3), (2, 3), (0, 0), 0, (1, 0, 0))
    for counted in (True, False):
        shard = Shard(torch.nn.Parameter(values), 0, values, values, [piece], counted)
        (entry,) = sharded_tensors(shard, values, "p")
        assert (entry.replica_id == (0,)) == counted and entry.local_shape == (2, 3)


def test_without_the_distributed_optimizer_the_first_data_parallel_copy_counts():
    from megatron_ext.optim.shards import _shard

    parameter = torch.nn.Parameter(torch.zeros(6))
    first, copy, duplicate = (0, 0, 0), (0, 0, 1), (0, 1, 0)
    cases = [(first, False, True), (copy, False, False), (duplicate, False, False), (copy, True, True)]
    for replica, distributed, counted in [*cases, (duplicate, True, False)]:
        buffer = SimpleNamespace(
            ddp_config=SimpleNamespace(use_distributed_optimizer=distributed),
            param_data=torch.zeros(10),
            grad_data=torch.zeros(10),
        )
        piece = Piece("w", 0, (6,), (6,), (0,), 0, replica)
        shard = _shard(buffer, parameter, 2, 8, 2, [piece])
        assert shard.is_counted == counted and shard.numel == 6 and shard.start == 0


LAYOUTS = {
    "one": [],
    "dp2 buckets": ["parallel.data=2", "parallel.bucket_size=3001", "parallel.overlap_grad_reduce=true"],
    "dp2 plain": ["parallel.data=2", "parallel.distributed_optimizer=false"],
    "tp2 pp2": ["parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true"],
    "pp2 vpp2 dp2": ["parallel.data=2", "parallel.pipeline=2", "parallel.virtual_pipeline=2"],
    "tied pp2": ["model=gpt_tiny", "parallel.pipeline=2"],
    "cp2": ["parallel.context=2"],
    "ep2 tp2": ["model=mixtral_tiny", "parallel.data=2", "parallel.tensor=2", "parallel.sequence=true",
                "parallel.expert=2"],
    "ep2 tp2 etp2": ["model=mixtral_tiny", "parallel.data=2", "parallel.tensor=2", "parallel.sequence=true",
                     "parallel.expert=2", "parallel.expert_tensor=2"],
}  # fmt: skip


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_the_counted_shards_of_all_ranks_cover_the_model_once(tmp_path, layout):
    run, _ = make_run(tmp_path, *LAYOUTS[layout])
    covered = {}
    for owned in run_ranks(world_size(run.parallel), _owned, run):
        for key, shape, offset, size in owned:
            count = covered.setdefault(key, torch.zeros(shape, dtype=torch.int))
            assert count.shape == shape
            count[tuple(slice(a, a + n) for a, n in zip(offset, size))] += 1
    model = run.model
    padding = (padded_vocab_size(model) - model.vocab_size) * model.hidden_size * (1 if model.tie_embeddings else 2)
    assert sum(count.numel() for count in covered.values()) == megatron.parameters(run) + padding
    for key, count in covered.items():
        assert (count == 1).all(), f"{key}: {count.min()} to {count.max()} times"


def _owned(run):
    from megatron_ext.model.build import build

    grid = parallel.start(run)
    chunks = build(run, grid)
    shards = find_shards(chunks, find_places(chunks, grid))
    entries = [entry for shard in shards if shard.is_counted for entry in sharded_tensors(shard, shard.grad, "g")]
    return [(e.key, tuple(e.global_shape), tuple(e.global_offset), tuple(e.local_shape)) for e in entries]
