"""Reads Megatron `.bin/.idx` shards by memory map; format as in megatron-core's indexed_dataset.

.idx, little-endian: magic `MMIDIDX` and two zeros, version u64 = 1, dtype code u8, number of sequences u64, number of
document boundaries u64, then int32 lengths, int64 byte offsets, int64 first sequence of each document (and the end).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Union

import numpy as np

_MAGIC, _VERSION = b"MMIDIDX\x00\x00", (1).to_bytes(8, "little")
_DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
_HEADER = 34
_CHUNK = 1 << 20  # sequences checked at a time
_AGAIN = "make the shard again with llm-preprocess"


class Shard:
    """Documents of one shard: `lengths[d]` tokens from `starts(d)` on in `tokens`.

    All are views of the files, so that the ranks of a node share the memory; only where documents have several
    sequences each are lengths an array of its own.
    """

    def __init__(self, prefix: str) -> None:
        """Raises ValueError when a file is missing, foreign or shorter than it says."""
        self.prefix = prefix
        index, binary = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
        for path in (index, binary):
            if not path.is_file():
                raise ValueError(
                    f"shard file {path} does not exist; make it with llm-preprocess, or correct data.blend"
                )
        with open(index, "rb") as file:
            header = file.read(_HEADER)
        if len(header) < _HEADER or header[:17] != _MAGIC + _VERSION or header[17] not in _DTYPES:
            raise ValueError(f"{index} is not a Megatron index; {_AGAIN}")
        dtype = np.dtype(_DTYPES[header[17]])
        sequences, boundaries = struct.unpack("<QQ", header[18:34])
        if index.stat().st_size < _HEADER + 12 * sequences + 8 * boundaries:
            raise ValueError(f"{index} is cut short: {index.stat().st_size} bytes for {sequences} sequences; {_AGAIN}")
        if sequences == 0 or boundaries < 2:
            raise ValueError(f"{index} holds no documents; {_AGAIN}")
        raw = np.memmap(index, mode="r")
        offset = _HEADER + 4 * sequences
        lengths = raw[_HEADER:offset].view(np.int32)
        self._pointers = raw[offset : offset + 8 * sequences].view(np.int64)
        self._documents = raw[offset + 8 * sequences : offset + 8 * (sequences + boundaries)].view(np.int64)
        size, expected = binary.stat().st_size, int(lengths.sum(dtype=np.int64)) * dtype.itemsize
        if size != expected or size == 0:
            raise ValueError(f"{binary} has {size} bytes, its index says {expected}; {_AGAIN}")
        if not (_follow(lengths, self._pointers, dtype.itemsize) and _cover(self._documents, sequences)):
            raise ValueError(f"{index} contradicts itself: its documents do not cover its sequences; {_AGAIN}")
        self.tokens = np.memmap(binary, mode="r", dtype=dtype)
        one_each = boundaries == sequences + 1 and _count_up(self._documents)
        self.lengths = lengths if one_each else np.diff(self.starts(np.arange(boundaries)))

    def __len__(self) -> int:
        return len(self.lengths)

    def starts(self, documents: Union[int, np.ndarray]) -> np.ndarray:
        """First token of each of these; of number len(self), the end."""
        sequences = self._documents[documents]
        inside = np.minimum(sequences, len(self._pointers) - 1)
        return np.where(sequences == inside, self._pointers[inside] // self.tokens.itemsize, len(self.tokens))


def _follow(lengths: np.ndarray, pointers: np.ndarray, itemsize: int) -> bool:
    """Each sequence begins where the one before it ends."""
    end = 0
    for begin in range(0, len(lengths), _CHUNK):
        part = lengths[begin : begin + _CHUNK]
        ends = end + np.cumsum(part, dtype=np.int64)
        if part.min() < 0 or not np.array_equal(pointers[begin : begin + _CHUNK], (ends - part) * itemsize):
            return False
        end = int(ends[-1])
    return True


def _cover(documents: np.ndarray, sequences: int) -> bool:
    rising = all((np.diff(documents[at : at + _CHUNK + 1]) >= 0).all() for at in range(0, len(documents), _CHUNK))
    return bool(documents[0] == 0 and documents[-1] == sequences and rising)


def _count_up(documents: np.ndarray) -> bool:
    """Given that they rise from 0 to their number - 1: by 1 each."""
    return all((np.diff(documents[at : at + _CHUNK + 1]) == 1).all() for at in range(0, len(documents), _CHUNK))
