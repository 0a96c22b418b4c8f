"""A pipeline is a list of steps; a step takes one document and returns it, another in its place, or why it is dropped.

Steps run in worker processes: a step is a module-level function or an instance of a dataclass, so that it can be sent
there, and keeps nothing from one document to the next, so that the result does not depend on the number of workers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Callable, Iterable, Iterator, List, Sequence, Union

from preprocess.clean.empty import drop_empty
from preprocess.document import Document, Dropped

Step = Callable[[Document], Union[Document, Dropped]]

STEPS: List[Step] = [drop_empty]


@dataclass
class Counts:
    """read == kept + the sum of dropped; text_bytes (UTF-8) and unknown_tokens are of the kept documents."""

    read: int = 0
    kept: int = 0
    text_bytes: int = 0
    unknown_tokens: int = 0  # the tokenizer's <unk>: text that the shard does not hold
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        self.read += other.read
        self.kept += other.kept
        self.text_bytes += other.text_bytes
        self.unknown_tokens += other.unknown_tokens
        self.dropped.update(other.dropped)


def run(
    steps: Sequence[Step], documents: Iterable[Union[Document, Dropped]], dropped: Counter[str]
) -> Iterator[Document]:
    """The documents that pass every step, in order; the reasons of the others are added to `dropped`."""
    for document in documents:
        outcome = _apply(steps, document)
        if isinstance(outcome, Dropped):
            dropped[outcome.reason] += 1
        else:
            yield outcome


def _apply(steps: Sequence[Step], document: Union[Document, Dropped]) -> Union[Document, Dropped]:
    for step in steps:
        if isinstance(document, Dropped):
            break
        document = step(document)
    return document
