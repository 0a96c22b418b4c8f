"""Faults of megatron-core 0.16.1 that this project works around: each is shown on the plain library, beside ours.

When a new megatron-core mends one of them, its test here fails, and our own code for it may go.
"""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace

import pytest
import torch

from benchmarks.equivalence import trajectory
from megatron_ext.config import schema
from megatron_ext.runtime import device, parallel
from megatron_ext.runtime.fork import run_ranks
from tests.megatron_ext.training import make_run

EP2_TP2_ETP1 = ["parallel.data=1", "parallel.tensor=2", "parallel.sequence=true", "parallel.expert=2"]
DP2_BUCKETS = ["parallel.data=2", "parallel.bucket_size=3001", "parallel.overlap_grad_reduce=true"]
MOE = ["model=mixtral_tiny", "model.moe.num_experts=4", "model.moe.expert_ffn_size=36"]


def in_one_rank(work, *arguments):
    return run_ranks(1, work, *arguments)[0]


# --- gradient norm -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [[], EP2_TP2_ETP1, [*EP2_TP2_ETP1, "parallel.expert_tensor=2", "parallel.data=2"], ["parallel.pipeline=2"],
     DP2_BUCKETS, ["parallel.data=2", "parallel.distributed_optimizer=false"]],
    ids=["one", "ep2 tp2 etp1", "ep2 tp2 etp2", "pp2", "dp2", "dp2 plain"],
)  # fmt: skip
def test_our_norm_counts_every_weight_once(tmp_path, layout):
    """With every gradient 1 the norm is the root of the number of weights of the whole model, in every layout."""
    run, _ = make_run(tmp_path, *MOE, *layout)
    norms = run_ranks(schema.world_size(run.parallel), _norm_of_ones, run)
    dim = schema.head_dim(run.model) * (4 + 2 * schema.num_kv_heads(run.model))
    layer = 32 * dim + 32 * 32 + 4 * 3 * 32 * 36 + 4 * 32 + 2 * 32
    assert norms == pytest.approx(
        [math.sqrt(4 * layer + 2 * 128 * 32 + 32)] * len(norms), rel=1e-7
    )  # one weight more is 7e-6


def _norm_of_ones(run):
    from megatron_ext.model.build import build
    from megatron_ext.optim.adamw import AdamW

    grid = parallel.start(run)
    chunks = build(run, grid)
    optimizer = AdamW(chunks, run, grid)
    for chunk in chunks:
        for parameter in chunk.parameters():
            parameter.main_grad.fill_(1.0)
    return optimizer.grad_norm()


def test_the_librarys_norm_leaves_experts_out(tmp_path):
    """TP2 EP2 ETP1, one dense and two expert scalars, every gradient 1: it says 1.4142 where 1.7321 is right."""
    run, _ = make_run(tmp_path, *MOE, *EP2_TP2_ETP1)
    assert run_ranks(2, _library_norm, run) == pytest.approx([math.sqrt(2)] * 2, rel=1e-5)


def _library_norm(run):
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    from megatron_ext.config.megatron import transformer_config

    parallel.start(run)
    _let_the_library_name_cpu_tensors()
    module = torch.nn.Module()
    module.dense, module.expert = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    module.expert.allreduce = False
    module.ddp_config = None
    chunk = DistributedDataParallel(transformer_config(run), DistributedDataParallelConfig(), module)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1.0, clip_grad=0.0), [chunk])
    for parameter in module.parameters():
        parameter.main_grad.fill_(1.0)
    optimizer.prepare_grads()
    return optimizer.get_grad_norm()


def _let_the_library_name_cpu_tensors():
    """Its optimizers compare the names of tensor types with those on a GPU."""
    original = torch.Tensor.type

    def named(self, dtype=None, *rest, **more):
        name = original(self, *([] if dtype is None else [dtype]), *rest, **more)
        return name.replace("torch.", "torch.cuda.", 1) if isinstance(name, str) else name

    torch.Tensor.type = named


# --- random generators -------------------------------------------------------------------------------------------


def test_rng_forks_do_nothing_without_a_gpu_in_the_plain_library():
    plain, ours = in_one_rank(_restored)
    assert not plain and ours


def _restored():
    import megatron.core.tensor_parallel.random as library

    def restores(setter):
        state = torch.get_rng_state()
        torch.rand(3)
        setter(state)
        return torch.equal(torch.get_rng_state(), state)

    ours = restores(library._set_cuda_rng_state)
    return restores(importlib.reload(library)._set_cuda_rng_state), ours  # reloaded: as the wheel has it


def test_the_same_layout_twice_gives_the_same_bits_with_dropout(tmp_path):
    dropout = ["model.hidden_dropout=0.2", "model.attention_dropout=0.2", "parallel.tensor=2", "train.steps=3"]
    run, _ = make_run(tmp_path, *dropout)
    first, second = (run_ranks(2, trajectory, run)[0] for _ in range(2))
    without, _ = make_run(tmp_path, "parallel.tensor=2", "train.steps=3")
    assert first == second != run_ranks(2, trajectory, without)[0]


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_activations_changes_no_bit_even_with_dropout(tmp_path, recompute):
    dropout = ["model.hidden_dropout=0.2", "model.attention_dropout=0.2", "parallel.tensor=2", "train.steps=3"]
    plain, _ = make_run(tmp_path, *dropout)
    again, _ = make_run(tmp_path, *dropout, f"train.recompute={recompute}")
    assert run_ranks(2, trajectory, again)[0] == run_ranks(2, trajectory, plain)[0]


def test_every_stage_and_replica_draws_its_own_dropout(tmp_path):
    """Tensor-parallel ranks of one stage share a mask; the generators of any other two ranks differ."""
    run, _ = make_run(tmp_path, "parallel.pipeline=2", "parallel.data=2", "parallel.tensor=2")
    drawn = run_ranks(8, _first_draws, run)
    places = {}
    for place, plain, _ in drawn:
        places.setdefault(place, set()).add(plain)
    assert len(places) == 4 and all(len(values) == 1 for values in places.values())
    assert len(set.union(*places.values())) == 4
    assert len({split for _, _, split in drawn}) == 8


def _first_draws(run):
    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

    grid = parallel.start(run)
    plain = torch.rand(1).item()
    with get_cuda_rng_tracker().fork():
        split = torch.rand(1).item()
    return (grid.groups.pp.rank(), grid.groups.dp.rank()), plain, split


# --- optimizer state ---------------------------------------------------------------------------------------------


def test_the_librarys_distributed_optimizer_shares_one_step_counter_after_a_load():
    counters, parameters = in_one_rank(_step_counters)
    assert parameters == 3 and counters == 1


def _step_counters():
    optimizer, _ = _library_optimizer([5, 6, 7])
    optimizer.load_state_dict(optimizer.state_dict())
    steps = [state["step"] for state in optimizer.optimizer.state.values()]
    return len({id(step) for step in steps}), len(steps)


def test_ours_has_a_step_counter_for_each_parameter(tmp_path):
    run, _ = make_run(tmp_path)
    distinct, masters, values = in_one_rank(_our_counters, run)
    assert distinct == masters and values == {3.0}


def _our_counters(run):
    from megatron_ext.model.build import build
    from megatron_ext.optim.adamw import AdamW

    grid = parallel.start(run)
    optimizer = AdamW(build(run, grid), run, grid)
    optimizer.loaded(3)
    steps = [optimizer.inner.state[master]["step"] for master in optimizer.masters]
    return len({step.data_ptr() for step in steps}), len(steps), {float(step) for step in steps}


def test_the_librarys_default_format_of_optimizer_state_is_refused():
    assert "flattened_range" in in_one_rank(_default_format_error)


def _default_format_error():
    optimizer, states = _library_optimizer([5, 6, 7])
    try:
        optimizer.sharded_state_dict(states, metadata={})
    except Exception as error:
        return str(error)
    return "accepted"


def test_the_librarys_reshardable_format_corrupts_several_padded_buckets():
    wrong, total = in_one_rank(_misplaced_moments)
    assert total == 3 and wrong > 0


def _misplaced_moments():
    sizes = [500, 300, 700]  # no multiples of 128, a bucket each
    optimizer, states = _library_optimizer(sizes, bucket_size=100)
    saved = optimizer.sharded_state_dict(states, metadata={"distrib_optim_sharding_type": "fully_reshardable"})
    moments = {entry.key: entry.data for entry in _sharded_tensors(saved) if "exp_avg." in entry.key}
    # The gradient of every element of parameter i was i + 1: its first moment is 0.1 of that.
    wrong = sum(not torch.allclose(moments[f"optimizer.state.exp_avg.p{i}"], torch.tensor(0.1 * (i + 1)))
                for i in range(3))  # fmt: skip
    return wrong, len(moments)


def _sharded_tensors(state):
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    return [entry for entry in nested_values(state) if isinstance(entry, ShardedTensor)]


def _library_optimizer(sizes, bucket_size=None):
    """megatron-core's DistributedOptimizer over vectors p0, p1 ... after one step with gradients 1, 2 ..."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    from megatron_ext.config.load import compose
    from megatron_ext.config.megatron import transformer_config

    run = compose(["train.precision=fp32"])
    parallel.start(run)
    _let_the_library_name_cpu_tensors()
    module = torch.nn.Module()
    for index, size in enumerate(sizes):
        module.register_parameter(f"p{index}", torch.nn.Parameter(torch.zeros(size)))
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=bucket_size is not None, bucket_size=bucket_size
    )
    chunk = DistributedDataParallel(transformer_config(run), ddp, module)
    settings = OptimizerConfig(optimizer="adam", lr=1e-3, clip_grad=0.0, use_distributed_optimizer=True)
    optimizer = get_megatron_optimizer(settings, [chunk])
    for index, parameter in enumerate(module.parameters()):
        parameter.main_grad.fill_(index + 1.0)
    optimizer.step()
    states = {n: ShardedTensor.from_rank_offsets(n, p, replica_id=(0, 0, 0)) for n, p in module.named_parameters()}
    return getattr(optimizer, "chained_optimizers", [optimizer])[0], states


# --- learning rate -----------------------------------------------------------------------------------------------


def test_the_librarys_scheduler_ignores_another_rate_on_resume(megatron_core):
    """Ours is a function of the step and the configuration: see test_checkpoint."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    def scheduler(rate):
        group = {"params": [], "lr": 0.0, "weight_decay": 0.0}
        return OptimizerParamScheduler(
            SimpleNamespace(param_groups=[group]), init_lr=0.0, max_lr=rate, min_lr=0.0, lr_warmup_steps=0,
            lr_decay_steps=100, lr_decay_style="constant", start_wd=0.0, end_wd=0.0, wd_incr_steps=100,
            wd_incr_style="constant", use_checkpoint_opt_param_scheduler=True, override_opt_param_scheduler=False,
        )  # fmt: skip

    before, after = scheduler(6e-4), scheduler(3e-5)
    before.step(10)
    after.load_state_dict(before.state_dict())
    after.step(1)
    assert after.optimizer.param_groups[0]["lr"] == 6e-4


# --- process groups of subclasses, experts' losses ---------------------------------------------------------------


def test_subclasses_lose_their_groups_in_the_plain_library_and_keep_them_through_our_spec(tmp_path):
    run, _ = make_run(tmp_path)
    assert in_one_rank(_groups_given, run) == (False, True)


def _groups_given(run):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.mlp import MLP
    from megatron.core.transformer.spec_utils import ModuleSpec, build_module

    from megatron_ext.config.megatron import transformer_config
    from megatron_ext.model.spec import for_subclass

    grid = parallel.start(run)
    given = []

    class Ours(MLP):
        def __init__(self, config, submodules, tp_group=None, **more):
            given.append(tp_group is grid.groups.tp)
            super().__init__(config, submodules, tp_group=tp_group, **more)

    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    mlp = layer.submodules.mlp
    for spec in (ModuleSpec(module=Ours, submodules=mlp.submodules),
                 for_subclass(Ours, mlp.submodules, tp_group=grid.groups.tp)):  # fmt: skip
        layer.submodules.mlp = spec
        build_module(layer, config=transformer_config(run), layer_number=1, pg_collection=grid.groups)
    return tuple(given)


@pytest.mark.parametrize("loss", ["aux_loss_coeff", "z_loss_coeff"])
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "library"])
def test_auxiliary_losses_do_not_depend_on_the_layout(tmp_path, loss, ours):
    """megatron-core's are TP times too weak under tensor and sequence parallelism with per-token loss."""
    settings = [*MOE, "model.moe.aux_loss_coeff=0", f"model.moe.{loss}=0.1", "train.steps=3"]
    one = run_ranks(1, _with_router, make_run(tmp_path, *settings)[0], ours)[0]
    split = run_ranks(2, _with_router, make_run(tmp_path, *settings, *EP2_TP2_ETP1)[0], ours)[0]
    difference = max(abs(a[1] - b[1]) / b[1] for a, b in zip(split, one))
    assert difference < 1e-5 if ours else difference > 1e-4


def _with_router(run, ours):
    if not ours:
        from megatron.core.transformer.moe.router import TopKRouter

        import megatron_ext.model.moe.router as router

        router.Router = TopKRouter
    return trajectory(run)


def test_nothing_is_replaced_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    monkeypatch.setattr(device, "_installed", False)
    before = (torch.zeros, torch.cuda.current_device, torch.Tensor.cuda, torch.compile)
    device.install()
    assert before == (torch.zeros, torch.cuda.current_device, torch.Tensor.cuda, torch.compile)


def test_replacing_factories_leaves_devices_as_contexts_alone():
    """transformers builds models under `with torch.device("meta")`; torch must go on to obey it."""
    assert in_one_rank(_device_under_meta) == ["meta", "meta", "cpu"]


def _device_under_meta():
    with torch.device("meta"):
        made = [torch.tensor([1.0]).device.type, torch.zeros(2).device.type]
    return [*made, torch.zeros(2, device="cuda").device.type]
