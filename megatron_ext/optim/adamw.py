"""AdamW over the elements this rank owns, in fp32, with the global gradient norm and clipping.

Our own in place of megatron-core 0.16.1's optimizers, which leave expert gradients out of the norm under EP x TP, share
one step counter among all parameters after a resume with torch's Adam, refuse or corrupt checkpoints of several padded
buckets, and cannot carry expert state between EP 1 and EP 2 (docs/decisions.md).
"""

from __future__ import annotations

import importlib
import logging
from typing import Any, Dict, List, Tuple

import torch
import torch.distributed as dist

from megatron_ext.config.schema import Optim, Run
from megatron_ext.model.places import find_places
from megatron_ext.optim.shards import find_shards, sharded_tensors
from megatron_ext.runtime import device
from megatron_ext.runtime.parallel import Grid

log = logging.getLogger(__name__)

_MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW:
    """Optimizer of one rank over DDP chunks whose gradients `finalize_model_grads` has reduced.

    step() communicates one number over the world (the norm) and, with the distributed optimizer, all-gathers the
    updated parameters over their data-parallel groups (with overlap_param_gather: at the next forward pass).
    """

    def __init__(self, chunks: List[Any], run: Run, grid: Grid) -> None:
        self.chunks, self.grid, self.optim, self.parallel = chunks, grid, run.optim, run.parallel
        self.shards = find_shards(chunks, find_places(chunks, grid))
        # In fp32 the model's own elements are the master copy.
        self.masters = [torch.nn.Parameter(s.model.float(), requires_grad=False) for s in self.shards]
        self.inner = _inner(self._groups(run.optim), run.optim)
        self.taken = 0  # updates so far; Adam's bias correction
        for master in self.masters:  # now rather than at the first step, so that a checkpoint has somewhere to load to
            self.inner.state[master].update({name: torch.zeros_like(master) for name in _MOMENTS})
        self._set_steps()

    def _groups(self, optim: Optim) -> List[Dict[str, Any]]:
        groups: Dict[float, List[torch.nn.Parameter]] = {}
        for shard, master in zip(self.shards, self.masters):
            decay = 0.0 if shard.parameter.dim() == 1 else optim.weight_decay  # vectors: norms and biases
            groups.setdefault(decay, []).append(master)
        return [{"params": masters, "weight_decay": decay} for decay, masters in groups.items()]

    def zero_grad(self) -> None:
        for chunk in self.chunks:
            chunk.zero_grad_buffer()

    @torch.no_grad()
    def step(self, rate: float) -> float:
        """One update with learning rate `rate`; -> global gradient norm before clipping.

        A norm that is not finite changes nothing: the caller decides what to do about it.
        """
        norm = self.grad_norm()
        if not torch.isfinite(torch.tensor(norm)):
            return norm
        grads = [shard.grad for shard in self.shards]
        if self.optim.clip_grad and norm > self.optim.clip_grad:
            torch._foreach_mul_(grads, self.optim.clip_grad / (norm + 1e-6))
        for master, grad in zip(self.masters, grads):
            master.grad = grad
        for group in self.inner.param_groups:
            group["lr"] = rate
        self.inner.step()
        self.taken += 1
        self._write_back()
        return norm

    def grad_norm(self) -> float:
        """L2 norm over every weight of the whole model, each counted once. All-reduces one number over the world."""
        counted = [shard.grad for shard in self.shards if shard.is_counted]
        squares = torch.zeros(1, dtype=torch.float64, device=self.grid.device)
        if counted:
            squares += torch.stack(torch._foreach_norm(counted)).double().square().sum()
        dist.all_reduce(squares)
        return float(squares.sqrt().item())

    def _write_back(self) -> None:
        """Updated values into the model, and to the other data-parallel ranks."""
        for shard, master in zip(self.shards, self.masters):
            if shard.model.data_ptr() != master.data_ptr():
                shard.model.copy_(master)
        if self.parallel.distributed_optimizer and not self.parallel.overlap_param_gather:
            for chunk in self.chunks:
                chunk.start_param_sync()

    def finish_param_sync(self) -> None:
        """With overlap_param_gather weights are whole only at the next forward pass; a save cannot wait for it."""
        if self.parallel.overlap_param_gather:
            for chunk in self.chunks:
                chunk.start_param_sync(force_sync=True)

    def sharded_state_dict(self) -> Dict[str, Any]:
        """Tensors `optimizer.state.<exp_avg | exp_avg_sq | param>.<weight's name>` in the shapes of the whole model.

        Loading writes in place; call `loaded` after it.
        """
        state: Dict[str, Any] = {}
        for index, (shard, master) in enumerate(zip(self.shards, self.masters)):
            values = {name: self.inner.state[master][name] for name in _MOMENTS}
            if shard.model.data_ptr() != master.data_ptr():
                values["param"] = master.data
            for name, tensor in values.items():
                for part, entry in enumerate(sharded_tensors(shard, tensor, f"optimizer.state.{name}")):
                    state[f"{index}.{name}.{part}"] = entry
        return state

    def loaded(self, taken: int) -> None:
        """After a load in place: `taken` updates have been made, the model takes the master's values."""
        self.taken = taken
        self._set_steps()
        for shard, master in zip(self.shards, self.masters):
            if shard.model.data_ptr() != master.data_ptr():
                shard.model.copy_(master)

    def reload_masters(self) -> None:
        """After new weights were written into the model: the master copies follow."""
        for shard, master in zip(self.shards, self.masters):
            if shard.model.data_ptr() != master.data_ptr():
                master.copy_(shard.model)

    def _set_steps(self) -> None:
        # One counter a parameter: torch's AdamW adds to it in place, so a shared one would count every parameter.
        for master in self.masters:
            self.inner.state[master]["step"] = torch.tensor(float(self.taken), device=master.device)
        for group in self.inner.param_groups:  # fused implementations of apex and Transformer Engine keep it here
            if type(self.inner) is not torch.optim.AdamW:
                group["step"] = self.taken


def _inner(groups: List[Dict[str, Any]], optim: Optim) -> Any:
    """The fastest AdamW that can be imported: Transformer Engine's, apex's, torch's fused."""
    common: Dict[str, Any] = dict(lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps)
    for module, name in _fused_candidates():
        try:
            kind = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            log.info("optimizer: not %s.%s (%s)", module, name, error)
            continue
        log.info("optimizer: %s.%s", module, name)
        return kind(groups, adam_w_mode=True, **common)
    log.info("optimizer: torch.optim.AdamW, fused")
    return torch.optim.AdamW(groups, fused=True, **common)


def _fused_candidates() -> Tuple[Tuple[str, str], ...]:
    if not device.on_gpu():
        return ()
    return ("transformer_engine.pytorch.optimizers", "FusedAdam"), ("apex.optimizers", "FusedAdam")
