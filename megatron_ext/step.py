"""One training step: microbatches -> Megatron's schedule -> clip -> update -> what to report."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Dict, Iterator, List, Tuple

import torch
import torch.distributed as dist

from megatron_ext.config.schema import Run, padded_vocab_size
from megatron_ext.data.loader import Loader, Microbatch
from megatron_ext.model.attention.mask import causal_mask
from megatron_ext.model.loss import vocab_parallel_cross_entropy
from megatron_ext.optim.adamw import AdamW
from megatron_ext.optim.schedule import learning_rate
from megatron_ext.runtime.parallel import Grid


@dataclass(frozen=True)
class Outcome:
    """The same on every rank."""

    loss: float  # mean over all tokens of the step that are learned
    grad_norm: float  # before clipping
    learning_rate: float


class Stepper:
    def __init__(self, run: Run, grid: Grid, chunks: List[Any], optimizer: AdamW) -> None:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        self.run, self.grid, self.chunks, self.optimizer = run, grid, chunks, optimizer
        self.schedule = get_forward_backward_func()
        self.forward = partial(forward_step, run=run, grid=grid)

    def train(self, step: int, loader: Loader) -> Outcome:
        """Update number `step`. Communication: Megatron's schedule, one all-reduce for the norm, two for the loss."""
        self.optimizer.zero_grad()
        losses = self._run_schedule(step, loader, forward_only=False)
        rate = learning_rate(step, self.run.optim, self.run.train.steps)
        norm = self.optimizer.step(rate)
        return Outcome(self._mean(losses), norm, rate)

    def evaluate(self, loader: Loader) -> float:
        """Mean loss over train.eval_batches global batches, without dropout."""
        for chunk in self.chunks:
            chunk.eval()
        losses: List[Dict[str, torch.Tensor]] = []
        with torch.no_grad():
            for step in range(self.run.train.eval_batches):
                losses += self._run_schedule(step, loader, forward_only=True)
        for chunk in self.chunks:
            chunk.train()
        return self._mean(losses)

    def _run_schedule(self, step: int, loader: Loader, forward_only: bool) -> List[Dict[str, torch.Tensor]]:
        train, parallel = self.run.train, self.run.parallel
        iterators = [loader.microbatches(step) for _ in self.chunks]
        return self.schedule(
            forward_step_func=self.forward,
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=self.chunks if len(self.chunks) > 1 else self.chunks[0],
            num_microbatches=train.global_batch_size // (train.micro_batch_size * parallel.data),
            seq_length=self.run.model.seq_length,
            micro_batch_size=train.micro_batch_size,
            forward_only=forward_only,
        )

    def _mean(self, losses: List[Dict[str, torch.Tensor]]) -> float:
        """Sum of losses and of tokens on the last stage -> mean, everywhere."""
        sums = torch.zeros(2, dtype=torch.float64, device=self.grid.device)
        for entry in losses:
            sums += entry["sums"]
        dist.all_reduce(sums, group=self.grid.groups.dp_cp)
        # Only the last stage has losses; the others add zeros.
        dist.all_reduce(sums, group=self.grid.groups.pp)
        return float((sums[0] / sums[1].clamp(min=1)).item())


def forward_step(data: Iterator[Microbatch], model: Any, run: Run, grid: Grid) -> Tuple[torch.Tensor, Any]:
    """What Megatron's schedule calls for one microbatch and one model chunk."""
    batch = next(data)
    mask = None if batch.owners is None else causal_mask(batch.owners, grid.groups.cp)
    output = model(batch.tokens, batch.positions, mask)
    smoothing = run.train.label_smoothing if model.training else 0.0  # validation reports the plain loss
    return output, partial(_loss, batch=batch, smoothing=smoothing, run=run, grid=grid)


def _loss(
    output_BSV: torch.Tensor, batch: Microbatch, smoothing: float, run: Run, grid: Grid
) -> Tuple[torch.Tensor, torch.Tensor, Any]:
    """Called on the last stage only: -> (sum of losses, number of tokens they are of, what to report)."""
    assert output_BSV.shape[-1] == padded_vocab_size(run.model) // grid.groups.tp.size()
    losses = vocab_parallel_cross_entropy(output_BSV, batch.labels, run.model.vocab_size, smoothing, grid.groups.tp)
    total = losses.sum() if batch.learned is None else (losses * batch.learned).sum()
    tokens = torch.tensor(losses.numel(), dtype=torch.int, device=total.device)
    if batch.learned is not None:
        tokens = batch.learned.sum(dtype=torch.int)
    return total, tokens, {"sums": torch.stack([total.detach().double(), tokens.double()])}
