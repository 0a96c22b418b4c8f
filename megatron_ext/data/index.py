"""python -m megatron_ext.data.index: what a run will see of each source, and the order files it needs.

Of a run folder, or of what llm-launch would be given: data=... train.steps=... model.seq_length=... On a login node,
ahead of the job: then no rank builds anything. No torch, no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from megatron_ext.config import load, rundir, validate
from megatron_ext.config.schema import Run
from megatron_ext.data import blending


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m megatron_ext.data.index", description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="RUN_FOLDER | group=choice | field=value")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    options = parser.parse_args(arguments)
    try:
        run = _run(options.overrides)
        mixed = blending.blend(run, "train")
    except ValueError as error:
        print(f"megatron_ext.data.index: {error}", file=sys.stderr)
        return rundir.EXIT_BAD_INPUT
    number = run.train.steps * run.train.global_batch_size
    mixed.prepare(0, number)
    report = blending.report(run, mixed, number)
    print(json.dumps(report, indent=1) if options.json else text(report))
    return rundir.EXIT_DONE


def _run(arguments: List[str]) -> Run:
    if len(arguments) == 1 and Path(arguments[0]).is_dir():
        return load.read(rundir.run_yaml(Path(arguments[0])))
    run = load.compose(arguments)
    validate.check_config(run)
    return run


def text(report: Dict[str, Any]) -> str:
    lines = [f"{'source':<40} {'tokens':>16} {'share':>8} {'samples':>12} {'epochs':>8} {'repeated':>8}"]
    for row in report["sources"]:
        lines.append(
            f"{row['source'][-40:]:<40} {row['tokens']:>16,} {row['share']:>8.2%} {row['samples']:>12,} "
            f"{row['epochs']:>8.2f} {row['repeated']:>8.1%}"
        )
    lines.append(
        f"{report['samples']:,} samples, {report['tokens']:,} tokens; worth {report['effective_sources']:.2f} equal "
        f"sources; two samples are of different sources with probability {report['simpson']:.2f}"
    )
    lines += [f"{prefix} gets no sample: its weight is too small for so few" for prefix in report["without_a_sample"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
