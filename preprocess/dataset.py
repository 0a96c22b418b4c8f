"""A finished set of shards, opened for reading: its documents by number, with their rows of the table and their texts.

Numbers of documents and positions of tokens run through all shards of the set. Nothing is held but the position.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from megatron_ext.config import schema
from preprocess import manifest, tokenizer
from preprocess.manifest import Manifest
from preprocess.shards import SUFFIXES, Shard

BATCH_ROWS = 1 << 16  # of the table, looked at together


class Dataset:
    """prefix: of a set, or of one shard of a set."""

    def __init__(self, prefix: str, tokenizer_path: str = "") -> None:
        """tokenizer_path: where the tokenizer is now, if not where the manifest says.

        Raises ValueError when a file is missing, damaged, or does not belong to the others.
        """
        self.manifest, self.prefixes = _find(prefix)
        if not self.prefixes:
            raise ValueError(f"{prefix}.json names no shard; make the set again with llm-preprocess")
        self.shards = [Shard(member) for member in self.prefixes]
        self.tables = [open_table(member) for member in self.prefixes]
        for member, shard, table in zip(self.prefixes, self.shards, self.tables):
            if table.metadata.num_rows != len(shard):
                raise ValueError(f"{member}.parquet has {table.metadata.num_rows} rows for {len(shard)} documents")
        self._ends = np.cumsum([len(shard) for shard in self.shards])
        self._token_ends = np.cumsum([len(shard.tokens) for shard in self.shards])
        self._tokenizer_path = tokenizer_path or self.manifest.tokenizer.path

    def __len__(self) -> int:
        """Number of documents."""
        return int(self._ends[-1])

    def place(self, number: int) -> Tuple[int, int]:
        """-> shard, document within it. Raises ValueError when there is no such document."""
        if not 0 <= number < len(self):
            raise ValueError(f"document {number} does not exist: there are {len(self)}, counted from 0")
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return shard, number - (int(self._ends[shard - 1]) if shard else 0)

    def tokens(self, number: int) -> np.ndarray:
        shard, document = self.place(number)
        return self.shards[shard][document]

    def at_token(self, position: int) -> int:
        """The document that the token at this position is of, its frame (BOS, EOD) included. Raises ValueError."""
        if not 0 <= position < (total := int(self._token_ends[-1])):
            raise ValueError(f"token {position} does not exist: there are {total}, counted from 0")
        which = int(np.searchsorted(self._token_ends, position, side="right"))
        before, documents = (int(ends[which - 1]) if which else 0 for ends in (self._token_ends, self._ends))
        shard = self.shards[which]
        offset = (position - before) * shard.dtype.itemsize
        sequence = int(np.searchsorted(shard.pointers, offset, side="right")) - 1
        return documents + int(np.searchsorted(shard.boundaries, sequence, side="right")) - 1

    def row(self, number: int) -> Dict[str, Any]:
        """What the table says of a document, its JSON opened."""
        shard, document = self.place(number)
        group = int(np.searchsorted(self._groups[shard], document, side="right"))
        first = int(self._groups[shard][group - 1]) if group else 0
        row: Dict[str, Any] = self.tables[shard].read_row_group(group).slice(document - first, 1).to_pylist()[0]
        return {**row, **{name: json.loads(row[name] or "{}") for name in ("scores", "metadata")}}

    def text(self, number: int, most: Optional[int] = None) -> str:
        """Of a document, decoded without BOS and EOD; `most`: of its first tokens only.

        Raises ValueError when the tokenizer is not there, or is not the one that made the shard.
        """
        ids = self.unframed(self.tokens(number))
        return self.tokenizer.decode(ids[:most].tolist())

    def unframed(self, ids: np.ndarray) -> np.ndarray:
        """Tokens of a document without the BOS and EOD that are no part of its text."""
        if labelled(self.manifest):
            return ids
        return ids[int(self.manifest.prepend_bos) : len(ids) - int(self.manifest.append_eod)]

    def find(self, columns: List[str], wanted: Callable[[pa.Array], pa.Array]) -> Iterator[int]:
        """Numbers of the documents where `wanted`, given a column, is true of one of them."""
        first = 0
        for batch in self.batches(columns):
            found = [pc.fill_null(wanted(column), False).to_numpy(zero_copy_only=False) for column in batch.columns]
            yield from (np.flatnonzero(np.any(found, axis=0)) + first).tolist()
            first += len(batch)

    def batches(self, columns: List[str]) -> Iterator[pa.RecordBatch]:
        for table in self.tables:
            yield from table.iter_batches(BATCH_ROWS, columns=columns, use_threads=False)

    @cached_property
    def tokenizer(self) -> tokenizer.Tokenizer:
        told, path = self.manifest.tokenizer, self._tokenizer_path
        if not Path(path).is_file():
            raise ValueError(f"tokenizer {path} does not exist; start in the folder of the run, or say where it is now")
        blob = tokenizer.read(path)
        if (found := tokenizer.fingerprint(blob)) != told.sha256:
            raise ValueError(
                f"tokenizer {path} is not the one that made the shard (SHA-256 {found[:12]}, not {told.sha256[:12]}): "
                f"its ids mean other texts; put the old file back, or say where it is"
            )
        pattern = self.manifest.settings["tokenizer"].get("pattern", "")
        settings = schema.Tokenizer(kind=schema.TokenizerKind(told.kind), path=path, pattern=pattern)
        return tokenizer.open_tokenizer(settings, blob)

    @cached_property
    def _groups(self) -> List[np.ndarray]:
        """Of each table: the row after each row group."""
        sizes = [[t.metadata.row_group(i).num_rows for i in range(t.metadata.num_row_groups)] for t in self.tables]
        return [np.cumsum(some) for some in sizes]


def labelled(made: Manifest) -> bool:
    """Of conversations: with a mask, and with the frame that their template gives them."""
    source = made.settings.get("source", {})
    return bool(source.get("label", {}).get("template"))


def open_table(prefix: str) -> pq.ParquetFile:
    """Raises ValueError when it is missing or damaged."""
    path = Path(f"{prefix}.parquet")
    if not path.is_file():
        raise ValueError(f"{path} does not exist; make the shard again with llm-preprocess")
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}); make the shard again with llm-preprocess") from error


def named(argument: str) -> str:
    """The prefix that a user means, who may have given the name of one of the files."""
    return argument.removesuffix(suffix) if (suffix := Path(argument).suffix) in SUFFIXES else argument


def set_of(prefix: str) -> str:
    """The prefix of the set that a shard is one of, if it is; else its own."""
    found = re.fullmatch(r"(.+)-\d{5}", prefix)
    if not found or Path(f"{prefix}.json").exists() or not Path(f"{found[1]}.json").exists():
        return prefix
    names = [shard.name for shard in manifest.read(found[1]).shards]
    return found[1] if Path(prefix).name in names else prefix


def _find(prefix: str) -> Tuple[Manifest, List[str]]:
    """The manifest, and the prefixes of the shards."""
    whole = manifest.read(set_of(prefix))
    return whole, whole.prefixes(prefix) if set_of(prefix) == prefix else [prefix]
