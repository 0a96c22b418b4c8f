"""A folder that remembers documents of earlier runs, so that new data is compared with them too.

A generation an output: its sketches, the ids of its documents, and what they were made with. A run meets those that
came before it, also when it is made again: else two outputs would each wait for the other's last version, without end.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import pyarrow as pa

from preprocess.dedup.files import NEW, Round, number
from preprocess.staging import fsync


@dataclass(frozen=True)
class Generation:
    """first: number of its first document; they count on through the generations."""

    folder: Path
    output: str
    stamp: str
    documents: int
    first: int


def generations(index: str, settings: Dict[str, Any], output: str) -> List[Generation]:
    """Those before that of `output`, oldest first. Raises ValueError for one that was made with other settings."""
    found: List[Generation] = []
    first = 0
    for folder, facts in _all(index):
        if facts["settings"] != settings:
            raise ValueError(
                f"index {index} was made with {facts['settings']}, this step has {settings}; use those or another"
            )
        if facts["output"] == _absolute(output):
            break
        found.append(Generation(folder, facts["output"], facts["stamp"], facts["documents"], first))
        first += facts["documents"]
    assert first < NEW, "numbers of an index run into those of new documents"
    return found


def sketches(known: List[Generation], width: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """(numbers, values) of each generation, as Round.sketches."""
    for one in known:
        values = np.memmap(one.folder / "values", "<u8", "r").reshape(-1, width) if one.documents else _none(width)
        yield np.arange(one.first, one.first + one.documents, dtype=np.uint64), values


def names(known: List[Generation], numbers: np.ndarray) -> Dict[int, str]:
    """ "output: id" of documents of the index, given their numbers, ascending."""
    found: Dict[int, str] = {}
    for one in known:
        begin, end = np.searchsorted(numbers, np.asarray([one.first, one.first + one.documents], np.uint64))
        if begin < end:
            ids = pa.ipc.open_file(pa.memory_map(str(one.folder / "ids"))).read_all()["id"]
            places = pa.array((numbers[begin:end] - np.uint64(one.first)).astype(np.int64))
            found.update(
                (n, f"{one.output}: {id}") for n, id in zip(numbers[begin:end].tolist(), ids.take(places).to_pylist())
            )
    return found


def remember(index: str, settings: Dict[str, Any], round: Round, width: int, stamp: str) -> None:
    """Add the documents of a round that were not removed: a row of values each. Takes the place this output had."""
    name = hashlib.sha256(_absolute(round.output).encode()).hexdigest()[:16]
    folder, temporary = Path(index) / name, Path(index) / f".{name}.{os.uname().nodename}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    documents = 0
    schema = pa.schema([("id", pa.string())])
    with (
        open(temporary / "values", "wb") as values,
        pa.OSFile(str(temporary / "ids"), "wb") as sink,
        pa.ipc.new_file(sink, schema) as ids,
    ):
        for part, (numbers, rows) in enumerate(round.sketches(width)):
            kept = np.ones(len(numbers), bool)
            removed = pa.ipc.open_file(pa.memory_map(str(round.removed(part)))).read_all()["ordinal"]
            kept[np.searchsorted(numbers, number(part, removed.to_numpy()))] = False
            values.write(np.ascontiguousarray(rows[kept]).data)
            documents += int(kept.sum())
            _copy_ids(round.documents(part), kept, ids)
    known = [facts for _, facts in _all(index)]
    places = [facts["place"] for facts in known if facts["output"] == _absolute(round.output)]
    facts = {
        "settings": settings,
        "output": _absolute(round.output),
        "stamp": stamp,
        "documents": documents,
        "place": places[0] if places else max((facts["place"] for facts in known), default=-1) + 1,
    }
    (temporary / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    for file in temporary.iterdir():
        fsync(file)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)
    fsync(Path(index))


def _all(index: str) -> List[Tuple[Path, Dict[str, Any]]]:
    """(folder, facts) of all generations, in the order in which their outputs first came."""
    folders = sorted(Path(index).glob("[0-9a-f]" * 16)) if index else []
    found = [(folder, json.loads((folder / "facts.json").read_text(encoding="utf-8"))) for folder in folders]
    return sorted(found, key=lambda one: int(one[1]["place"]))


def _copy_ids(path: Path, kept: np.ndarray, ids: Any) -> None:
    file = pa.ipc.open_file(pa.memory_map(str(path)), options=pa.ipc.IpcReadOptions(included_fields=[0]))
    first = 0
    for place in range(file.num_record_batches):
        column = file.get_batch(place).column("id")
        chosen = column.filter(pa.array(kept[first : first + len(column)]))
        ids.write_batch(pa.record_batch([chosen], names=["id"]))
        first += len(column)


def _none(width: int) -> np.ndarray:
    return np.zeros((0, width), np.uint64)


def _absolute(output: str) -> str:
    return str(Path(output).absolute())
