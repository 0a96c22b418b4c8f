"""Step number -> this rank's microbatches.

Every rank reads the shards itself, by memory map: no rank waits for another's broadcast, and the position of the data
is the step alone. Microbatch m of data-parallel rank r of n holds samples (m n + r) b ... (m n + r) b + b - 1 of the
step's global batch, b being the micro-batch size.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch

from megatron_ext.config.schema import Run
from megatron_ext.data import blending, source
from megatron_ext.data.packed import Packs
from megatron_ext.data.samples import Sample, Span
from megatron_ext.runtime.parallel import Grid

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Microbatch:
    """[micro-batch, sequence on this context rank] each; labels are the next tokens.

    With packs of conversations also: learned (bool), the labels that count; and owners [micro-batch, whole sequence],
    the number of the conversation that each token belongs to, which sees no other.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    learned: Optional[torch.Tensor] = None
    owners: Optional[torch.Tensor] = None


class Loader:
    def __init__(self, run: Run, grid: Grid, which: str, step: int = 0, consumed: int = 0) -> None:
        """Global batch number `step` begins at sample `consumed`: so nothing is repeated or left out when a resumed run
        has another global batch size.

        Raises ValueError for missing or damaged shards and for splits shorter than one sequence.
        """
        self.run, self.grid, self.first_step, self.first_sample = run, grid, step, consumed
        self.blend = blending.blend(run, which)
        steps = run.train.steps if which == "train" else run.train.eval_batches
        self._prepare(consumed, max(consumed, self.position(steps)))
        self.fingerprint = blending.fingerprint(run, self.blend)
        self.packed = any(isinstance(source, Packs) for source in self.blend.sources)

    def _prepare(self, begin: int, end: int) -> None:
        """All files that samples [begin, end) need: made by the first rank of a node, while the others wait."""
        if os.environ.get("LOCAL_RANK", "0") == "0":
            self.blend.prepare(begin, end)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        for prefix in self.blend.without(end):
            log.warning("%s gets none of %d samples: its weight is too small for so few", prefix, end)

    def compare(self, before: List[Dict[str, Any]]) -> None:
        """Raises ValueError when the data of the checkpoint, if there is one, was another."""
        if self.first_step and not before:
            log.warning("the checkpoint does not say what its data was, so nobody knows whether it is the same")
        changed = source.changes(before, self.fingerprint) if before else []
        if changed and not self.run.data.allow_change:
            raise ValueError(
                f"the data is not that of the checkpoint: {'; '.join(changed)}; set it back, or go on with the new "
                f"data by data.allow_change=true"
            )
        if changed:
            log.warning("the data has changed: %s", "; ".join(changed))

    def position(self, step: int) -> int:
        """Number of the first sample of global batch number `step`: all before it have been seen."""
        return self.first_sample + (step - self.first_step) * self.run.train.global_batch_size

    def microbatches(self, step: int) -> Iterator[Microbatch]:
        """Of global batch number `step`, for this data- and context-parallel rank."""
        for numbers in self._samples(step):
            yield self._microbatch([self._checked(index) for index in numbers])

    def _microbatch(self, samples: List[Sample]) -> Microbatch:
        def here(part: torch.Tensor) -> torch.Tensor:
            return _on_rank(part, self.grid.groups.cp).to(self.grid.device, non_blocking=True)

        tokens = torch.from_numpy(np.stack([sample.tokens for sample in samples]))
        inputs, labels = here(tokens[:, :-1]), here(tokens[:, 1:])
        if not self.packed:
            return Microbatch(inputs, labels, here(torch.arange(self.run.model.seq_length).expand(len(samples), -1)))
        all_of_them = np.ones(self.run.model.seq_length, bool)
        learned = np.stack([all_of_them if sample.learned is None else sample.learned for sample in samples])
        positions, owners = _apart(samples)
        owners = owners.to(self.grid.device, non_blocking=True)
        return Microbatch(inputs, labels, here(positions), here(torch.from_numpy(learned)), owners)

    def spans(self, step: int) -> List[List[Span]]:
        """The documents of every sample of global batch number `step`."""
        return [self.blend.spans(index) for index in range(self.position(step), self.position(step + 1))]

    def _samples(self, step: int) -> Iterator[range]:
        train, ranks, rank = self.run.train, self.grid.data_size, self.grid.data_rank
        size = train.micro_batch_size
        for number in range(train.global_batch_size // (size * ranks)):
            first = self.position(step) + (number * ranks + rank) * size
            yield range(first, first + size)

    def _checked(self, index: int) -> Sample:
        sample = self.blend.sample(index)
        low, high = int(sample.tokens.min()), int(sample.tokens.max())
        if low < 0 or high >= self.run.model.vocab_size:
            raise ValueError(
                f"sample {index} ({self.blend.spans(index)[0].prefix}) has token id {low if low < 0 else high}, but "
                f"model.vocab_size={self.run.model.vocab_size}; the shard was made by another tokenizer"
            )
        return sample


def _apart(samples: Sequence[Sample]) -> Tuple[torch.Tensor, torch.Tensor]:
    """-> [samples, length] each: positions, which begin anew in each sequence of a sample; the number of that sequence
    in it."""
    positions, owners = [], []
    for sample in samples:
        lengths = np.asarray([len(sample.tokens) - 1]) if sample.lengths is None else sample.lengths
        starts = np.cumsum(lengths) - lengths
        positions.append(np.arange(lengths.sum()) - np.repeat(starts, lengths))
        owners.append(np.repeat(np.arange(len(lengths)), lengths))
    return torch.from_numpy(np.stack(positions)), torch.from_numpy(np.stack(owners))


def _on_rank(x: torch.Tensor, context: object) -> torch.Tensor:
    """x [batch, sequence] -> chunks r and 2n-1-r of 2n along the sequence, so that causal work is even."""
    ranks, rank = context.size(), context.rank()  # type: ignore[attr-defined]
    if ranks == 1:
        return x.contiguous()
    chunks = x.chunk(2 * ranks, dim=1)
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]], dim=1).contiguous()
