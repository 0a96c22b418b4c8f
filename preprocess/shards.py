"""Megatron `.bin/.idx` shards as a stream, in numpy alone; byte for byte what Megatron-LM's own builder writes.

.bin   the tokens of all documents end to end, uint16 below 65500 ids, else int32
.idx   little-endian: magic `MMIDIDX` and two zeros, version u64 = 1, dtype code u8, number of sequences u64, number of
       document boundaries u64, then int32 lengths, int64 byte offsets, int64 first sequence of each document, the end
.json  the sidecar: what the shard holds and was made of. A shard without it is not complete
"""

from __future__ import annotations

import dataclasses
import json
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, List, Optional, Type

import numpy as np

SUFFIXES = (".bin", ".idx", ".parquet", ".json")  # in the order they appear in; see staging.publish
FORMAT_VERSION = 1

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_CODES: Dict[Any, int] = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}
_UINT16_BELOW = 65500  # ids; Megatron's boundary, which leaves it some room for padding
_LONGEST = 2**31 - 1  # tokens of a document: lengths are int32
_PART = 1 << 18  # documents whose offsets are held in memory at a time


@dataclass(frozen=True)
class InputFile:
    path: str
    bytes: int


@dataclass(frozen=True)
class Sidecar:
    """<prefix>.json. Each record read was kept or dropped (by reason)."""

    format_version: int
    tokenizer_kind: str
    tokenizer_sha256: str
    vocab_size: int  # greatest id that can occur, plus one
    append_eod: bool
    eod_id: Optional[int]  # None: the tokenizer has none
    dtype: str
    documents: int
    tokens: int
    text_bytes: int  # UTF-8, of the kept documents
    unknown_tokens: int  # of all tokens: the tokenizer's <unk>, text that the shard does not hold
    read: int
    kept: int
    dropped: Dict[str, int]
    inputs: List[InputFile]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def read_sidecar(prefix: str) -> Sidecar:
    """Raises ValueError when there is none (the shard is not complete), or when it is of another version or damaged."""
    path = Path(f"{prefix}.json")
    if not path.is_file():
        raise ValueError(f"{path} does not exist, so shard {prefix} is not complete; make it with llm-preprocess")
    try:
        facts: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if facts["format_version"] != FORMAT_VERSION:
            raise ValueError(f"{path} has format {facts['format_version']}, this program reads {FORMAT_VERSION}")
        return Sidecar(**{**facts, "inputs": [InputFile(**file) for file in facts["inputs"]]})
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); make the shard again with llm-preprocess") from error


def dtype_for(vocab_size: int) -> np.dtype:
    return np.dtype(np.uint16 if vocab_size < _UINT16_BELOW else np.int32)


class ShardWriter:
    """Writes <stem>.bin as documents come, and <stem>.idx on leaving the `with` block. Memory: 4 bytes a document."""

    def __init__(self, stem: Path, vocab_size: int) -> None:
        self.dtype, self.tokens = dtype_for(vocab_size), 0
        self._vocab_size, self._stem = vocab_size, stem
        self._lengths = array("i")
        self._bin = open(f"{stem}.bin", "wb")  # noqa: SIM115 - closed on leaving the block

    def __enter__(self) -> ShardWriter:
        return self

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """ids [sum of lengths] of consecutive documents. Raises ValueError for an id outside the vocabulary."""
        assert len(ids) == lengths.sum(), f"{len(ids)} tokens for lengths that sum to {lengths.sum()}"
        if len(ids) and (ids.min() < 0 or ids.max() >= self._vocab_size):
            raise ValueError(
                f"token id {ids.max() if ids.min() >= 0 else ids.min()} is outside the tokenizer's {self._vocab_size} "
                f"ids; its file contradicts itself, use another one"
            )
        if len(lengths) and lengths.max() > _LONGEST:
            raise ValueError(f"a document has {lengths.max()} tokens, Megatron's index holds {_LONGEST}; split it")
        self._bin.write(np.ascontiguousarray(ids, dtype=self.dtype).data)
        self._lengths.frombytes(np.ascontiguousarray(lengths, dtype=np.int32).tobytes())
        self.tokens += len(ids)

    @property
    def documents(self) -> int:
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
            file.write(_HEADER.pack(_MAGIC, 1, _CODES[self.dtype], count, count + 1))
            file.write(lengths.data)
            offset = 0
            for start in range(0, count, _PART):
                part = lengths[start : start + _PART].astype(np.int64) * self.dtype.itemsize
                ends = np.cumsum(part) + offset
                file.write((ends - part).data)
                offset = int(ends[-1])
            for start in range(0, count + 1, _PART):
                file.write(np.arange(start, min(start + _PART, count + 1), dtype=np.int64).data)


class Shard:
    """A memory-mapped shard of one sequence a document; document i has lengths[i] tokens from starts[i] on."""

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
        if version != 1 or code not in dtypes or boundaries != count + 1:
            raise ValueError(
                f"{index}: version {version}, dtype code {code}, {count} sequences and {boundaries} boundaries; this "
                f"program reads version 1, codes {sorted(dtypes)} and one sequence a document"
            )
        _check_size(index, _HEADER.size + 12 * count + 8 * boundaries)
        self.dtype = dtypes[code]
        if count == 0 or binary.stat().st_size == 0:
            raise ValueError(f"shard {prefix} holds {count} documents and no token; leave it out, or make it again")
        self.lengths = np.memmap(index, np.int32, "r", _HEADER.size, (count,))
        self.pointers = np.memmap(index, np.int64, "r", _HEADER.size + 4 * count, (count,))
        self.boundaries = np.memmap(index, np.int64, "r", _HEADER.size + 12 * count, (boundaries,))
        _check_size(binary, int(self.lengths.sum(dtype=np.int64)) * self.dtype.itemsize)
        self.tokens = np.memmap(binary, self.dtype, "r")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, document: int) -> np.ndarray:
        """A view of the file: it stays valid for as long as it is referred to."""
        start = int(self.pointers[document]) // self.dtype.itemsize
        return self.tokens[start : start + int(self.lengths[document])]


def _check_size(path: Path, expected: int) -> None:
    if (size := path.stat().st_size) != expected:
        raise ValueError(
            f"{path} has {size} bytes and should have {expected}; make the shard again with llm-preprocess"
        )
