"""What the demonstration does, in order, and what it holds each stage to."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any, Dict, List

from demo.journal import Journal, StageFailed
from megatron_ext.config import rundir
from megatron_ext.config.schema import Run

PROMPT = "This module provides an interface to the"
LOGITS_LIMIT = 1e-4  # fp32 on both sides: rounding stays far below, a mistaken weight far above
FIRST_LOSS_LIMIT = 0.3  # a model that has seen nothing guesses: its loss is ln(vocabulary)
STAGES = 8


@dataclass(frozen=True)
class Plan:
    folder: Path  # runs/demo
    run: Run  # as composed from `overrides`
    overrides: List[str]  # what llm-launch and llm-preprocess are given
    bar: float  # the validation loss at the end has to be below it
    data: List[str] = field(default_factory=lambda: ["data=demo"])

    @property
    def train(self) -> Path:
        return self.folder / "train"

    @property
    def single(self) -> Path:
        return self.folder / "single"

    @property
    def exported(self) -> Path:
        return self.folder / "hf"


def carry_out(plan: Plan, journal: Journal) -> None:
    """Every stage and its check. Raises StageFailed."""
    preprocess(plan, journal)
    train_and_stop(plan, journal)
    train_on(plan, journal)
    convert(plan, journal)
    export(plan, journal)
    verify(plan, journal)
    compare_logits(plan, journal)
    generate(plan, journal)


def preprocess(plan: Plan, journal: Journal) -> None:
    entry = journal.run("preprocess", "Train a tokenizer, turn the text into tokens", ["llm-preprocess", *plan.data])
    manifest = json.loads(Path(f"{plan.run.data.source.output}.json").read_text())
    names = ("documents", "tokens", "text_bytes", "unknown_tokens")
    kinds = manifest["tokenizer"]["vocab_size"]
    text = f"{manifest['documents']:,} documents, {manifest['tokens']:,} tokens of {kinds:,} kinds"
    journal.tell(entry, text, {**{name: manifest[name] for name in names}, "vocab_size": kinds})


def train_and_stop(plan: Plan, journal: Journal) -> None:
    half = plan.run.train.steps // 2
    metrics = rundir.metrics(plan.train)
    entry = journal.run(
        "train",
        "Train, and be stopped half-way",
        _launch(plan),
        expected=rundir.EXIT_STOPPED,
        stop_when=lambda: any(row["step"] >= half for row in read_metrics(metrics)),
    )
    step = _verdict(plan, "stopped")
    first = next(row["loss"] for row in read_metrics(metrics) if "loss" in row)
    guess = math.log(plan.run.model.vocab_size)
    if abs(first - guess) > FIRST_LOSS_LIMIT:
        raise StageFailed(f"the first loss is {first:.3f}, not about ln({plan.run.model.vocab_size}) = {guess:.3f}")
    text = f"loss {first:.3f} at the first step, saved after step {step}"
    journal.tell(entry, text, {"stopped_at": step, "first": first})


def train_on(plan: Plan, journal: Journal) -> None:
    entry = journal.run("resume", "Launch again, and go on", _launch(plan))
    steps = _verdict(plan, "done")
    rows = read_metrics(rundir.metrics(plan.train))
    train = [row for row in rows if "loss" in row]
    if [row["step"] for row in train] != list(range(1, steps + 1)):
        raise StageFailed(f"{rundir.metrics(plan.train)} does not have each of the {steps} steps once")
    last = mean(row["loss"] for row in train[-10:])
    held_out = [row["validation_loss"] for row in rows if "validation_loss" in row][-1]
    speed = median(row["tokens_per_second"] for row in train)
    if not held_out < plan.bar:
        raise StageFailed(f"the loss on held-out text is {held_out:.3f} after {steps} steps, not below {plan.bar}")
    text = f"loss {last:.3f}, on held-out text {held_out:.3f} (bar: below {plan.bar}), {speed:,.0f} tokens/s"
    facts = {"steps": steps, "last": last, "held_out": held_out, "bar": plan.bar, "tokens_per_second": speed}
    journal.tell(entry, text, facts)


def convert(plan: Plan, journal: Journal) -> None:
    command = ["llm-convert", str(plan.train), str(plan.single), "--tensor", "1", "--pipeline", "1"]
    entry = journal.run("convert", "Convert four ranks to one", command)
    _converted(journal, entry, plan.single, "weights and the optimizer's state")


def export(plan: Plan, journal: Journal) -> None:
    entry = journal.run(
        "export", "Convert to Hugging Face", ["llm-convert", str(plan.single), str(plan.exported), "--to", "hf"]
    )
    _converted(journal, entry, plan.exported, "weights and the tokenizer")


def verify(plan: Plan, journal: Journal) -> None:
    command = ["llm-convert", "verify", str(plan.train), str(plan.exported)]
    entry = journal.run("verify", "Compare the weights bit by bit", command)
    journal.tell(entry, "the exported weights are those of the four ranks", {})


def compare_logits(plan: Plan, journal: Journal) -> None:
    result = plan.folder / "logits.json"
    command = ["python", "-m", "demo.logits", str(plan.single), str(plan.exported), "--out", str(result)]
    entry = journal.run("logits", "Load in transformers, compare logits", command)
    facts = json.loads(result.read_text())
    if not facts["largest_difference"] < LOGITS_LIMIT:
        raise StageFailed(f"logits differ by {facts['largest_difference']:.1e}, the limit is {LOGITS_LIMIT:.0e}")
    text = f"{facts['compared']:,} logits, the largest difference {facts['largest_difference']:.1e}"
    journal.tell(entry, text, facts)


def generate(plan: Plan, journal: Journal) -> None:
    result = plan.folder / "generated.json"
    command = ["python", "-m", "demo.generate", str(plan.exported), PROMPT, "--out", str(result)]
    entry = journal.run("generate", "Write a paragraph", command)
    facts = json.loads(result.read_text())
    journal.tell(entry, f"{facts['tokens']} tokens, sampled by transformers", facts)


def read_metrics(path: Path) -> List[Dict[str, Any]]:
    """Whole lines of a metrics.jsonl that may be growing; none when it is not there yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def size(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _launch(plan: Plan) -> List[str]:
    return ["llm-launch", f"root={plan.folder}", "name=train", *plan.data, *plan.overrides]


def _verdict(plan: Plan, expected: str) -> int:
    """-> the step at which the run ended."""
    verdict = rundir.read_verdict(plan.train)
    if verdict is None or verdict["state"] != expected:
        raise StageFailed(f"{plan.train}/verdict.json says {verdict}, not {expected!r}")
    return int(verdict["step"])


def _converted(journal: Journal, entry: Dict[str, Any], folder: Path, what: str) -> None:
    tensors, nbytes = len(json.loads((folder / "conversion.json").read_text())["tensors"]), size(folder)
    journal.tell(entry, f"{tensors} tensors, {nbytes / 1e6:.1f} MB: {what}", {"tensors": tensors, "bytes": nbytes})
