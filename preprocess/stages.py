"""The stages of a run, in order: for each pass map, search, decide; the last pass only map; before it perhaps train.

A stage is some tasks that need nothing of one another. Each task looks at what is finished and does the rest, so the
same call goes on after a kill, and local processes and the tasks of a Slurm array do the same work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, Tuple

from preprocess import dedup, readers, store
from preprocess.parts import PartWriter, is_local, sha256_of
from preprocess.plan import Plan
from preprocess.pool import Pool
from preprocess.work import Work, read_mark, write_mark
from preprocess.worker import Job, Search, Stored, Worker, totals

Progress = Callable[[str, int, int], None]  # what is done, bytes of input it got through, of how many


@dataclass(frozen=True)
class Stage:
    """kind: map, search, decide or train; `number` is the pass."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.number}"


def stages(plan: Plan) -> List[Stage]:
    found: List[Stage] = []
    for number in range(plan.last):
        found += [Stage("map", number), Stage("search", number), Stage("decide", number)]
    train = [Stage("train", plan.last)] if plan.recipe.encode is None else []
    return [*found, *train, Stage("map", plan.last)]


def unfinished(plan: Plan, work: Work, stage: Stage) -> List[int]:
    """Numbers of parts (map) or searches that are still to do; [0] for a decision that is not taken."""
    if stage.kind == "map":
        stamps = plan.stamps(stage.number)
        return [
            part
            for part in range(len(plan.parts))
            if read_mark(work.part(stage.number, part, "json"), stamps[part]) is None
        ]
    stamp = plan.decision_stamp(stage.number)
    if stage.kind == "search":
        comparison = _comparison(plan, stage.number)
        tasks = range(comparison.searches)
        return [task for task in tasks if read_mark(work.searched(stage.number, task), stamp) is None]
    return [0] if read_mark(work.decided(stage.number), stamp) is None else []


def run(plan: Plan, work: Work, stage: Stage, only: Sequence[int], pool: Pool, progress: Progress) -> None:
    """Do the tasks `only` of those that `unfinished` names."""
    if stage.kind == "map":
        map_parts(plan, work, stage.number, only, pool, progress)
    elif stage.kind == "search":
        _search(plan, work, stage.number, only, pool, progress)
    elif only:
        _decide(plan, work, stage.number)


def documents_for_training(plan: Plan, work: Work, pool: Pool, progress: Progress) -> Iterator[readers.Document]:
    """Those that will be tokenised."""
    jobs = _jobs(plan, work, plan.last, range(len(plan.parts)), progress, "reading for the tokenizer", texts_only=True)
    for _, outcome in pool.run(jobs):
        if outcome is not None and outcome.documents is not None:
            yield from store.from_batch(outcome.documents)


def map_parts(plan: Plan, work: Work, number: int, only: Sequence[int], pool: Pool, progress: Progress) -> None:
    """Raises ValueError when more records cannot be read than data.source.max_bad_records."""
    stamps, last = plan.stamps(number), number == plan.last
    bad = _bad_so_far(plan, work) if number == 0 else 0
    what = "cleaning" if not last else "tokenising"
    results = pool.run(_jobs(plan, work, number, only, progress, f"{what} (pass {number + 1} of {plan.last + 1})"))
    for part in only:
        with PartWriter(work, number, part) as writer:
            for _, outcome in results:
                if outcome is None:  # the end of this part
                    break
                writer.add(outcome)
                bad += len(outcome.unreadable)
                over = bad - plan.data.source.max_bad_records
                if over > 0 and outcome.unreadable:  # the first that is too many is named
                    raise ValueError(
                        _unreadable(plan, part, writer.unreadable[-min(over, len(outcome.unreadable))], bad)
                    )
            source = plan.parts[part]
            digest = sha256_of(source) if number == 0 and is_local(source.path) else ""
            writer.finish(stamps[part], last, sha256=digest)


def _jobs(
    plan: Plan, work: Work, number: int, only: Iterable[int], progress: Progress, what: str, texts_only: bool = False
) -> Iterator[Tuple[int, Any]]:
    """(part, job) for all its chunks, then (part, None)."""
    only = list(only)
    total, done = sum(plan.parts[part].end - plan.parts[part].start for part in only), 0
    for part in only:
        size = plan.parts[part].end - plan.parts[part].start
        for source, consumed in _sources(plan, work, number, part, size):
            yield part, Job(number, source, texts_only)
            progress(what, done + consumed, total)
        yield part, None
        done += size
        progress(what, done, total)


def _sources(plan: Plan, work: Work, number: int, part: int, size: int) -> Iterator[Tuple[Any, int]]:
    """What a job reads, and the bytes of the part consumed with it."""
    if number == 0:
        for chunk in readers.chunks(plan.parts[part]):
            yield chunk, chunk.consumed
        return
    mark = read_mark(work.part(number - 1, part, "json"), plan.stamps(number - 1)[part])
    assert mark is not None, f"part {part} of pass {number - 1} is not finished"
    documents, removed = (work.part(number - 1, part, kind) for kind in ("documents", "removed"))
    first, batches = 0, mark["batches"]
    for batch, count in enumerate(batches):
        yield Stored(documents, removed, batch, first), size * (batch + 1) // len(batches)
        first += count


def _search(plan: Plan, work: Work, number: int, only: Sequence[int], pool: Pool, progress: Progress) -> None:
    stamp, comparison = plan.decision_stamp(number), _comparison(plan, number)
    round = work.round(number, len(plan.parts), plan.data.source)
    for task in only:  # what they write replaces what an older mark speaks of
        work.searched(number, task).unlink(missing_ok=True)
    jobs = ((task, Search(comparison, task, round)) for task in only)
    for done, (task, _) in enumerate(pool.run(jobs), start=1):
        write_mark(work.searched(number, task), stamp)
        progress("looking for duplicates", done, len(only))


def _decide(plan: Plan, work: Work, number: int) -> None:
    comparison = _comparison(plan, number)
    work.decided(number).unlink(missing_ok=True)
    tally = comparison.decide(work.round(number, len(plan.parts), plan.data.source))
    write_mark(work.decided(number), plan.decision_stamp(number), steps=totals({"": tally}))


def _comparison(plan: Plan, number: int) -> dedup.Comparison:
    named = plan.recipe.passes[number].comparison
    assert named is not None
    return named[1]


def _bad_so_far(plan: Plan, work: Work) -> int:
    """In parts that are finished: of this run, or by other tasks of the array."""
    marks = [read_mark(work.part(0, part, "json"), stamp) for part, stamp in enumerate(plan.stamps(0))]
    return sum(mark["unreadable"] for mark in marks if mark)


def _unreadable(plan: Plan, part: int, place: List[Any], bad: int) -> str:
    source, (line, why) = plan.parts[part], place
    before = readers.place(source.path, source.start) - 1 if source.start else 0
    limit = plan.data.source.max_bad_records
    remedy = "correct or remove it, or allow some with --max-bad-records"
    if limit:
        remedy = f"{bad} records cannot be read, data.source.max_bad_records={limit}"
    return f"{source.path}:{before + line}: {why}; {remedy}"


def worker(plan: Plan) -> Callable[[], Callable[[Any], Any]]:
    """What Pool needs."""
    return partial(Worker, plan.recipe)


def marks(plan: Plan, work: Work, number: int) -> List[Dict[str, Any]]:
    """Of all parts of a pass. Raises ValueError when one is missing."""
    found = []
    for part, stamp in enumerate(plan.stamps(number)):
        path: Path = work.part(number, part, "json")
        mark = read_mark(path, stamp)
        if mark is None:
            raise ValueError(f"{path} is missing or of other input; run the same command again")
        found.append(mark)
    return found
