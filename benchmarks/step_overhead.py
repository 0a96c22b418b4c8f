"""What our loop adds to the bare megatron-core schedule call: `python -m benchmarks.step_overhead [--check]`.

One process, one model, one run: each of our steps (data from shards, the vote on signals, our loss, clipping and AdamW,
the mean loss, metrics.jsonl, TensorBoard, the progress line) is followed by one bare call of megatron-core's schedule
on the same batch, held in memory, with megatron-core's own loss and no update. Medians, and the overhead in percent.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator, List, Tuple

from benchmarks.equivalence import write_shard
from megatron_ext.config import load
from megatron_ext.config.schema import Run
from megatron_ext.runtime.fork import run_ranks
from megatron_ext.train import Loop

LIMIT_PERCENT = 3.0
SETTINGS = [
    "model=llama_tiny",
    "model.hidden_size=256",
    "model.ffn_size=688",
    "train.precision=fp32",
    "train.global_batch_size=16",
    "train.steps=16",
    "data.tokenizer.path=''",
]
WARM_UP = 3  # steps whose times are dropped


class TimedLoop(Loop):
    """The real loop; between its steps, outside the clock, the bare call."""

    ours: List[float]
    bare: List[float]
    mark: float

    def _between_steps(self, step: int, metrics: Any) -> None:
        self.ours.append(time.perf_counter() - self.mark)
        batches = list(self.loader.microbatches(step - 1))
        began = time.perf_counter()
        self.stepper.schedule(
            forward_step_func=_bare_forward_step,
            data_iterator=iter(batches),
            model=self.stepper.chunks[0],
            num_microbatches=len(batches),
            seq_length=self.run.model.seq_length,
            micro_batch_size=self.run.train.micro_batch_size,
            forward_only=False,
        )
        self.bare.append(time.perf_counter() - began)
        self.mark = time.perf_counter()


def _bare_forward_step(data: Iterator[Any], model: Any) -> Tuple[Any, Any]:
    import torch

    batch = next(data)
    output = model(batch.tokens, batch.positions, None, labels=batch.labels)
    return output, lambda losses: (losses.sum(), torch.tensor(losses.numel(), dtype=torch.int), {})


def measure(run: Run, folder: Path) -> Tuple[List[float], List[float]]:
    """-> seconds of each of our steps, of each bare call."""
    from megatron_ext.data.loader import Loader
    from megatron_ext.model.build import build
    from megatron_ext.optim.adamw import AdamW
    from megatron_ext.runtime import parallel
    from megatron_ext.runtime.signals import StopFlag
    from megatron_ext.step import Stepper

    grid = parallel.start(run)
    chunks = build(run, grid)
    stepper = Stepper(run, grid, chunks, AdamW(chunks, run, grid))
    loop = TimedLoop(run, folder, grid, stepper, (Loader(run, grid, "train"), None), StopFlag())
    loop.ours, loop.bare, loop.mark = [], [], time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):  # its lines are printed, but not on this table
        loop.go(0)
    return loop.ours[WARM_UP:], loop.bare[WARM_UP:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help=f"exit 1 when the overhead exceeds {LIMIT_PERCENT} %%")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shard(folder / "shard", 4000)
        run = load.compose([*SETTINGS, f"data.blend=[{folder}/shard]"])
        ours, bare = run_ranks(1, measure, run, folder)[0]
    print(f"settings: {' '.join(SETTINGS)}; seed {run.seed}; {len(ours)} steps each")
    print(f"{'':<28}{'median ms':>10}{'least ms':>10}")
    for title, times in (("bare megatron-core schedule", bare), ("our whole step", ours)):
        print(f"{title:<28}{1e3 * statistics.median(times):10.1f}{1e3 * min(times):10.1f}")
    # Of pairs that ran back to back, so that what else the machine does weighs on both alike.
    overhead = 100 * (statistics.median(a / b for a, b in zip(ours, bare)) - 1)
    passed = overhead <= LIMIT_PERCENT
    verdict = "passed" if passed else "MISSED"
    print(f"{verdict}: our step takes {overhead:+.1f} % over the bare call (limit {LIMIT_PERCENT} %)")
    return 1 if options.check and not passed else 0


if __name__ == "__main__":
    sys.exit(main())
