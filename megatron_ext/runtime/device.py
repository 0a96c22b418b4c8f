"""The one module that knows whether a GPU is there.

With a GPU nothing is patched. Without one, megatron-core 0.16.1 still asks for CUDA in places where the CPU means the
same thing; `install()` gives those places the CPU's answer. No replacement changes any maths. Each states who needs it.

    install()  must run before megatron.core is imported (its `jit_fuser` is bound at import)
"""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any, Callable, Optional

import torch
from torch.utils._device import _device_constructors

# Dense bf16 peak in FLOP/s by the name the driver reports (vendors' data sheets, without sparsity).
_PEAK_FLOPS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "H800": 989e12,
    "A100": 312e12,
    "B200": 2250e12,
    "L40S": 362e12,
}

_installed = False


def on_gpu() -> bool:
    return torch.cuda.is_available()


def backend() -> str:
    return "nccl" if on_gpu() else "gloo"


def device(local_rank: int) -> torch.device:
    """This rank's device; also makes it current, which NCCL and megatron-core rely on."""
    if not on_gpu():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ValueError(
            f"local rank {local_rank} but only {torch.cuda.device_count()} GPUs are visible; start fewer ranks on this "
            f"machine (parallel.*, cluster.ranks_per_node), or hide the GPUs to run on CPU (CUDA_VISIBLE_DEVICES=)"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def current() -> torch.device:
    """The device that `device()` made current."""
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu() else torch.device("cpu")


def synchronize() -> None:
    if on_gpu():
        torch.cuda.synchronize()


def rng_state() -> torch.Tensor:
    """State of the generator that dropout on this device draws from."""
    return torch.cuda.get_rng_state() if on_gpu() else torch.get_rng_state()


def set_rng_state(state: torch.Tensor) -> None:
    (torch.cuda.set_rng_state if on_gpu() else torch.set_rng_state)(state)


def peak_memory_bytes() -> int:
    """Largest memory this rank has held: on the GPU by the allocator, else resident memory of the process."""
    if on_gpu():
        return torch.cuda.max_memory_allocated()
    # Not getrusage: its ru_maxrss starts at what the process that launched this one held.
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def peak_flops() -> Optional[float]:
    """Dense bf16 FLOP/s of this device, or None where we do not know it (then no MFU is shown)."""
    if not on_gpu():
        return None
    name = torch.cuda.get_device_name()
    return next((flops for known, flops in _PEAK_FLOPS.items() if known in name), None)


def install() -> None:
    """Make megatron-core run on this device. Idempotent; does nothing when there is a GPU."""
    global _installed
    if _installed or on_gpu():
        return
    _installed = True
    _replace_cuda_functions()
    _replace_cuda_literals()
    _keep_megatron_uncompiled()
    _replace_in_megatron()


def _replace_cuda_functions() -> None:
    """torch.cuda entry points that raise without a driver, by what they mean on the CPU.

    Fresh functions rather than torch.cpu's own: dynamo keeps one handler per function object and asserts on a second.
    """

    # Buffers of DDP, point-to-point communication, rotary tables, attention masks ask where they live.
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    # Point-to-point communication, timers and checkpoint loading wait for kernels; on the CPU there are none in flight.
    torch.cuda.synchronize = lambda device=None: None
    # The tensor-parallel RNG tracker and activation recomputation save and restore the device's generator.
    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = lambda device="cuda": torch.get_rng_state()
    torch.cuda.set_rng_state = torch.cuda.random.set_rng_state = lambda new_state, device="cuda": _restore_cpu(
        new_state
    )
    torch.cuda.manual_seed = lambda seed: _seed_cpu(seed)  # type: ignore[assignment]
    # The all-to-all dispatcher of experts copies token counts on a side stream.
    torch.cuda.Stream = _CpuStream  # type: ignore[misc,assignment]
    torch.cuda.Event = _CpuEvent  # type: ignore[misc,assignment]
    torch.cuda.current_stream = lambda device=None: _CpuStream()  # type: ignore[assignment,return-value]
    torch.cuda.default_stream = lambda device=None: _CpuStream()  # type: ignore[assignment,return-value]
    torch.cuda.stream = lambda stream: torch.cpu.stream(stream)  # type: ignore[assignment]


def _restore_cpu(state: torch.Tensor) -> None:
    torch.set_rng_state(state)


def _seed_cpu(seed: int) -> None:
    # Not torch.manual_seed: that would also seed every other device and reset Python-side state.
    torch.random.default_generator.manual_seed(int(seed))


class _CpuEvent(torch.cpu.Event):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class _CpuStream(torch.cpu.Stream):
    """torch.cpu.Stream, whose record_event returns nothing to wait on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def record_event(self, event: Any = None) -> Any:
        return event if event is not None else _CpuEvent()

    def synchronize(self) -> None:
        pass


def _replace_cuda_literals() -> None:
    """`device="cuda"` written out in megatron-core: the schedules' token counter, MoE's loss tracker, masks.

    Wrapping the few factories it uses costs nothing per operation, unlike a TorchFunctionMode (25 % of a small step).
    """
    _device_constructors()  # torch notes which functions obey `with torch.device(...)`: the originals must be the ones
    for name in ("zeros", "ones", "tensor", "empty", "empty_like", "zeros_like", "arange", "full"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign,assignment]
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self  # type: ignore[method-assign,assignment]


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return made


def _keep_megatron_uncompiled() -> None:
    """megatron-core compiles small functions when it is imported; on the CPU each would cost seconds at first use.

    Only while it is imported: torch.compile itself stays what it was for everyone else.
    """
    compile_ = torch.compile
    torch.compile = lambda function=None, **kwargs: function if function else (lambda inner: inner)  # type: ignore
    try:
        with warnings.catch_warnings():  # it notes at import what is not installed; model/build.py logs the choice
            warnings.simplefilter("ignore")
            import megatron.core
            import megatron.core.models.gpt.gpt_layer_specs  # noqa: F401
    finally:
        torch.compile = compile_


def _replace_in_megatron() -> None:
    import megatron.core.tensor_parallel.mappings as mappings
    import megatron.core.tensor_parallel.random as random
    import megatron.core.transformer.moe.token_dispatcher as token_dispatcher

    # Its own setter hands the state to torch's queue of calls to make once CUDA starts, so on the CPU nothing was ever
    # restored: RNG forks did nothing and ranks of one tensor-parallel group drew different dropout masks.
    random._set_cuda_rng_state = lambda new_state, device=-1, graph_safe=False: torch.set_rng_state(new_state)

    to_cpu = token_dispatcher.maybe_move_tensor_to_cpu

    def counts_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        # all_to_all_single refuses tensors as split sizes; upstream converts them only when they lie on a GPU.
        if as_numpy and torch.is_tensor(tensor) and tensor.device.type == "cpu":
            return tensor.numpy()
        return to_cpu(tensor, as_numpy, record_stream)

    token_dispatcher.maybe_move_tensor_to_cpu = counts_to_cpu

    gather, scatter = mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim

    def uneven_gather(x: torch.Tensor, group: Any, output_split_sizes: Any = None, *rest: Any, **named: Any) -> Any:
        # gloo gathers only equal parts; experts under tensor parallelism exchange unequal ones. All-to-all can.
        if output_split_sizes is None or group.size() == 1:
            return gather(x, group, output_split_sizes, *rest, **named)
        return _gather_rows(x, group, [int(size) for size in output_split_sizes])

    def uneven_scatter(x: torch.Tensor, group: Any, input_split_sizes: Any = None, *rest: Any, **named: Any) -> Any:
        if input_split_sizes is None or group.size() == 1:
            return scatter(x, group, input_split_sizes, *rest, **named)
        return _reduce_scatter_rows(x, group, [int(size) for size in input_split_sizes])

    mappings._gather_along_first_dim = uneven_gather
    mappings._reduce_scatter_along_first_dim = uneven_scatter


def _gather_rows(x: torch.Tensor, group: Any, rows: list[int]) -> torch.Tensor:
    """x [rows[r], ...] on rank r -> [sum(rows), ...] on all; one all-to-all."""
    out = x.new_empty((sum(rows), *x.shape[1:]))
    copies = x.repeat(group.size(), *[1] * (x.dim() - 1)).contiguous()
    torch.distributed.all_to_all_single(out, copies, rows, [x.shape[0]] * group.size(), group=group)
    return out


def _reduce_scatter_rows(x: torch.Tensor, group: Any, rows: list[int]) -> torch.Tensor:
    """x [sum(rows), ...] on all -> the sum over ranks of rows[r] rows on rank r; one all-to-all."""
    mine = rows[group.rank()]
    out = x.new_empty((mine * group.size(), *x.shape[1:]))
    torch.distributed.all_to_all_single(out, x.contiguous(), [mine] * group.size(), rows, group=group)
    return out.view(group.size(), mine, *x.shape[1:]).sum(0)
