"""runs/demo -> report.html: one file without links to anything, for a browser.

python -m demo.report runs/demo
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from html import escape
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any, Dict, Iterable, List, Tuple

from demo.chart import Curve, draw
from demo.journal import ROOT
from demo.plan import LOGITS_LIMIT, read_metrics, size
from megatron_ext.config import load, rundir
from megatron_ext.config.rundir import write_atomically
from megatron_ext.config.schema import Run, world_size

SHORT = {  # names of the stages where there is little room
    "preprocess": "Tokenise",
    "train": "Train, stop",
    "resume": "Resume",
    "convert": "To one rank",
    "export": "To Hugging Face",
    "verify": "Compare weights",
    "logits": "Compare logits",
    "generate": "Generate",
}
VERSIONS = ("torch", "megatron-core", "transformers", "sentencepiece")


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: python -m demo.report FOLDER   (that `python -m demo` has filled, as runs/demo)", file=sys.stderr)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else rundir.EXIT_BAD_INPUT
    if not (Path(sys.argv[1]) / "stages.json").is_file():
        print(f"demo.report: no stages.json in {sys.argv[1]}; `python -m demo` writes it", file=sys.stderr)
        return rundir.EXIT_BAD_INPUT
    print(write(Path(sys.argv[1])))
    return rundir.EXIT_DONE


def write(folder: Path) -> Path:
    """-> report.html in the folder."""
    path = folder / "report.html"
    write_atomically(path, page(folder))
    return path


def page(folder: Path) -> str:
    record = json.loads((folder / "stages.json").read_text())
    run = load.read(rundir.run_yaml(folder / "train"))
    facts = {entry["name"]: entry["figures"] for entry in record["stages"]}
    curve = _curve(run, read_metrics(rundir.metrics(folder / "train")), facts)
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title="From raw text to a model that transformers loads",
        kicker=f"make demo, {time.strftime('%-d %B %Y, %H:%M', time.localtime(record['began']))}",
        verdict=_verdict(record, run, facts),
        flow="\n".join(_flow(record["stages"])),
        chart=_chart(curve),
        caption=_caption(run, facts),
        tables="\n".join(_tables(folder, run, facts)),
        paragraph=_paragraph(facts["generate"]),
        paragraph_note=_paragraph_note(facts),
        stages="\n".join(_stages(record["stages"])),
        environment=_environment(),
    )


def _verdict(record: Dict[str, Any], run: Run, facts: Dict[str, Any]) -> str:
    data, trained, logits = facts["preprocess"], facts["resume"], facts["logits"]
    return (
        f"In <b>{_duration(record['ended'] - record['began'])}</b> on {_cores()} CPU cores, "
        f"{data['text_bytes'] / 1e6:.0f} MB of documentation became a language model of "
        f"{logits['parameters'] / 1e6:.1f} million weights, trained by {world_size(run.parallel)} processes that each "
        f"held a part of it. Its loss fell from {facts['train']['first']:.2f}, a blind guess, to "
        f"<b>{trained['held_out']:.2f}</b> on text it was not trained on. Converted for transformers, it gives the "
        f"same logits: the largest difference is <b>{_power(logits['largest_difference'])}</b>."
    )


def _flow(stages: List[Dict[str, Any]]) -> Iterable[str]:
    for entry in stages:
        kind = ' class="stop"' if entry["name"] == "train" else ""
        name = escape(SHORT[entry["name"]])
        yield f'<li{kind}><strong>{name}</strong><span class="time">{_duration(entry["seconds"])}</span></li>'


def _curve(run: Run, rows: List[Dict[str, Any]], facts: Dict[str, Any]) -> Curve:
    guess = math.log(run.model.vocab_size)
    return Curve(
        train=[(row["step"], row["loss"]) for row in rows if "loss" in row],
        held_out=[(row["step"], row["validation_loss"]) for row in rows if "validation_loss" in row],
        guess=guess,
        guess_label=f"blind guess: ln {run.model.vocab_size} = {guess:.2f}",
        bar=facts["resume"]["bar"],
        stopped_at=facts["train"]["stopped_at"],
    )


def _chart(curve: Curve) -> str:
    wide, narrow = draw(curve, 880, 400), draw(curve, 400, 330)
    return wide.replace('class="chart"', 'class="chart wide"') + narrow.replace('class="chart"', 'class="chart narrow"')


def _caption(run: Run, facts: Dict[str, Any]) -> str:
    stop = facts["train"]["stopped_at"]
    return (
        f"Thin line: every step, {run.train.global_batch_size} sequences of {run.model.seq_length} tokens. Thick line: "
        f"mean over neighbouring steps. Dots: documents kept out of training. After step {stop} the launcher got "
        f"SIGTERM, as a scheduler sends it; the run saved its state and ended. The same command went on with step "
        f"{stop + 1}."
    )


def _tables(folder: Path, run: Run, facts: Dict[str, Any]) -> Iterable[str]:
    data, trained, logits, parallel = facts["preprocess"], facts["resume"], facts["logits"], run.parallel
    seen = trained["steps"] * run.train.global_batch_size * run.model.seq_length
    yield _table(
        "Text",
        [
            ("Documents", f"{data['documents']:,}"),
            ("Size", f"{data['text_bytes'] / 1e6:.1f} MB"),
            ("Tokens", f"{data['tokens']:,}"),
            ("Vocabulary, learned from the text", f"{data['vocab_size']:,}"),
            ("Unknown tokens", f"{data['unknown_tokens']:,}"),
        ],
    )
    yield _table(
        "Model",
        [
            ("Weights", f"{logits['parameters']:,}"),
            ("Layers", str(run.model.num_layers)),
            ("Hidden size", str(run.model.hidden_size)),
            ("Processes: tensor × pipeline × data", f"{parallel.tensor} × {parallel.pipeline} × {parallel.data}"),
            ("Numbers", str(run.train.precision)),
        ],
    )
    yield _table(
        "Training",
        [
            ("Steps", f"{trained['steps']:,}"),
            ("Tokens seen", f"{seen:,}"),
            ("Speed, median", f"{trained['tokens_per_second']:,.0f} tokens/s"),
            ("Loss, first step", f"{facts['train']['first']:.3f}"),
            ("Loss, mean of the last ten steps", f"{trained['last']:.3f}"),
            ("Loss, held-out text", f"{trained['held_out']:.3f}"),
        ],
    )
    yield _table(
        "Checkpoints",
        [
            ("One save of four processes", f"{size(_newest(folder / 'train')) / 1e6:.1f} MB"),
            ("Converted to one process", f"{facts['convert']['bytes'] / 1e6:.1f} MB"),
            ("Hugging Face folder", f"{facts['export']['bytes'] / 1e6:.1f} MB"),
            ("Logits compared", f"{logits['compared']:,}"),
            (f"Largest difference (limit {_power(LOGITS_LIMIT)})", _power(logits["largest_difference"])),
            ("Positions with the same first choice", f"{logits['same_first_choice']:,} of {logits['positions']:,}"),
        ],
    )


def _table(caption: str, rows: List[Tuple[str, str]]) -> str:
    # labels are ours and may hold markup (powers); values are numbers
    body = "\n".join(f"<tr><th scope='row'>{label}</th><td>{value}</td></tr>" for label, value in rows)
    return f"<table><caption>{caption}</caption>\n{body}\n</table>"


def _paragraph(generated: Dict[str, Any]) -> str:
    return f"<b>{escape(generated['prompt'])}</b>{escape(generated['text'].rstrip())}"


def _paragraph_note(facts: Dict[str, Any]) -> str:
    return (
        f"{facts['generate']['tokens']} tokens by transformers {escape(facts['logits']['transformers'])}, sampled with "
        f"seed {facts['generate']['seed']}; the first words were given. A model this small, after so few steps, has "
        f"the look of its text and not yet the sense."
    )


def _stages(stages: List[Dict[str, Any]]) -> Iterable[str]:
    longest = max(entry["seconds"] for entry in stages)
    for number, entry in enumerate(stages, 1):
        share = max(100 * entry["seconds"] / longest, 1.0)
        yield (
            f'<tr><td class="number">{number}</td><td>{escape(entry["title"])}'
            f'<span class="says">{escape(_sentence(entry["says"]))}</span><code>{escape(entry["command"])}</code></td>'
            f'<td class="seconds">{_duration(entry["seconds"])}<i style="width:{share:.1f}%"></i></td></tr>'
        )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _environment() -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in VERSIONS)
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    code = f"; commit {commit.stdout.strip()}" if commit.returncode == 0 else ""
    return escape(
        f"{_processor()}, {_cores()} cores; {platform.system()}, Python {platform.python_version()}; {versions}{code}."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _newest(run: Path) -> Path:
    return max(rundir.checkpoints(run).glob("iter_*"))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _power(value: float) -> str:
    """6.2e-06 -> 6.2 × 10⁻⁶ as HTML."""
    mantissa, exponent = f"{value:.1e}".split("e")
    factor = "" if mantissa == "1.0" else f"{mantissa} × "
    return f"{factor}10<sup>{int(exponent)}</sup>".replace("-", "−") if value else "0"


if __name__ == "__main__":
    sys.exit(main())
