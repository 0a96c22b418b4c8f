"""The parts of the last pass -> shards, the table of their documents, and the manifest; published together.

Parts are copied in order, so what comes out does not depend on who made them. With data.source.shard_tokens a new shard
begins where the next document would go beyond it; a document is never divided.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Callable, List, Optional, Tuple

import numpy as np
import pyarrow as pa
import zstandard

from preprocess import store
from preprocess.manifest import Manifest, ShardFile
from preprocess.metadata import TableWriter
from preprocess.plan import Plan
from preprocess.shards import ShardWriter
from preprocess.staging import fsync
from preprocess.work import Work

_OF_THE_SET = (".dropped.jsonl.zst", ".report.json", ".card.html")
_PARTS = (".bin", ".idx", ".parquet", ".mask", ".packs")


class ShardSet:
    """Context manager: the shards in `folder`, each filled up to `limit` tokens (0: one shard of any size)."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype, limit: int, labelled: bool) -> None:
        self._folder, self._name, self.dtype, self._limit, self._labelled = folder, name, dtype, limit, labelled
        self._stack = ExitStack()
        self._shard: Optional[ShardWriter] = None
        self._table: Optional[TableWriter] = None
        self._mask: Optional[BinaryIO] = None
        self._mask_digest, self._packs = hashlib.sha256(), [np.zeros(1, np.int64)]
        self.shards: List[ShardFile] = []
        self.sequences = 0
        self._digest = hashlib.sha256()

    def add(
        self, tokens: np.ndarray, lengths: np.ndarray, sequences: np.ndarray, rows: pa.RecordBatch, lines_before: int
    ) -> None:
        """Consecutive documents: sequences [documents] of lengths [sequences] of tokens."""
        ends = np.concatenate([[0], np.cumsum(sequences, dtype=np.int64)])
        places = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[ends]  # first token of each document, end
        begin = 0
        while begin < len(sequences):
            shard, table = self._open(int(places[begin + 1] - places[begin]))
            room = places[begin] + self._limit - shard.tokens
            end = int(np.searchsorted(places, room, side="right")) - 1 if self._limit else len(sequences)
            end = min(max(end, begin + 1), len(sequences))
            some = slice(int(ends[begin]), int(ends[end]))
            shard.add(tokens[places[begin] : places[end]], lengths[some], sequences[begin:end])
            table.add(rows.slice(begin, end - begin), np.diff(places[begin : end + 1]), lines_before)
            begin = end

    def add_labels(self, mask: np.ndarray, packs: np.ndarray) -> None:
        """One a token of what was added; the number of documents of each pack."""
        assert self._mask is not None and not self._limit, "conversations go to one shard"
        self._mask.write(mask.data)
        self._mask_digest.update(mask.data)
        self._packs.append(np.asarray(packs, np.int64))

    def _open(self, tokens: int) -> Tuple[ShardWriter, TableWriter]:
        """The shard that the next document, of so many tokens, goes to."""
        if self._shard is not None and self._limit and self._shard.tokens + tokens > self._limit:
            self._close()
        if self._shard is None or self._table is None:
            name = f"{self._name}-{len(self.shards):05}" if self._limit else self._name
            stem = self._folder / name
            self._shard = self._stack.enter_context(ShardWriter(stem, self.dtype))
            self._table = self._stack.enter_context(TableWriter(stem.with_name(f"{name}.parquet")))
            if self._labelled:
                self._mask = self._stack.enter_context(open(f"{stem}.mask", "wb"))  # noqa: SIM115 - as the others
        return self._shard, self._table

    def _close(self) -> None:
        if self._shard is None:
            return
        shard, self._shard, self._table = self._shard, None, None
        self._stack.close()
        self._digest.update(shard.digest.digest())
        self.sequences += shard.sequences
        name = f"{self._name}-{len(self.shards):05}" if self._limit else self._name
        if self._labelled:
            bounds = np.cumsum(np.concatenate(self._packs)).astype("<i8")
            bounds.tofile(self._folder / f"{name}.packs")
            self._digest.update(self._mask_digest.digest() + hashlib.sha256(bounds.data).digest())
        self.shards.append(ShardFile(name, shard.documents, shard.tokens))

    def __enter__(self) -> ShardSet:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self._close()
        else:
            self._stack.__exit__(kind, error, trace)

    @property
    def fingerprint(self) -> str:
        return self._digest.hexdigest()


def put_together(plan: Plan, work: Work, folder: Path, dtype: np.dtype, lines: List[int]) -> ShardSet:
    """All parts -> files in `folder`. lines[part]: lines of its file before it."""
    source, labelled = plan.data.source, plan.recipe.label is not None
    name, last = Path(source.output).name, plan.last
    with ShardSet(folder, name, dtype, source.shard_tokens, labelled) as shards:
        for part in range(len(plan.parts)):

            def raw(kind: str, of: Any, part: int = part) -> np.ndarray:
                path = work.part(last, part, kind)
                return np.memmap(path, of, "r") if path.stat().st_size else np.zeros(0, of)

            tokens, lengths, sequences = raw("tokens", dtype), raw("lengths", np.int32), raw("sequences", np.int32)
            token = sequence = document = 0
            rows = store.open_file(work.part(last, part, "rows"))
            for batch in (rows.get_batch(number) for number in range(rows.num_record_batches)):
                documents = slice(document, document + len(batch))
                count = int(sequences[documents].sum())
                some = lengths[sequence : sequence + count]
                size = int(some.sum(dtype=np.int64))
                shards.add(tokens[token : token + size], some, sequences[documents], batch, lines[part])
                token, sequence, document = token + size, sequence + count, documents.stop
            if labelled and len(tokens):
                shards.add_labels(raw("mask", np.uint8), raw("packs", np.int32))
    return shards


def write_aside(plan: Plan, work: Work, path: Path, lines: List[int]) -> None:
    """Dropped documents of all passes, one JSON object a line: by pass, then in the order of the input."""
    with open(path, "wb") as raw, zstandard.ZstdCompressor().stream_writer(raw) as file:
        for number in range(plan.last + 1):
            for part in range(len(plan.parts)):
                if (aside := work.part(number, part, "aside")).exists():
                    _copy_aside(aside, lines[part], file.write)


def _copy_aside(aside: Path, lines_before: int, write: Callable[[bytes], Any]) -> None:
    table = store.open_file(aside)
    for place in range(table.num_record_batches):
        for row in table.get_batch(place).to_pylist():
            metadata = json.loads(row.pop("metadata") or "{}")
            row = {**row, "line": row["line"] + lines_before, "metadata": metadata}
            write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def publish(folder: Path, prefix: str, manifest: Manifest) -> None:
    """Move the set from `folder` to its place, the manifest last: only with it is the set complete."""
    target = Path(prefix)
    names = sorted(file.name for file in folder.iterdir())
    for name in names:
        fsync(folder / name)
    Path(f"{prefix}.json").unlink(missing_ok=True)  # from here on the old set is not complete, nor is the new one
    fsync(target.parent)
    for old in _files_of(target):
        if old.name not in names:
            old.unlink()
    for name in names:
        os.replace(folder / name, target.with_name(name))
    fsync(target.parent)
    (folder / "manifest").write_text(manifest.to_json(), encoding="utf-8")
    fsync(folder / "manifest")
    os.replace(folder / "manifest", f"{prefix}.json")
    fsync(target.parent)


def _files_of(target: Path) -> List[Path]:
    """What an earlier run of this output left: its shards, numbered or not."""
    found = [target.with_name(target.name + suffix) for suffix in (*_PARTS, *_OF_THE_SET)]
    numbered = [target.parent.glob(f"{target.name}-[0-9][0-9][0-9][0-9][0-9]{suffix}") for suffix in _PARTS]
    return [path for path in [*found, *(path for paths in numbered for path in paths)] if path.exists()]
