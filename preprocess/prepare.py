"""Raw text -> shards: the whole way, to be read first.

inputs -> parts -> [worker: chunk -> documents -> steps -> tokens] -> put together -> .bin .idx .parquet, .json last

Steps that compare documents with all others cut the way into passes: each pass maps all parts, then the comparison
decides, then the next pass goes on with what is left.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Optional

from megatron_ext.config.schema import Data
from preprocess import account, manifest, merge, plan, stages, tokenizer, work
from preprocess.pool import Pool, default_workers
from preprocess.shards import dtype_for
from preprocess.staging import held
from preprocess.tokenizer import train


def prepare(
    data: Data, progress: stages.Progress = lambda what, done, total: None, force: bool = False
) -> manifest.Manifest:
    """Make the shards that `data.source` describes, replacing older ones, and return their manifest.

    What is there already and of the same input, settings and code is left as it is. Raises ValueError for wrong
    settings or input and ChildProcessError when a worker dies; older shards are then still there, untouched.
    """
    planned = plan.make(data)
    if not force and (found := up_to_date(planned)):
        return found
    folder = work.of(data.source.output)
    with held(folder.folder, data.source.output):
        _refuse_beside_jobs(folder, data.source.output)
        folder.sweep()
        if force:
            folder.clear()
        for stage in stages.stages(planned):
            planned = _run(planned, folder, stage, progress)
        made = put_together(planned, folder)
        if not data.source.keep_work:
            shutil.rmtree(folder.folder, ignore_errors=True)
    return made


def up_to_date(planned: plan.Plan) -> Optional[manifest.Manifest]:
    """The manifest of what lies there, if it is what this plan would make."""
    if planned.recipe.encode is None:
        return None
    try:
        found = manifest.read(planned.data.source.output)
    except ValueError:
        return None
    suffixes = (".bin", ".idx", ".parquet") + ((".mask", ".packs") if planned.recipe.label else ())
    prefixes = found.prefixes(planned.data.source.output)
    is_whole = all(Path(f"{prefix}{suffix}").is_file() for prefix in prefixes for suffix in suffixes)
    is_allowed = found.unreadable <= planned.data.source.max_bad_records
    return found if found.stamp == planned.stamp() and is_whole and is_allowed else None


def _refuse_beside_jobs(folder: work.Work, output: str) -> None:
    """Slurm jobs at the same output would lose their work folder."""
    jobs = folder.jobs()
    if not jobs:
        return
    from slurm import array

    if array.alive(jobs):
        raise ValueError(
            f"Slurm jobs {', '.join(jobs)} are making {output}; wait for them with cluster=..., or scancel them"
        )


def _run(planned: plan.Plan, folder: work.Work, stage: stages.Stage, progress: stages.Progress) -> plan.Plan:
    workers = planned.data.source.workers or default_workers()
    with Pool(workers, stages.worker(planned)) as pool:
        if stage.kind == "train":
            documents = stages.documents_for_training(planned, folder, pool, progress)
            train.train(documents, planned.data.tokenizer)
            return plan.with_tokenizer(planned)
        if tasks := stages.unfinished(planned, folder, stage):
            stages.run(planned, folder, stage, tasks, pool, progress)
    return planned


def put_together(planned: plan.Plan, folder: work.Work) -> manifest.Manifest:
    """The last stage: shards, table and manifest from the finished parts."""
    recipe, output = planned.recipe.encode, planned.data.source.output
    assert recipe is not None
    opened = tokenizer.open_tokenizer(replace(recipe.tokenizer, fast=False), recipe.blob)
    counts = account.of(planned, folder)
    if counts.kept == 0:
        raise ValueError(f"no document was kept of {counts.read} read ({counts.reasons()}); no shard was written")
    staged = folder.folder / "shards"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    shards = merge.put_together(planned, folder, staged, dtype_for(opened.vocab_size), counts.lines_before)
    if planned.data.source.keep_dropped:
        aside = staged / f"{Path(output).name}.dropped.jsonl.zst"
        merge.write_aside(planned, folder, aside, counts.lines_before)
    made = account.manifest(planned, counts, shards, opened)
    for number, one in enumerate(planned.recipe.passes):
        if one.comparison is not None:  # before the shard is seen: killed in between, the next run does both
            one.comparison[1].remember(folder.round(number, len(planned.parts), planned.data.source), made.stamp)
    merge.publish(staged, output, made)
    return made
