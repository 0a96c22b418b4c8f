"""Step `duplicate_lines`: a line, or paragraph, that stands in an earlier document, or earlier in its own, goes.

Blank lines and short ones (a bullet, "}", "Home") never count: they are no copies. What is left keeps its line ends.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import os
import re
from dataclasses import dataclass
from typing import Callable, Iterable, Iterator, List, Set, Tuple

import numpy as np

from preprocess.dedup import sorting
from preprocess.dedup.files import Removed, Round, Sketch, number, write_removed_part
from preprocess.document import Document, Dropped
from preprocess.pipeline import Tally
from preprocess.staging import fsync

_TASKS = 8  # a search has the lines whose hash has one remainder
_PARAGRAPH = re.compile(r"(?<=\n)(?:[^\S\n]*\n)+")  # the empty lines after one; they stay with the text before


@dataclass(frozen=True)
class DuplicateLines:
    """unit: line or paragraph. min_characters: shorter ones, without the space around them, always stay."""

    unit: str = "line"
    min_characters: int = 30

    @property
    def searches(self) -> int:
        return _TASKS

    def open(self) -> Callable[[List[Document]], Sketch]:
        if self.unit not in ("line", "paragraph"):
            raise ValueError(f"duplicate_lines: unit={self.unit!r}; it is line or paragraph")
        if self.min_characters < 1:
            raise ValueError(f"duplicate_lines: min_characters={self.min_characters}; give 1 or more")

        def sketch(documents: List[Document]) -> Sketch:
            hashes, owners, units = [], [], []
            for place, document in enumerate(documents):
                for unit, text in enumerate(self._units(document.text)):
                    if len(text := text.strip()) >= self.min_characters:
                        hashes.append(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest())
                        owners.append(place)
                        units.append(unit)
            values = np.empty((len(owners), 3), np.uint64)
            values[:, :2] = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2)
            values[:, 2] = units
            return Sketch(np.asarray(owners, np.uint32), values)

        return sketch

    def search(self, task: int, round: Round) -> None:
        def rows() -> Iterator[np.ndarray]:
            for numbers, values in round.sketches(3):
                mine = values[:, 0] % np.uint64(_TASKS) == task
                yield np.column_stack([values[mine, :2], numbers[mine], values[mine, 2]])

        repeated = _later_ones(sorting.in_order(rows(), 4, round.memory, round.folder))
        by_document = sorting.in_order(repeated, 3, round.memory, round.folder)
        path = round.found(task)
        temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
        with open(temporary, "wb") as file:
            for block in by_document:
                np.ascontiguousarray(block[:, :2]).tofile(file)
        fsync(temporary)
        os.replace(temporary, path)

    def decide(self, round: Round) -> Tally:
        """Memory: round.memory, whatever the number of lines."""
        for part in range(round.parts):
            write_removed_part(round, part, _of_part(round, part))
        return Tally()

    def apply(self, documents: List[Document], removed: Removed, tally: Tally) -> List[Document]:
        kept: List[Document] = []
        bounds = np.searchsorted(removed.documents, np.arange(len(documents) + 1))
        for document, (begin, end) in zip(documents, zip(bounds, bounds[1:])):
            if begin == end:
                kept.append(document)
                continue
            text, count = self._without(document.text, set(removed.units[begin:end].tolist()))
            tally.change(f"duplicate {self.unit}s", count)
            if text.strip():
                kept.append(dataclasses.replace(document, text=text))
            else:
                tally.drop(document, Dropped(f"nothing but duplicate {self.unit}s"))
        return kept

    def state(self, output: str) -> str:
        return ""

    def remember(self, round: Round, stamp: str) -> None:
        pass

    def _without(self, text: str, gone: Set[int]) -> Tuple[str, int]:
        units = self._units(text)
        return "".join(unit for place, unit in enumerate(units) if place not in gone), len(gone)

    def _units(self, text: str) -> List[str]:
        """Joined they are the text."""
        if self.unit == "line":
            return re.findall(r"[^\n]*\n|[^\n]+", text)
        ends = [match.end() for match in _PARAGRAPH.finditer(text)]
        return [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)]) if begin < end]


def _later_ones(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Rows (hash, hash, document, unit) in order -> (document, unit, 0) of all but the first of each hash."""
    last = None
    for block in blocks:
        keys = block[:, :2]
        same = np.zeros(len(block), bool)
        same[1:] = (keys[1:] == keys[:-1]).all(axis=1)
        same[0] = last is not None and bool((keys[0] == last).all())
        last = keys[-1].copy()
        found = np.zeros((int(same.sum()), 3), np.uint64)  # the last column is what in_order asks to be ascending
        found[:, :2] = block[same, 2:]
        yield found


def _of_part(round: Round, part: int) -> Iterator[Tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(documents, units, what is kept) of the part, from all searches, in blocks that memory holds."""
    searches = [_open(round, task) for task in range(_TASKS)]
    begin, end = int(number(part, 0)), int(number(part + 1, 0))
    longest = max(searches, key=lambda rows: _place(rows, end) - _place(rows, begin))
    step = max(round.memory // (_TASKS * 128), 1)  # what sorting a row takes, in bytes
    cuts = [int(longest[row, 0]) for row in range(_place(longest, begin) + step, _place(longest, end), step)]
    for first, last in zip([begin, *cuts], [*cuts, end]):
        rows = np.concatenate([rows[_place(rows, first) : _place(rows, last)] for rows in searches])
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        kept = np.full(len(rows), "", object)  # of a line nobody asks which document has the first
        yield rows[:, 0], rows[:, 1].astype(np.int64), kept


def _open(round: Round, task: int) -> np.ndarray:
    path = round.found(task)
    return np.memmap(path, "<u8", "r").reshape(-1, 2) if path.stat().st_size else np.zeros((0, 2), np.uint64)


def _place(rows: np.ndarray, document: int) -> int:
    return bisect.bisect_left(range(len(rows)), document, key=lambda row: int(rows[row, 0]))
