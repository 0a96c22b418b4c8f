"""What became of every record: the marks of all parts and decisions added up, and the manifest made from them."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from typing import Any, Dict, List

from preprocess import readers, stages
from preprocess.manifest import FORMAT_VERSION, InputPart, Manifest, StepReport, TokenizerReport, libraries, version
from preprocess.merge import ShardSet
from preprocess.parts import PLACES
from preprocess.plan import Plan
from preprocess.tokenizer import Tokenizer, fingerprint
from preprocess.tokenizer.selftest import self_test
from preprocess.work import Work, read_mark
from preprocess.worker import READ, TOKENISE

_TRIED = 50  # texts of the input in the tokenizer's self-test
_CHARACTERS = 500  # of each


@dataclasses.dataclass(frozen=True)
class Counts:
    """steps: by name {"changed": {what: n}, "dropped": {why: n}}; lines_before: lines of each part's file before it."""

    read: int
    kept: int
    unreadable: int
    unreadable_places: List[str]
    text_bytes: int
    unknown_tokens: int
    steps: Dict[str, Dict[str, Counter[str]]]
    lines_before: List[int]
    parts: List[InputPart]
    how: List[str]  # the libraries that made ids: one, if all workers have the same installed

    @property
    def dropped(self) -> Dict[str, int]:
        """By "step: reason"."""
        found = {f"{name}: {why}": n for name, tally in self.steps.items() for why, n in tally["dropped"].items()}
        return dict(sorted(found.items()))

    def reasons(self) -> str:
        found = [f"{number} {reason}" for reason, number in self.dropped.items()]
        found += [f"{self.unreadable} unreadable"] if self.unreadable else []
        return ", ".join(found) or "the inputs are empty"


def of(plan: Plan, work: Work) -> Counts:
    """Raises ValueError when a part is not finished, or more records were unreadable than are allowed."""
    all_marks = [stages.marks(plan, work, number) for number in range(plan.last + 1)]
    first, last = all_marks[0], all_marks[-1]
    steps: Dict[str, Dict[str, Counter[str]]] = {}
    for mark in [mark for marks in all_marks for mark in marks] + _decisions(plan, work):
        _add(steps, mark["steps"])
    before, lines = Counter[str](), []
    for part, mark in zip(plan.parts, first):
        lines.append(before[part.path])
        before[part.path] += mark["records"]
    places = [
        f"{part.path}:{lines_before + line}: {why}"
        for part, lines_before, mark in zip(plan.parts, lines, first)
        for line, why in mark["unreadable_places"]
    ]
    unreadable, limit = sum(mark["unreadable"] for mark in first), plan.data.source.max_bad_records
    if unreadable > limit:
        raise ValueError(f"{unreadable} records cannot be read, data.source.max_bad_records={limit}: {places[0]}")
    return Counts(
        read=sum(mark["records"] for mark in first),
        kept=sum(mark["kept"] for mark in last),
        unreadable=unreadable,
        unreadable_places=places[:PLACES],
        text_bytes=sum(mark["text_bytes"] for mark in last),
        unknown_tokens=sum(mark["unknown_tokens"] for mark in last),
        steps=steps,
        lines_before=lines,
        parts=[
            InputPart(part.path, _size(plan, part), part.start, part.end, mark["sha256"], mark["records"])
            for part, mark in zip(plan.parts, first)
        ],
        how=sorted({mark["how"] for mark in last if mark["how"]}),
    )


def manifest(plan: Plan, counts: Counts, shards: ShardSet, tokenizer: Tokenizer) -> Manifest:
    recipe = plan.recipe.encode
    assert recipe is not None
    dropped = sum(counts.dropped.values())
    return Manifest(
        format_version=FORMAT_VERSION,
        fingerprint=shards.fingerprint,
        stamp=plan.stamp(),
        created_by={"version": version("megatron-ext"), "code_sha256": plan.code, "libraries": libraries()},
        settings=_plain({"source": plan.data.source, "tokenizer": plan.data.tokenizer}),
        tokenizer=TokenizerReport(
            kind=str(recipe.tokenizer.kind),
            path=recipe.tokenizer.path,
            sha256=fingerprint(recipe.blob),
            vocab_size=tokenizer.vocab_size,
            how="; ".join(counts.how),
            self_test=dataclasses.asdict(self_test(tokenizer, [text[:_CHARACTERS] for text in recipe.sample[:_TRIED]])),
        ),
        append_eod=recipe.eod is not None,
        prepend_bos=recipe.bos is not None,
        eod_id=tokenizer.eod,
        bos_id=tokenizer.bos,
        dtype=shards.dtype.name,
        documents=sum(shard.documents for shard in shards.shards),
        sequences=shards.sequences,
        tokens=sum(shard.tokens for shard in shards.shards),
        text_bytes=counts.text_bytes,
        unknown_tokens=counts.unknown_tokens,
        read=counts.read,
        kept=counts.kept,
        created=counts.kept + dropped + counts.unreadable - counts.read,
        unreadable=counts.unreadable,
        unreadable_places=counts.unreadable_places,
        dropped=counts.dropped,
        steps=_reports(plan, counts),
        inputs=counts.parts,
        shards=shards.shards,
    )


def _decisions(plan: Plan, work: Work) -> List[Dict[str, Any]]:
    """What the comparisons tell; the name of each in the place of its own."""
    found = []
    for number, one in enumerate(plan.recipe.passes):
        if one.comparison is not None and (mark := read_mark(work.decided(number), plan.decision_stamp(number))):
            found.append({"steps": {one.comparison[0]: mark["steps"][""]}})
    return found


def _add(steps: Dict[str, Dict[str, Counter[str]]], more: Dict[str, Dict[str, Dict[str, int]]]) -> None:
    for name, tally in more.items():
        own = steps.setdefault(name, {"changed": Counter(), "dropped": Counter()})
        for kind, numbers in tally.items():
            own[kind].update(numbers)


def _reports(plan: Plan, counts: Counts) -> List[StepReport]:
    """In the order in which they ran."""
    settings: Dict[str, Dict[str, Any]] = {READ: {}}
    for one in plan.recipe.passes:
        for name, step in [*one.steps, *([one.comparison] if one.comparison else [])]:
            settings[name] = _plain(step)
    settings.update({name: {} for name in ("empty", TOKENISE) if name not in settings})
    none: Dict[str, Counter[str]] = {"changed": Counter(), "dropped": Counter()}
    tallies = {name: counts.steps.get(name, none) for name in settings}
    return [
        StepReport(name, settings[name], *(dict(sorted(tally[kind].items())) for kind in ("changed", "dropped")))
        for name, tally in tallies.items()
    ]


def _size(plan: Plan, part: readers.Part) -> int:
    return next(one.bytes for one in plan.inputs if one.path == part.path)


def _plain(value: Any) -> Any:
    """Dataclasses and enums -> what JSON holds."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
