"""Reads Megatron `.bin/.idx` shards by memory map; format as in megatron-core's indexed_dataset.

.idx, little-endian: magic `MMIDIDX` and two zeros, version u64 = 1, dtype code u8, number of sequences u64, number of
document boundaries u64, then int32 lengths, int64 byte offsets, int64 first sequence of each document (and the end).
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

_MAGIC = b"MMIDIDX\x00\x00"
_DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
_HEADER = 34


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
        if len(header) < _HEADER or header[:9] != _MAGIC or header[17] not in _DTYPES:
            raise ValueError(f"{index} is not a Megatron index; make it again with llm-preprocess")
        dtype = np.dtype(_DTYPES[header[17]])
        sequences, boundaries = struct.unpack("<QQ", header[18:34])
        if index.stat().st_size < _HEADER + 12 * sequences + 8 * boundaries:
            raise ValueError(f"{index} is cut short: {index.stat().st_size} bytes for {sequences} sequences")
        raw = np.memmap(index, mode="r")
        lengths = raw[_HEADER : _HEADER + 4 * sequences].view(np.int32)
        offset = _HEADER + 4 * sequences
        pointers = raw[offset : offset + 8 * sequences].view(np.int64)
        documents = raw[offset + 8 * sequences : offset + 8 * (sequences + boundaries)].view(np.int64)
        if binary.stat().st_size != int(lengths.sum(dtype=np.int64)) * dtype.itemsize or sequences == 0:
            raise ValueError(
                f"{binary} has {binary.stat().st_size} bytes, its index says "
                f"{int(lengths.sum(dtype=np.int64)) * dtype.itemsize}; make the shard again with llm-preprocess"
            )
        self.tokens = np.memmap(binary, mode="r", dtype=dtype)
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[documents]
        self.starts, self.lengths = ends[:-1], np.diff(ends)
        assert sequences == 0 or pointers[-1] + int(lengths[-1]) * dtype.itemsize == binary.stat().st_size

    def __len__(self) -> int:
        return len(self.lengths)
