"""Megatron `.bin/.idx` shards as a stream, in numpy alone; byte for byte what Megatron-LM's own builder writes.

.bin   the tokens of all documents end to end, uint16 below 65500 ids, else int32
.idx   little-endian: magic `MMIDIDX` and two zeros, version u64 = 1, dtype code u8, number of sequences u64, number of
       document boundaries u64, then int32 lengths, int64 byte offsets, int64 first sequence of each document, the end

A document is one sequence, or several (its sentences).
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, Optional, Type

import numpy as np

SUFFIXES = (".bin", ".idx", ".parquet", ".json")  # what every shard has, in the order they appear in

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_CODES: Dict[Any, int] = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}
_UINT16_BELOW = 65500  # ids; Megatron's boundary, which leaves it some room for padding
_LONGEST = 2**31 - 1  # tokens of a sequence: lengths are int32
_PART = 1 << 18  # sequences whose offsets are held in memory at a time


def dtype_for(vocab_size: int) -> np.dtype:
    return np.dtype(np.uint16 if vocab_size < _UINT16_BELOW else np.int32)


def checked(ids: np.ndarray, lengths: np.ndarray, vocab_size: int) -> np.ndarray:
    """ids in the shard's dtype. Raises ValueError for an id outside the vocabulary or a sequence that is too long."""
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        raise ValueError(
            f"token id {ids.max() if ids.min() >= 0 else ids.min()} is outside the tokenizer's {vocab_size} "
            f"ids; its file contradicts itself, use another one"
        )
    if len(lengths) and lengths.max() > _LONGEST:
        raise ValueError(f"a document has {lengths.max()} tokens, Megatron's index holds {_LONGEST}; split it")
    return np.ascontiguousarray(ids, dtype=dtype_for(vocab_size))


class ShardWriter:
    """Writes <stem>.bin as documents come, and <stem>.idx on leaving the `with` block.

    Memory: 4 bytes a sequence, and 8 a document from the first on that has not just one. `digest`: of both files.
    """

    def __init__(self, stem: Path, dtype: np.dtype) -> None:
        self.dtype, self.tokens, self.documents = dtype, 0, 0
        self.digest = hashlib.sha256()
        self._stem = stem
        self._lengths, self._boundaries = array("i"), array("q")  # boundaries: ends of documents, when they are several
        self._bin = open(f"{stem}.bin", "wb")  # noqa: SIM115 - closed on leaving the block

    def __enter__(self) -> ShardWriter:
        return self

    def add(self, ids: np.ndarray, lengths: np.ndarray, sequences: Optional[np.ndarray] = None) -> None:
        """ids [sum of lengths] in the shard's dtype; lengths of consecutive sequences; how many each document has."""
        assert len(ids) == lengths.sum(dtype=np.int64), f"{len(ids)} tokens for lengths that sum to {lengths.sum()}"
        assert ids.dtype == self.dtype, f"{ids.dtype} in a shard of {self.dtype}"
        assert sequences is None or sequences.sum() == len(lengths), "sequences of documents do not add up"
        data = np.ascontiguousarray(ids).data
        self._bin.write(data)
        self.digest.update(data)
        if sequences is not None and (len(self._boundaries) or (sequences != 1).any()):
            if not self._boundaries:
                self._boundaries.frombytes(np.arange(1, self.documents + 1, dtype=np.int64).tobytes())
            self._boundaries.frombytes((np.cumsum(sequences, dtype=np.int64) + len(self._lengths)).tobytes())
        elif self._boundaries:
            ends = np.arange(1, len(lengths) + 1, dtype=np.int64) + len(self._lengths)
            self._boundaries.frombytes(ends.tobytes())
        self._lengths.frombytes(np.ascontiguousarray(lengths, dtype=np.int32).tobytes())
        self.documents += len(lengths) if sequences is None else len(sequences)
        self.tokens += len(ids)

    @property
    def sequences(self) -> int:
        return len(self._lengths)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._bin.close()
        if kind is None:
            self._write_index()

    def _write_index(self) -> None:
        lengths, count = np.frombuffer(self._lengths, dtype=np.int32), len(self._lengths)
        with open(f"{self._stem}.idx", "wb") as file:

            def write(data: Any) -> None:
                file.write(data)
                self.digest.update(data)

            write(_HEADER.pack(_MAGIC, 1, _CODES[self.dtype], count, self.documents + 1))
            write(lengths.data)
            offset = 0
            for start in range(0, count, _PART):
                part = lengths[start : start + _PART].astype(np.int64) * self.dtype.itemsize
                ends = np.cumsum(part) + offset
                write((ends - part).data)
                offset = int(ends[-1])
            if self._boundaries:
                write(np.zeros(1, np.int64).data)
                write(np.frombuffer(self._boundaries, dtype=np.int64).data)
                return
            for start in range(0, count + 1, _PART):
                write(np.arange(start, min(start + _PART, count + 1), dtype=np.int64).data)


class Shard:
    """A memory-mapped shard: document i is sequences boundaries[i] to boundaries[i + 1]."""

    def __init__(self, prefix: str) -> None:
        """Raises ValueError when a file is missing, foreign, or not of the size it says."""
        index, binary = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
        for path in (index, binary):
            if not path.is_file():
                raise ValueError(f"{path} does not exist; make the shard with llm-preprocess")
        with open(index, "rb") as file:
            head = file.read(_HEADER.size)
        if len(head) < _HEADER.size or head[:9] != _MAGIC:
            raise ValueError(f"{index} is not a Megatron index")
        _, version, code, count, boundaries = _HEADER.unpack(head)
        dtypes = {code: dtype for dtype, code in _CODES.items()}
        if version != 1 or code not in dtypes:
            raise ValueError(
                f"{index}: version {version}, dtype code {code}; this program reads version 1, codes {sorted(dtypes)}"
            )
        _check_size(index, _HEADER.size + 12 * count + 8 * boundaries)
        self.dtype = dtypes[code]
        if count == 0 or boundaries < 2 or binary.stat().st_size == 0:
            raise ValueError(f"shard {prefix} holds {count} sequences and no token; leave it out, or make it again")
        self.lengths = np.memmap(index, np.int32, "r", _HEADER.size, (count,))
        self.pointers = np.memmap(index, np.int64, "r", _HEADER.size + 4 * count, (count,))
        self.boundaries = np.memmap(index, np.int64, "r", _HEADER.size + 12 * count, (boundaries,))
        _check_size(binary, int(self.lengths.sum(dtype=np.int64)) * self.dtype.itemsize)
        self.tokens = np.memmap(binary, self.dtype, "r")

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.boundaries) - 1

    def starts(self, begin: int, end: int) -> np.ndarray:
        """int64: first token of documents begin ... end - 1, and where the last of them ends."""
        first = np.asarray(self.boundaries[begin : end + 1])
        inside = np.minimum(first, len(self.pointers) - 1)
        starts = self.pointers[inside] // self.dtype.itemsize
        return np.where(first < len(self.pointers), starts, len(self.tokens))

    def __getitem__(self, document: int) -> np.ndarray:
        """A view of the file: it stays valid for as long as it is referred to."""
        start, end = self.starts(document, document + 1)
        return self.tokens[start:end]


def _check_size(path: Path, expected: int) -> None:
    if (size := path.stat().st_size) != expected:
        raise ValueError(
            f"{path} has {size} bytes and should have {expected}; make the shard again with llm-preprocess"
        )
