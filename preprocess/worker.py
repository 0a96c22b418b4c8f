"""What a worker process does: a chunk of input, or of an earlier pass, through the steps of one pass.

The outcome is a pure function of the job and the recipe: that is why the output does not depend on how many there are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import pyarrow as pa

from megatron_ext.config import schema
from preprocess import encode, readers, store
from preprocess.clean.empty import Empty
from preprocess.dedup import Comparison, Round, Sketch, read_removed
from preprocess.document import Document, Dropped
from preprocess.pipeline import Apply, Step, Tally, run

READ, TOKENISE = "read", "tokenise"  # names beside those of the steps
ASIDE = pa.schema([*store.SCHEMA, ("step", pa.string()), ("reason", pa.string()), ("detail", pa.string())])


@dataclass(frozen=True)
class Pass:
    """Steps on each document by itself, then perhaps a comparison with all others, which the next pass applies."""

    steps: Tuple[Tuple[str, Step], ...]
    comparison: Optional[Tuple[str, Comparison]] = None


@dataclass(frozen=True)
class Recipe:
    """All that a worker needs, as plain data. `encode` is None until there is a tokenizer."""

    keys: readers.Keys
    passes: Tuple[Pass, ...]
    keep_dropped: bool
    label: Optional[schema.Label]
    encode: Optional[encode.Recipe] = None


@dataclass(frozen=True)
class Stored:
    """A batch of documents that an earlier pass left, the first of them being number `first` of its part."""

    documents: Path
    removed: Path
    batch: int
    first: int


@dataclass(frozen=True)
class Job:
    number: int  # of the pass
    source: Union[readers.Chunk, Stored]
    texts_only: bool = False  # of the last pass: return the documents, do not tokenise (a tokenizer is trained on them)


@dataclass(frozen=True)
class Search:
    """One of the searches of a comparison."""

    comparison: Comparison
    task: int
    round: Round


@dataclass
class Outcome:
    """Lines of `documents`, `encoded.rows`, `aside` and `unreadable` count from the start of the chunk (first pass)."""

    records: int = 0
    kept: int = 0
    unreadable: List[Tuple[int, str]] = field(default_factory=list)  # line, why
    tallies: Dict[str, Tally] = field(default_factory=dict)
    documents: Optional[pa.RecordBatch] = None
    sketch: Optional[Sketch] = None
    encoded: Optional[encode.Encoded] = None
    aside: Optional[pa.RecordBatch] = None


class Worker:
    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._steps: Dict[int, List[Tuple[str, Apply]]] = {}
        self._sketchers: Dict[int, Callable[[List[Document]], Sketch]] = {}
        self._encoder: Optional[encode.Encoder] = None

    def __call__(self, job: Union[Job, Search]) -> Optional[Outcome]:
        """Raises ValueError for settings or a tokenizer that contradict themselves."""
        if isinstance(job, Search):
            job.comparison.search(job.task, job.round)
            return None
        outcome = Outcome()
        documents = self._documents(job, outcome)
        documents = run(self._opened(job.number), documents, outcome.tallies, self._recipe.keep_dropped)
        current = self._recipe.passes[job.number]
        if current.comparison is not None:
            outcome.documents, outcome.sketch = store.to_batch(documents), self._sketch(job.number, documents)
        elif job.texts_only:
            outcome.documents = store.to_batch(documents)
        else:
            outcome.encoded = self._encode(documents, self._tally(outcome, TOKENISE))
        outcome.kept = len(documents) if outcome.encoded is None else len(outcome.encoded.sequences)
        outcome.aside = _aside(outcome.tallies)
        return outcome

    def _documents(self, job: Job, outcome: Outcome) -> List[Document]:
        if isinstance(job.source, Stored):
            return self._stored(job.number, job.source, outcome)
        documents: List[Document] = []
        tally = self._tally(outcome, READ)
        for item in readers.parse(job.source, self._recipe.keys):
            outcome.records += 1
            if isinstance(item, readers.Bad):
                outcome.unreadable.append((outcome.records, item.why))
                self._set_aside(tally, job.source, outcome.records, item)
            elif isinstance(item, Dropped):
                tally.dropped[item.reason] += 1  # a blank line, say: nothing to keep aside
            else:
                documents.append(item)
        if self._recipe.label is not None:
            from preprocess.label.turns import with_text

            documents = with_text(documents, self._recipe.label, tally)
        return documents

    def _stored(self, number: int, source: Stored, outcome: Outcome) -> List[Document]:
        comparison = self._recipe.passes[number - 1].comparison
        assert comparison is not None, "only a comparison ends a pass before the last"
        documents = store.from_batch(store.open_file(source.documents).get_batch(source.batch))
        removed = read_removed(source.removed).slice(source.first, len(documents))
        return comparison[1].apply(documents, removed, self._tally(outcome, comparison[0]))

    def _opened(self, number: int) -> List[Tuple[str, Apply]]:
        if number not in self._steps:
            current = self._recipe.passes[number]
            steps = [(name, step.open()) for name, step in current.steps]
            if current.comparison is None:  # one policy for empty documents on every path: none reaches the shard
                steps.append(("empty", Empty().open()))
            self._steps[number] = steps
        return self._steps[number]

    def _sketch(self, number: int, documents: List[Document]) -> Sketch:
        if number not in self._sketchers:
            comparison = self._recipe.passes[number].comparison
            assert comparison is not None
            self._sketchers[number] = comparison[1].open()
        return self._sketchers[number](documents)

    def _encode(self, documents: List[Document], tally: Tally) -> encode.Encoded:
        if self._encoder is None:
            assert self._recipe.encode is not None, "a tokenizer is needed"
            self._encoder = encode.Encoder(self._recipe.encode)
        return self._encoder(documents, tally)

    def _tally(self, outcome: Outcome, name: str) -> Tally:
        return outcome.tallies.setdefault(name, Tally(self._recipe.keep_dropped))

    def _set_aside(self, tally: Tally, chunk: readers.Chunk, line: int, bad: readers.Bad) -> None:
        if self._recipe.keep_dropped:
            record = Document(bad.raw, "", {}, chunk.path, line)
            tally.aside.append((record, Dropped("unreadable", bad.why)))


def _aside(tallies: Dict[str, Tally]) -> Optional[pa.RecordBatch]:
    """The dropped documents of all steps, moved out of their tallies."""
    found = [(document, name, why) for name, tally in tallies.items() for document, why in tally.aside]
    for tally in tallies.values():
        tally.aside = []
    if not found:
        return None
    columns: List[Any] = list(store.to_batch([document for document, _, _ in found]).columns)
    columns += [pa.array([name for _, name, _ in found]), pa.array([why.reason for _, _, why in found])]
    return pa.RecordBatch.from_arrays([*columns, pa.array([why.detail for _, _, why in found])], schema=ASIDE)


def totals(tallies: Dict[str, Tally]) -> Dict[str, Dict[str, Counter[str]]]:
    """As JSON holds them."""
    return {name: {"changed": tally.changed, "dropped": tally.dropped} for name, tally in tallies.items()}
