"""Steps that compare each document with all others: named in the list of steps, they end a pass.

Workers make a sketch of each document: rows of 64-bit hashes. Searches find equal rows by sorting all sketches on disk;
the decision names what goes; the next pass applies it. Of equal documents the first in the order of the input is kept,
and those of an index, from earlier runs, come before all.
"""

from __future__ import annotations

from typing import Callable, List, Protocol

from preprocess.dedup.files import Removed, Round, Sketch, read_removed
from preprocess.document import Document
from preprocess.pipeline import Tally

__all__ = ["Comparison", "Removed", "Round", "Sketch", "read_removed"]


class Comparison(Protocol):
    """A frozen dataclass of settings."""

    @property
    def searches(self) -> int:
        """Tasks that need nothing of one another."""

    def open(self) -> Callable[[List[Document]], Sketch]:
        """Raises ValueError for settings that cannot work."""

    def search(self, task: int, round: Round) -> None:
        """Reads all sketches, writes what it found to the round's folder. Memory: round.memory, whatever the input."""

    def decide(self, round: Round) -> Tally:
        """After all searches: writes what to remove from each part. The tally holds what `apply` cannot count."""

    def apply(self, documents: List[Document], removed: Removed, tally: Tally) -> List[Document]:
        """Consecutive documents of a part without what was decided to go."""

    def state(self, output: str) -> str:
        """Of what lies outside the input and decides too: the index. Not of what `output` itself added to it."""

    def remember(self, round: Round, stamp: str) -> None:
        """The shard is published: add its documents to the index, if there is one."""
