"""The whole way on CPU in minutes: tokenizer, shard, training at TP2 x PP2, a stop and a resume, conversion to one
rank and to Hugging Face, the same logits in transformers, a paragraph, and a page that shows it all.

    python -m demo                  writes runs/demo/report.html
    python -m demo --folder /tmp/quick --bar 9 train.steps=8

Starts afresh each time. Exit codes: 0 every stage did what it promises, 1 one did not, 2 wrong input.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, List, Optional

from demo.journal import ROOT, Journal, StageFailed
from demo.plan import STAGES, Plan, carry_out
from megatron_ext.config import load, rundir

LAYOUT = ["parallel=tp2_pp2", "optim=tiny", "train=demo"]
BAR = 6.2  # ln(4096) = 8.32 is where it starts; seeds end between 5.2 and 5.9


def main(arguments: Optional[List[str]] = None) -> int:
    options = _parser().parse_intermixed_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    folder = _from_root(options.folder)
    os.chdir(ROOT)
    try:
        plan = _plan(folder, options)
        lock = _take(folder)
    except ValueError as error:
        print(f"demo: {error}", file=sys.stderr)
        return rundir.EXIT_BAD_INPUT
    try:
        _clear(plan)
        journal = Journal(folder / "stages.json", STAGES)
        carry_out(plan, journal)
        journal.end(verdict="done")
        from demo import report

        print(f"\nall {STAGES} stages did what they promise: {report.write(folder)}")
        return rundir.EXIT_DONE
    except StageFailed as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return rundir.EXIT_FAILED
    except KeyboardInterrupt:
        print("\ndemo: interrupted; the next call starts afresh", file=sys.stderr)
        return rundir.EXIT_FAILED
    finally:
        lock.release()


def _plan(folder: Path, options: argparse.Namespace) -> Plan:
    """Raises ValueError for overrides that do not make a run."""
    data = ["data=demo"]
    if options.folder != DEFAULT:  # then its data are its own, too
        data += [
            f"data.tokenizer.path={folder}/data/tokenizer.model",
            f"data.source.output={folder}/data/python_docs",
            f"data.blend=[{folder}/data/python_docs]",
        ]
    data += [override for override in options.overrides if override.startswith("data.")]
    overrides = LAYOUT + [override for override in options.overrides if not override.startswith("data.")]
    return Plan(folder, load.compose(data + overrides), overrides, options.bar, data)


def _take(folder: Path) -> rundir.Lock:
    """Raises ValueError when another demonstration, or what an interrupted one has left running, uses the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if owner := rundir.lock_owner(folder / "train"):
        raise ValueError(
            f"{folder}/train is in use by pid {owner['pid']}; wait for it, or stop it: kill {owner['pid']}"
        )
    lock = rundir.Lock(folder)
    lock.acquire()
    return lock


def _clear(plan: Plan) -> None:
    """Away with the last demonstration, its tokenizer included, so that training one is seen."""
    for path in (plan.train, plan.single, plan.exported):
        shutil.rmtree(path, ignore_errors=True)
    for name in ("stages.json", "report.html", "logits.json", "generated.json"):
        (plan.folder / name).unlink(missing_ok=True)
    Path(plan.run.data.tokenizer.path).unlink(missing_ok=True)


DEFAULT = Path("runs/demo")


def _from_root(folder: Path) -> Path:
    """Relative to the repository where it is inside, so that the printed commands are short."""
    if folder == DEFAULT:
        return folder
    whole = folder.resolve()
    return whole.relative_to(ROOT) if whole.is_relative_to(ROOT) else whole


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m demo", description=__doc__, formatter_class=raw)
    parser.add_argument(
        "overrides", nargs="*", metavar="group=choice or field=value", help="of the training; data.* also of the text"
    )
    parser.add_argument("--folder", type=Path, default=DEFAULT, help="default: %(default)s")
    parser.add_argument("--bar", type=float, default=BAR, help="held-out loss to get below (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
