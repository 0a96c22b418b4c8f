"""The arithmetic of layouts, against what megatron-core itself writes and against the formula written out slowly."""

from __future__ import annotations

import pytest

from checkpoints_tools import layout
from checkpoints_tools.formats import torch_dist
from megatron_ext.config import rundir
from megatron_ext.config.schema import Activation, Model, Moe, Parallel, world_size
from tests.checkpoints_tools.samples import assert_same, convert
from tests.megatron_ext.training import make_run, tensors, train

MOE = ["model=mixtral_tiny", "model.moe.num_experts=4", "model.moe.expert_ffn_size=36"]
GPT = ["model=gpt_tiny", "model.num_kv_heads=null", "model.ffn_size=64"]
SIZES = ("data", "tensor", "pipeline", "virtual-pipeline", "context", "expert", "expert-tensor")
LAYOUTS = {
    "tp2 pp2": ["parallel.tensor=2", "parallel.pipeline=2"],
    "tied pp2 vpp2": ["parallel.pipeline=2", "parallel.virtual_pipeline=2", "model.tie_embeddings=true"],
    "tp4, two kv groups": ["parallel.tensor=4"],
    "gpt tp2": [*GPT, "parallel.tensor=2"],
    "ep2 tp2 etp1": [*MOE, "parallel.data=2", "parallel.expert=2", "parallel.tensor=2", "parallel.sequence=true"],
    "ep2 etp2": [
        *(MOE + ["parallel.data=2", "parallel.expert=2", "parallel.tensor=2", "parallel.expert_tensor=2"]),
        *["parallel.sequence=true", "model.moe.shared_expert_ffn_size=24"],
    ],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_boxes_and_ranks_are_those_that_megatron_itself_writes(tmp_path, name):
    """Every weight: the same boxes, each in the file of the same rank, as dist_checkpointing chose on real ranks."""
    run, folder = make_run(tmp_path, *LAYOUTS[name], "train.steps=1")
    results = train(run, folder)
    assert {code for code, _ in results} == {0}, results
    reader = torch_dist.Reader(rundir.checkpoints(folder) / "iter_0000001")
    weights = [key for key in reader.tensors if not key.startswith("optimizer.")]
    assert len(weights) >= 8 - run.model.tie_embeddings
    for key in reader.tensors:
        assert layout.place(key) is not None, key
    for key in weights:
        shape = reader.tensors[key].shape
        found = {
            (rank, *box)
            for piece in layout.slices(key, shape)
            for rank, box in layout.holders(key, piece, run.model, run.parallel)
        }
        assert found == {(_rank(chunk.file), chunk.offset, chunk.shape) for chunk in reader._chunks[key]}, key
    # And all of it, optimizer included, goes to one rank and back, expert layouts too.
    assert convert(folder, tmp_path / "one", *(part for size in SIZES for part in (f"--{size}", 1))) == 0
    sizes = {size: getattr(run.parallel, size.replace("-", "_")) for size in SIZES}
    assert convert(tmp_path / "one", tmp_path / "back", *(part for s in sizes for part in (f"--{s}", sizes[s]))) == 0
    for name in ("one", "back"):
        assert_same(tensors(tmp_path / name), tensors(reader.folder))


def _rank(file: str) -> int:
    return int(file.split("_")[2])


@pytest.mark.parametrize("layers, stages, chunks", [(4, 2, 1), (8, 2, 2), (12, 3, 2), (8, 1, 1), (8, 4, 2), (8, 8, 1)])
def test_layers_of_virtual_stages(layers, stages, chunks):
    """Chunk c of stage s holds layers c (L / v) + s (L / (p v)) onward."""
    run = layers // (stages * chunks)
    expected = {}
    for chunk in range(chunks):
        for stage in range(stages):
            first = chunk * (layers // chunks) + stage * run
            expected.update(dict.fromkeys(range(first, first + run), stage))
    parallel = Parallel(pipeline=stages, virtual_pipeline=chunks)
    assert {i: layout.stage_of_layer(i, Model(num_layers=layers), parallel) for i in range(layers)} == expected


def test_a_plain_first_layer_is_cut_in_one_run_a_rank():
    """Gated: rank 0 has the first half of the gate and the first half of up; plain: the first half of all."""
    name, piece, parallel = "decoder.layers.mlp.linear_fc1.weight", ((0, 0, 0), (1, 8, 2)), Parallel(tensor=2)
    gated = list(layout.holders(name, piece, Model(), parallel))
    assert [(rank, box[0][1], box[1][1]) for rank, box in gated] == [(0, 0, 2), (1, 2, 2), (0, 4, 2), (1, 6, 2)]
    plain = list(layout.holders(name, piece, Model(activation=Activation.gelu), parallel))
    assert [(rank, box[0][1], box[1][1]) for rank, box in plain] == [(0, 0, 4), (1, 4, 4)]


def test_experts_are_numbered_over_the_whole_model():
    """Expert e of E lies on expert rank e // (E / EP); data-parallel copies of it are not written."""
    model, parallel = Model(moe=Moe(num_experts=8)), Parallel(data=8, expert=4)
    name = "decoder.layers.mlp.experts.experts.linear_fc2.weight"
    for expert in range(8):
        ((rank, box),) = layout.holders(name, ((1, expert, 0, 0), (1, 1, 4, 4)), model, parallel)
        assert rank == expert // 2 and box == ((1, expert, 0, 0), (1, 1, 4, 4))


def test_optimizer_state_is_spread_over_the_copies_only_when_they_share_it():
    model, shape = Model(), (4, 64)
    name = "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.layer_norm_weight"

    def ranks(parallel: Parallel) -> set[int]:
        return {r for piece in layout.slices(name, shape) for r, _ in layout.holders(name, piece, model, parallel)}

    spread = Parallel(data=4, pipeline=2)
    assert len(ranks(spread)) > 2 and max(ranks(spread)) < world_size(spread)
    assert ranks(Parallel(data=4, pipeline=2, distributed_optimizer=False)) == {0, 4}


def test_what_is_unknown_stays_whole():
    assert layout.place("decoder.layers.3.mlp.linear_fc1.weight") is None  # not stacked: another format
    assert list(layout.slices("adapter.weight", (2, 3))) == [((0, 0), (2, 3))]
    assert list(layout.holders("adapter.weight", ((0, 0), (2, 3)), Model(), Parallel(tensor=2))) == [
        (0, ((0, 0), (2, 3)))
    ]
