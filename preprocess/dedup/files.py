"""What lies on disk between sketches, searches and removals."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Tuple

import numpy as np
import pyarrow as pa

from preprocess.staging import fsync

NEW = 1 << 62  # documents of this run are numbered from here on, those of an index below
_PART = 32  # bits of the number within a part
_REMOVED = pa.schema([("ordinal", pa.uint32()), ("unit", pa.int32()), ("kept", pa.string())])


@dataclass(frozen=True)
class Sketch:
    """owners uint32 [rows], ascending: number of the document within the batch; values uint64 [rows, width]."""

    owners: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Round:
    """The parts that are compared. memory: bytes that a search may sort at a time; output: whose run it is."""

    folder: Path
    parts: int
    memory: int
    output: str

    def documents(self, part: int) -> Path:
        return self.folder / f"part-{part:05}.documents"

    def removed(self, part: int) -> Path:
        return self.folder / f"part-{part:05}.removed"

    def found(self, task: int) -> Path:
        return self.folder / f"search-{task:03}.found"

    def sketches(self, width: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """(numbers uint64 [rows], values uint64 [rows, width]) of each part, in order, memory-mapped."""
        for part in range(self.parts):
            owners, values = (_mapped(self.folder / f"part-{part:05}.{kind}") for kind in ("owners", "values"))
            yield number(part, owners.view("<u4")), values.view("<u8").reshape(-1, width)


@dataclass(frozen=True)
class Removed:
    """Of consecutive documents: which go (number among them), what of each (line, or -1: all), the id that stays."""

    documents: np.ndarray
    units: np.ndarray
    kept: List[str]


class RemovedTable:
    def __init__(self, path: Path) -> None:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        self._ordinals, self._units = table["ordinal"].to_numpy(), table["unit"].to_numpy()
        self._kept = table["kept"]

    def slice(self, first: int, count: int) -> Removed:
        """Of documents first ... first + count - 1 of the part."""
        begin, end = np.searchsorted(self._ordinals, [first, first + count])
        kept = self._kept.slice(begin, end - begin).to_pylist()
        return Removed(self._ordinals[begin:end].astype(np.int64) - first, self._units[begin:end], kept)


def read_removed(path: Path) -> RemovedTable:
    return _cached(path, os.stat(path).st_mtime_ns)


@lru_cache(maxsize=2)  # batches of a part come one after the other
def _cached(path: Path, changed: int) -> RemovedTable:
    return RemovedTable(path)


def write_removed(round: Round, numbers: np.ndarray, units: np.ndarray, kept: np.ndarray) -> None:
    """numbers, ascending: documents of which units go; kept: numbers or texts of what stays. A file for each part."""
    bounds = np.searchsorted(numbers, [number(part, 0) for part in range(round.parts + 1)])
    for part, (begin, end) in enumerate(zip(bounds, bounds[1:])):
        write_removed_part(round, part, [(numbers[begin:end], units[begin:end], kept[begin:end])])


def write_removed_part(round: Round, part: int, blocks: Iterable[Tuple[np.ndarray, np.ndarray, np.ndarray]]) -> None:
    """The same for one part, in blocks one after the other."""
    path = round.removed(part)
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, _REMOVED) as writer:
        for numbers, units, kept in blocks:
            ordinals = (numbers & np.uint64(0xFFFFFFFF)).astype(np.uint32)
            columns = [pa.array(ordinals), pa.array(units.astype(np.int32)), pa.array(kept.tolist(), pa.string())]
            writer.write_table(pa.table(columns, schema=_REMOVED))
    fsync(temporary)
    os.replace(temporary, path)


def number(part: int, ordinal: "np.ndarray | int") -> np.ndarray:
    return np.asarray(ordinal, np.uint64) + np.uint64(NEW + (part << _PART))


def identifiers(round: Round, numbers: np.ndarray) -> Dict[int, str]:
    """Ids of documents of this run, given their numbers, ascending."""
    found: Dict[int, str] = {}
    bounds = np.searchsorted(numbers, [number(part, 0) for part in range(round.parts + 1)])
    for part, (begin, end) in enumerate(zip(bounds, bounds[1:])):
        if begin < end:
            wanted = numbers[begin:end]
            ordinals = (wanted & np.uint64(0xFFFFFFFF)).astype(np.int64)
            found.update(zip(wanted.tolist(), _ids(round.documents(part), ordinals)))
    return found


def _ids(path: Path, ordinals: np.ndarray) -> List[str]:
    file = pa.ipc.open_file(pa.memory_map(str(path)), options=pa.ipc.IpcReadOptions(included_fields=[0]))
    found: List[str] = []
    first = 0
    for place in range(file.num_record_batches):
        batch = file.get_batch(place)
        inside = ordinals[(ordinals >= first) & (ordinals < first + len(batch))] - first
        if len(inside):
            found += batch.column("id").take(pa.array(inside)).to_pylist()
        first += len(batch)
    return found


def _mapped(path: Path) -> np.ndarray:
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
