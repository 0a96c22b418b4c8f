"""A pipeline is a list of steps. A step gets some documents and returns those that are left, changed or not.

A step's settings are a frozen dataclass, so that it can be named in YAML, sent to workers and hashed; `open` is called
once in each worker (and once before anything starts, so that wrong settings are refused first). Steps keep nothing from
one call to the next: the result must not depend on the number of workers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Protocol, Sequence, Tuple, Union

from preprocess.document import Document, Dropped


@dataclass
class Tally:
    """What one step did. changed: documents by what was changed in them; aside: the dropped, when they are wanted."""

    keep_dropped: bool = False
    changed: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    aside: List[Tuple[Document, Dropped]] = field(default_factory=list)

    def change(self, what: str, number: int = 1) -> None:
        self.changed[what] += number

    def drop(self, document: Document, why: Dropped) -> None:
        self.dropped[why.reason] += 1
        if self.keep_dropped:
            self.aside.append((document, why))

    def add(self, other: Tally) -> None:
        self.changed.update(other.changed)
        self.dropped.update(other.dropped)
        self.aside += other.aside


Apply = Callable[[List[Document], Tally], List[Document]]


class Step(Protocol):
    """A frozen dataclass of settings."""

    def open(self) -> Apply:
        """Loads what the step needs. Raises ValueError for settings that cannot work: value, limit, remedy."""


def each(one: Callable[[Document, Tally], Union[Document, Dropped]]) -> Apply:
    """A function of one document as a step's work: most steps need no more."""

    def apply(documents: List[Document], tally: Tally) -> List[Document]:
        kept = []
        for document in documents:
            outcome = one(document, tally)
            if isinstance(outcome, Dropped):
                tally.drop(document, outcome)
            else:
                kept.append(outcome)
        return kept

    return apply


def run(
    steps: Sequence[Tuple[str, Apply]], documents: List[Document], tallies: Dict[str, Tally], keep_dropped: bool = False
) -> List[Document]:
    """The documents that pass every (named, opened) step, in order; what each step did is added to its tally."""
    for name, apply in steps:
        documents = apply(documents, tallies.setdefault(name, Tally(keep_dropped)))
    return documents
