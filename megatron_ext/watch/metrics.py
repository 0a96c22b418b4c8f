"""What a run reports: a line on the terminal, a line of metrics.jsonl, TensorBoard scalars. Rank 0 only."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Dict, Optional

from megatron_ext.config import megatron
from megatron_ext.config.rundir import metrics as metrics_path
from megatron_ext.config.rundir import write_atomically
from megatron_ext.config.schema import Precision, Run, world_size
from megatron_ext.runtime import device
from megatron_ext.step import Outcome


class Metrics:
    """Sinks of one attempt. Lines of steps that a restart repeats are dropped from metrics.jsonl when it begins."""

    def __init__(self, run: Run, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.run, self.path = run, metrics_path(folder)
        _forget_from(self.path, first_step)
        # Line-buffered: a line is on disk as soon as it is printed.
        self.file = open(self.path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)
        self.tokens = run.train.global_batch_size * run.model.seq_length
        self.flops = megatron.flops_per_token(run) * self.tokens
        self.smoothed: Optional[float] = None

    def step(self, step: int, outcome: Outcome, seconds: float) -> None:
        """`step` updates have been made; the last took `seconds`."""
        # The first step of an attempt warms caches and allocators; it must not set the estimate.
        self.smoothed = (
            seconds if self.smoothed is None else 0.9 * self.smoothed + 0.1 * min(seconds, 3 * self.smoothed)
        )
        values: Dict[str, Any] = {
            "loss": outcome.loss,
            "learning_rate": outcome.learning_rate,
            "grad_norm": outcome.grad_norm,
            "tokens_per_second": self.tokens / seconds,
            "step_seconds": seconds,
        }
        if (peak := device.peak_flops()) and self.run.train.precision == Precision.bf16:  # the peak is of bf16
            values["mfu"] = self.flops / seconds / (peak * world_size(self.run.parallel))
        self._write(step, values)
        if step % self.run.train.log_every == 0 or step == self.run.train.steps:
            print(self._line(step, values), flush=True)

    def evaluation(self, step: int, loss: float) -> None:
        self._write(step, {"validation_loss": loss})
        print(f"step {step:>7} validation loss {loss:.4f}", flush=True)

    def close(self) -> None:
        self.file.close()
        self.board.close()

    def _line(self, step: int, values: Dict[str, Any]) -> str:
        left = (self.run.train.steps - step) * (self.smoothed or 0.0)
        mfu = f" | MFU {100 * values['mfu']:.1f} %" if "mfu" in values else ""
        return (
            f"step {step:>7}/{self.run.train.steps} | loss {values['loss']:.4f} | lr {values['learning_rate']:.2e} | "
            f"grad norm {values['grad_norm']:.3f} | {values['tokens_per_second']:,.0f} tokens/s{mfu} | "
            f"ETA {_duration(left)}"
        )

    def _write(self, step: int, values: Dict[str, Any]) -> None:
        self.file.write(json.dumps({"step": step, "time": time.time(), **values}) + "\n")
        for name, value in values.items():
            self.board.add_scalar(name, value, step)


def _forget_from(path: Path, first_step: int) -> None:
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            if json.loads(line)["step"] <= first_step:
                kept.append(line)
        except (json.JSONDecodeError, KeyError):
            pass  # the line that a kill cut short
    write_atomically(path, "".join(kept))


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
