"""python -m preprocess.task RUN_YAML STAGE --task I --of N: what one task of a Slurm array does of a stage.

It takes every N-th part (or search), leaves out what is finished, and so may be killed and run again anywhere.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import List, Optional

from megatron_ext.config import load
from megatron_ext.config.rundir import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from megatron_ext.config.schema import Data
from preprocess import plan, stages, work
from preprocess.pool import Pool, default_workers
from preprocess.prepare import put_together, up_to_date
from preprocess.staging import held
from preprocess.tokenizer import train

MERGE = "merge-0"


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m preprocess.task", description=__doc__)
    parser.add_argument("run_yaml", type=Path)
    parser.add_argument("stage", help="as map-0, search-0, decide-0, train-1, map-1, merge-0")
    parser.add_argument("--task", type=int, required=True)
    parser.add_argument("--of", type=int, required=True)
    options = parser.parse_args(arguments)
    try:
        kind, number = options.stage.rsplit("-", 1)
        run(load.read(options.run_yaml).data, stages.Stage(kind, int(number)), options.task, options.of)
        return EXIT_DONE
    except ValueError as error:
        print(f"preprocess.task {options.stage}: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except (OSError, MemoryError) as error:
        print(f"preprocess.task {options.stage}: {error or type(error).__name__}", file=sys.stderr)
        return EXIT_FAILED


def run(data: Data, stage: stages.Stage, task: int, of: int) -> None:
    planned, folder = plan.make(data), work.of(data.source.output)
    if str(stage) == MERGE:
        with held(folder.folder, data.source.output):
            if not up_to_date(planned):
                put_together(planned, folder)
        return
    if stage.kind == "train" and planned.recipe.encode is not None:
        return  # it was trained before this task was requeued
    with Pool(data.source.workers or default_workers(), stages.worker(planned)) as pool:
        if stage.kind == "train":
            train.train(stages.documents_for_training(planned, folder, pool, _silent), data.tokenizer)
            return
        mine = [one for one in stages.unfinished(planned, folder, stage) if one % of == task]
        print(f"{stage}: task {task} of {of} does {len(mine)}", flush=True)
        stages.run(planned, folder, stage, mine, pool, _silent)


def _silent(what: str, done: int, total: int) -> None:
    """Logs of array tasks are read by nobody until something fails; the command that waits shows the progress."""


if __name__ == "__main__":
    sys.exit(main())
