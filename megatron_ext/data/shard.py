"""Reads Megatron `.bin/.idx` shards by memory map; format as in megatron-core's indexed_dataset.

.idx, little-endian: magic `MMIDIDX` and two zeros, version u64 = 1, dtype code u8, number of sequences u64, number of
document boundaries u64, then int32 lengths, int64 byte offsets, int64 first sequence of each document (and the end).
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

_MAGIC, _VERSION = b"MMIDIDX\x00\x00", (1).to_bytes(8, "little")
_DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
_HEADER = 34
_AGAIN = "make the shard again with llm-preprocess"


class Shard:
    """Documents of one shard. `lengths[d]` tokens of document d start at `starts[d]` in `tokens`."""

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
        lengths = raw[_HEADER : _HEADER + 4 * sequences].view(np.int32)
        offset = _HEADER + 4 * sequences
        pointers = raw[offset : offset + 8 * sequences].view(np.int64)
        documents = raw[offset + 8 * sequences : offset + 8 * (sequences + boundaries)].view(np.int64)
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        size, expected = binary.stat().st_size, int(ends[-1]) * dtype.itemsize
        if size != expected or size == 0:
            raise ValueError(f"{binary} has {size} bytes, its index says {expected}; {_AGAIN}")
        whole = documents[0] == 0 and documents[-1] == sequences and bool((np.diff(documents) >= 0).all())
        if not whole or lengths.min() < 0 or pointers[-1] != int(ends[-2]) * dtype.itemsize:
            raise ValueError(f"{index} contradicts itself: its documents do not cover its sequences; {_AGAIN}")
        self.tokens = np.memmap(binary, mode="r", dtype=dtype)
        bounds = ends[documents]
        self.starts, self.lengths = bounds[:-1], np.diff(bounds)

    def __len__(self) -> int:
        return len(self.lengths)
