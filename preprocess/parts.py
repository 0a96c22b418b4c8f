"""The results of one part of the input in one pass, written as they come and visible when they are whole."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Dict, List, Optional, Type

import numpy as np
import pyarrow as pa

from preprocess import metadata, store
from preprocess.pipeline import Tally
from preprocess.readers import Part
from preprocess.staging import fsync
from preprocess.work import Work, temporary, write_mark
from preprocess.worker import ASIDE, Outcome, totals

PLACES = 20  # records that could not be read, of which place and reason are kept


class PartWriter:
    """Context manager: on leaving it without `finish` nothing of the part is left."""

    def __init__(self, work: Work, number: int, part: int) -> None:
        self._work, self._number, self._part = work, number, part
        self._folder = temporary(work.part(number, part, "writing"))
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._raw: Dict[str, BinaryIO] = {}
        self._tables: Dict[str, store.Writer] = {}
        self._tallies: Dict[str, Tally] = {}
        self._batches: List[int] = []
        self.records = self.kept = self.text_bytes = self.unknown_tokens = 0
        self.unreadable: List[Any] = []  # [line in the part, why]
        self.how = ""  # the ids were made

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, outcome: Outcome) -> None:
        """Of the next chunk."""
        for name, tally in outcome.tallies.items():
            self._tallies.setdefault(name, Tally()).add(tally)
        self.unreadable += [[self.records + line, why] for line, why in outcome.unreadable]
        if outcome.documents is not None:
            self._batches.append(len(outcome.documents))
            self._table("documents", store.SCHEMA, outcome.documents)
        if outcome.aside is not None:
            self._table("aside", ASIDE, outcome.aside)
        if outcome.sketch is not None:
            self._write("owners", (outcome.sketch.owners + self.kept).astype("<u4"))
            self._write("values", outcome.sketch.values.astype("<u8", copy=False))
        if (encoded := outcome.encoded) is not None:
            self._write("tokens", encoded.ids)
            self._write("lengths", encoded.lengths)
            self._write("sequences", encoded.sequences)
            self._table("rows", metadata.DESCRIPTION, encoded.rows)
            self.text_bytes += encoded.text_bytes
            self.unknown_tokens += encoded.unknown_tokens
            self.how = encoded.how
            if encoded.mask is not None and encoded.packs is not None:
                self._write("mask", encoded.mask)
                self._write("packs", encoded.packs)
        self.records += outcome.records
        self.kept += outcome.kept

    def finish(self, stamp: str, last: bool, **facts: Any) -> Dict[str, Any]:
        """Everything to disk, then under its names, then the mark."""
        kinds = ("tokens", "lengths", "sequences") if last else ("owners", "values")
        for kind in kinds:  # also of a part of which nothing was kept
            self._write(kind, np.zeros(0, np.uint8))
        self._open_table("rows" if last else "documents", metadata.DESCRIPTION if last else store.SCHEMA)
        self._close()
        mark = self._work.part(self._number, self._part, "json")
        mark.unlink(missing_ok=True)
        for old in mark.parent.glob(f"{mark.stem}.*"):  # of other input or settings; it may have had other kinds
            old.unlink(missing_ok=True)
        for decision in [*mark.parent.glob("searched-*.json"), mark.parent / "decided.json"]:
            decision.unlink(missing_ok=True)  # of other content of this part
        for file in self._folder.iterdir():
            fsync(file)
            os.replace(file, self._work.part(self._number, self._part, file.name))
        fsync(self._work.pass_folder(self._number))
        return write_mark(
            mark,
            stamp,
            records=self.records,
            kept=self.kept,
            batches=self._batches,
            text_bytes=self.text_bytes,
            unknown_tokens=self.unknown_tokens,
            how=self.how,
            unreadable=len(self.unreadable),
            unreadable_places=self.unreadable[:PLACES],
            steps=totals(self._tallies),
            **facts,
        )

    def _write(self, kind: str, values: np.ndarray) -> None:
        if kind not in self._raw:
            self._raw[kind] = open(self._folder / kind, "wb")  # noqa: SIM115 - closed with all others
        self._raw[kind].write(np.ascontiguousarray(values).data)

    def _table(self, kind: str, schema: pa.Schema, batch: pa.RecordBatch) -> None:
        """Lines count from the start of the chunk; from here on from the start of the part."""
        place = schema.get_field_index("line")
        if self.records and self._number == 0:
            lines = pa.array(np.asarray(batch.column(place)) + self.records, pa.int64())
            columns = [lines if index == place else column for index, column in enumerate(batch.columns)]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        self._open_table(kind, schema).add(batch)

    def _open_table(self, kind: str, schema: pa.Schema) -> store.Writer:
        if kind not in self._tables:
            self._tables[kind] = store.Writer(self._folder / kind, schema)
        return self._tables[kind]

    def _close(self) -> None:
        for file in self._raw.values():
            file.close()
        for table in self._tables.values():
            table.__exit__(None, None, None)
        self._raw, self._tables = {}, {}


def sha256_of(part: Part) -> str:
    """Of its stored bytes."""
    whole, left = hashlib.sha256(), part.end - part.start
    with open(part.path, "rb") as file:
        file.seek(part.start)
        while left > 0 and (data := file.read(min(left, 1 << 22))):
            whole.update(data)
            left -= len(data)
    return whole.hexdigest()


def is_local(path: str) -> bool:
    return Path(path).exists()
