"""Hugging Face model folders: config.json and safetensors, read and written as a stream.

A safetensors file is eight bytes of header length, a JSON header {name: {dtype, shape, data_offsets}}, then the bytes
of the tensors. Many files have an index, model.safetensors.index.json, that says which file holds which tensor.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

import torch

from checkpoints_tools.formats.tensors import Damaged, Shape, Spec, raw_bytes, read_box

CONFIG = "config.json"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER = 100_000_000  # the format's own limit


class _Stored(NamedTuple):
    file: str
    start: int  # byte of the file


class Reader:
    """A whole model folder. Opening reads the headers and checks index, offsets and file sizes; raises Damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = _json(folder / CONFIG)
        self.tensors: Dict[str, Spec] = {}
        self.duplicates: List[str] = []  # tensors in several files; the index's choice is used
        self._stored: Dict[str, _Stored] = {}
        index = self._weight_map()
        for file in sorted({SINGLE} if index is None else set(index.values())):
            self._scan(file, index)
        if index is not None and (lost := sorted(set(index) - set(self.tensors))):
            raise Damaged(f"{folder / INDEX} lists {lost[0]} in {index[lost[0]]}, but it is not there")

    def read(self, name: str, offset: Shape, shape: Shape) -> torch.Tensor:
        stored, spec = self._stored[name], self.tensors[name]
        with open(self.folder / stored.file, "rb") as file:
            return read_box(file, stored.start, spec.dtype, spec.shape, (offset, shape))

    def sources(self, name: str) -> List[str]:
        return [name]

    def _weight_map(self) -> Optional[Dict[str, str]]:
        if (self.folder / INDEX).is_file():
            found = _json(self.folder / INDEX).get("weight_map")
            if not isinstance(found, dict) or any(Path(file).name != file for file in found.values()):
                raise Damaged(f"{self.folder / INDEX} has no weight_map of plain file names")
            return found
        if not (self.folder / SINGLE).is_file():
            others = [path.name for path in self.folder.glob("*.bin")]
            hint = f" ({others[0]} is a pickle: load and save it with transformers first)" if others else ""
            raise Damaged(f"{self.folder} has neither {SINGLE} nor {INDEX}{hint}")
        return None

    def _scan(self, name: str, index: Optional[Dict[str, str]]) -> None:
        path = self.folder / name
        if not path.is_file():
            raise Damaged(f"{path} is missing; {INDEX} names it")
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, _MAX_HEADER):
                raise Damaged(f"{path} is truncated or no safetensors file")
            try:
                header = json.loads(file.read(length))
                header.pop("__metadata__", None)
                for tensor, entry in header.items():
                    self._add(path, tensor, entry, 8 + length, size, index)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if isinstance(error, Damaged):
                    raise
                raise Damaged(f"{path} has a damaged header: {error!r}") from None

    def _add(self, path: Path, name: str, entry: Any, data: int, size: int, index: Optional[Dict[str, str]]) -> None:
        if index is not None and index.get(name, path.name) != path.name:
            self.duplicates.append(f"{name} in {path.name}")
            return
        if entry["dtype"] not in _DTYPES:
            raise Damaged(
                f"{path}: {name} has dtype {entry['dtype']}, which is not read (quantised checkpoints are not)"
            )
        spec = Spec(tuple(entry["shape"]), _DTYPES[entry["dtype"]])
        first, last = entry["data_offsets"]
        if last - first != spec.nbytes or data + last > size:
            raise Damaged(f"{path} is truncated: {name} ends at byte {data + last} of {size}")
        self.tensors[name] = spec
        self._stored[name] = _Stored(path.name, data + first)


class Writer:
    """All tensors of `plan`, in its order, into files of at most `shard_bytes` each (or one tensor)."""

    def __init__(self, folder: Path, plan: Dict[str, Spec], shard_bytes: int) -> None:
        self.folder, self.plan = folder, plan
        self._shards = _divide(plan, shard_bytes)
        self._waiting = list(plan)[::-1]
        self._number = 0  # of the shard being written

    def write(self, name: str, data: torch.Tensor) -> None:
        spec = self.plan[name]
        assert self._waiting.pop() == name and (tuple(data.shape), data.dtype) == (spec.shape, spec.dtype), name
        shard = self._shards[self._number]
        with open(self.folder / self._name(self._number), "ab") as file:
            if name == shard[0]:
                file.write(self._header(shard))
            file.write(memoryview(raw_bytes(data.contiguous())))
        self._number += name == shard[-1]

    def finish(self, config: Dict[str, Any]) -> None:
        """The index if there are several files, then config.json."""
        assert not self._waiting, f"{self._waiting[-1]} was not written"
        if len(self._shards) > 1:
            where = {name: self._name(number) for number, shard in enumerate(self._shards) for name in shard}
            index = {
                "metadata": {"total_size": sum(spec.nbytes for spec in self.plan.values())},
                "weight_map": dict(sorted(where.items())),
            }
            (self.folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
        (self.folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")

    def _header(self, shard: List[str]) -> bytes:
        header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
        position = 0
        for name in shard:
            spec = self.plan[name]
            offsets = [position, position + spec.nbytes]
            header[name] = {"dtype": _NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": offsets}
            position += spec.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # so that the data starts aligned
        return len(text).to_bytes(8, "little") + text

    def _name(self, number: int) -> str:
        return SINGLE if len(self._shards) == 1 else f"model-{number + 1:05d}-of-{len(self._shards):05d}.safetensors"


def _divide(plan: Dict[str, Spec], shard_bytes: int) -> List[List[str]]:
    shards: List[List[str]] = []
    room = 0
    for name, spec in plan.items():
        if not shards or spec.nbytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= spec.nbytes
    return shards


def parse_size(text: str) -> int:
    """'5GB' -> 5 * 10^9, as Hugging Face counts. Raises ValueError."""
    units = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    number = text.strip().upper().rstrip("BKMGT")
    unit = text.strip().upper()[len(number) :].strip()
    try:
        size = math.floor(float(number) * units[unit or "B"])
    except (ValueError, KeyError, OverflowError):
        raise ValueError(f"--shard-size {text!r} is not a size; write one like 500MB or 5GB") from None
    if size < 1:
        raise ValueError(f"--shard-size {text!r} is too small; write one like 500MB or 5GB")
    return size


def is_model_folder(folder: Path) -> bool:
    return (folder / CONFIG).is_file() or any(folder.glob("*.safetensors"))


def _json(path: Path) -> Dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(found, dict):
        raise Damaged(f"{path} holds no JSON object")
    return found
