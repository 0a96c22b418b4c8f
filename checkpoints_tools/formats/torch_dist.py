"""megatron-core's `torch_dist` checkpoint format, read and written as a stream without ranks or process group.

metadata.json   {"sharded_backend": "torch_dist", ...}; written last, so its presence says the rest is whole
common.pt       what all ranks share: step, consumed samples, layout of the random generators
.metadata       torch's index: tensor -> boxes -> (file, offset, length); object -> (file, offset, length)
__<rank>_0.distcp   boxes and objects one after another, each as torch.save writes it
run.yaml        the frozen configuration, ours
"""

from __future__ import annotations

import io
import json
import os
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Tuple, cast

import torch

from checkpoints_tools.formats.tensors import Box, Damaged, Shape, Spec, fault_in_tiling, overlap, part, read_box
from checkpoints_tools.formats.torch_save import Window, data_start
from megatron_ext.config import load as config
from megatron_ext.config.schema import Run

OPTIMIZER = "optimizer."
_DESCRIPTION = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


class Chunk(NamedTuple):
    offset: Shape
    shape: Shape
    file: str
    start: int  # byte
    length: int  # bytes, as torch.save wrote it


class Reader:
    """A complete checkpoint folder. Opening checks the index, the size of every file and that boxes tile every tensor.

    Raises Damaged. Content is read only by `read` and `read_object`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: Dict[str, Spec] = {}
        self.objects: Dict[str, Chunk] = {}
        self._chunks: Dict[str, List[Chunk]] = {}
        self._by_row: Tuple[str, Dict[int, List[Chunk]]] = ("", {})
        _check_description(folder)
        self.common = _common(folder)
        self.run = _run(folder)
        self._index(_metadata(folder))
        self._check()

    def read(self, name: str, offset: Shape, shape: Shape) -> torch.Tensor:
        wanted, spec = (offset, shape), self.tensors[name]
        parts = [(chunk, common) for chunk in self._near(name, wanted) if (common := overlap(chunk[:2], wanted))]
        if len(parts) == 1:
            return self._read_chunk(name, parts[0][0], wanted)
        out = torch.empty(shape, dtype=spec.dtype)
        for chunk, common in parts:
            where = tuple(a - b for a, b in zip(common[0], offset))
            part(out, where, common[1]).copy_(self._read_chunk(name, chunk, common))
        return out

    def sources(self, name: str) -> List[str]:
        return [name]

    def read_object(self, name: str) -> bytes:
        """As it lies on disk: torch.save's bytes."""
        entry = self.objects[name]
        with open(self.folder / entry.file, "rb") as file:
            file.seek(entry.start)
            return file.read(entry.length)

    def _near(self, name: str, wanted: Box) -> List[Chunk]:
        """The chunks that may hold a part of the box; found by its first row, since layers are read one by one."""
        if not wanted[1] or wanted[1][0] != 1:
            return self._chunks[name]
        if self._by_row[0] != name:
            rows: Dict[int, List[Chunk]] = defaultdict(list)
            for chunk in self._chunks[name]:
                for row in range(chunk.offset[0], chunk.offset[0] + chunk.shape[0]):
                    rows[row].append(chunk)
            self._by_row = (name, rows)
        return self._by_row[1][wanted[0][0]]

    def _read_chunk(self, name: str, chunk: Chunk, wanted: Box) -> torch.Tensor:
        """`wanted` lies within the chunk; both in the coordinates of the whole tensor."""
        spec = self.tensors[name]
        inner = tuple(a - b for a, b in zip(wanted[0], chunk.offset))
        with open(self.folder / chunk.file, "rb") as file:
            window = Window(file, chunk.start, chunk.length)
            try:
                start = data_start(window, Spec(chunk.shape, spec.dtype))
            except Damaged as error:
                raise Damaged(f"{file.name}: {name} at {list(chunk.offset)} cannot be read: {error}") from None
            if start is not None:
                return read_box(file, chunk.start + start, spec.dtype, chunk.shape, (inner, wanted[1]))
            window.seek(0)
            whole = torch.load(cast(Any, window), weights_only=True)  # strided otherwise than row-major
            return part(whole, inner, wanted[1]).contiguous()

    def _index(self, metadata: Any) -> None:
        for index, stored in metadata.storage_data.items():
            if getattr(stored, "transform_descriptors", None):
                raise Damaged(
                    f"{self.folder}: {index.fqn} is compressed or encrypted by an extension of torch; save it plain"
                )
            entry = metadata.state_dict_metadata[index.fqn]
            place = (stored.relative_path, stored.offset, stored.length)
            if not hasattr(entry, "chunks"):
                self.objects[index.fqn] = Chunk((), (), *place)
                continue
            shapes = {tuple(chunk.offsets): tuple(chunk.sizes) for chunk in entry.chunks}
            offset = tuple(index.offset if index.offset is not None else [0] * len(entry.size))
            self._chunks.setdefault(index.fqn, []).append(Chunk(offset, shapes[offset], *place))
        for name, entry in metadata.state_dict_metadata.items():
            if hasattr(entry, "chunks"):
                self.tensors[name] = Spec(tuple(entry.size), entry.properties.dtype)
            elif name not in self.objects:
                raise Damaged(f"{self.folder}: the index lists {name}, but not where it lies")

    def _check(self) -> None:
        needed: Dict[str, int] = {}
        for entry in [*self.objects.values(), *(chunk for chunks in self._chunks.values() for chunk in chunks)]:
            needed[entry.file] = max(needed.get(entry.file, 0), entry.start + entry.length)
        for name, size in needed.items():
            path = self.folder / name
            if not path.is_file():
                raise Damaged(f"{path} is missing")
            if path.stat().st_size < size:
                raise Damaged(f"{path} is truncated: {path.stat().st_size} of {size} bytes")
        for name, spec in self.tensors.items():
            if fault := fault_in_tiling([chunk[:2] for chunk in self._chunks.get(name, [])], spec.shape):
                raise Damaged(f"{self.folder}: {name} {list(spec.shape)} is not whole: {fault}")


class Writer:
    """Boxes and objects into per-rank files of a folder, then the index; nothing counts until `finish` returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._specs: Dict[str, Spec] = {}
        self._chunks: Dict[str, List[Chunk]] = {}
        self._objects: Dict[str, Chunk] = {}

    def write(self, name: str, spec: Spec, offset: Shape, data: torch.Tensor, rank: int) -> None:
        """A box of the tensor `name`, whose whole is `spec`, into the file of `rank`."""
        assert data.dtype == spec.dtype and self._specs.setdefault(name, spec) == spec, name
        if data.untyped_storage().nbytes() != data.nbytes or not data.is_contiguous():
            data = data.clone(memory_format=torch.contiguous_format)  # torch.save writes whole storages
        with open(self._path(rank), "ab") as file:
            start = file.seek(0, os.SEEK_END)
            torch.save(data, file)
            place = (os.path.basename(file.name), start, file.tell() - start)
        self._chunks.setdefault(name, []).append(Chunk(offset, tuple(data.shape), *place))

    def write_object(self, name: str, content: bytes, rank: int) -> None:
        with open(self._path(rank), "ab") as file:
            start = file.seek(0, os.SEEK_END)
            file.write(content)
            self._objects[name] = Chunk((), (), os.path.basename(file.name), start, len(content))

    def finish(self, common: Dict[str, Any], run: Run) -> None:
        torch.save(common, self.folder / "common.pt")
        config.freeze(run, self.folder / "run.yaml")
        with open(self.folder / ".metadata", "wb") as file:
            pickle.dump(self._metadata(), file)
        (self.folder / "metadata.json").write_text(json.dumps(_DESCRIPTION))

    def _path(self, rank: int) -> Path:
        # The file is opened anew for each box: a large layout has more files than a process may hold open.
        return self.folder / f"__{rank}_0.distcp"

    def _metadata(self) -> Any:
        from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
        from torch.distributed.checkpoint.metadata import (
            BytesStorageMetadata,
            ChunkStorageMetadata,
            Metadata,
            MetadataIndex,
            StorageMeta,
            TensorProperties,
            TensorStorageMetadata,
        )

        entries: Dict[str, Any] = {name: BytesStorageMetadata() for name in self._objects}
        places = {MetadataIndex(name): _StorageInfo(*entry[2:]) for name, entry in self._objects.items()}
        for name, chunks in self._chunks.items():
            spec = self._specs[name]
            fault = fault_in_tiling([chunk[:2] for chunk in chunks], spec.shape)
            assert fault is None, f"{name}: {fault}"
            boxes = [ChunkStorageMetadata(torch.Size(chunk.offset), torch.Size(chunk.shape)) for chunk in chunks]
            entries[name] = TensorStorageMetadata(TensorProperties(dtype=spec.dtype), torch.Size(spec.shape), boxes)
            for number, chunk in enumerate(chunks):
                places[MetadataIndex(name, chunk.offset, number)] = _StorageInfo(*chunk[2:])
        return Metadata(entries, storage_data=places, storage_meta=StorageMeta(), version=CURRENT_DCP_VERSION)


def is_checkpoint(folder: Path) -> bool:
    """Whether the folder is one checkpoint of this format, whole or not (rather than a folder of several)."""
    return any((folder / name).exists() for name in ("metadata.json", ".metadata", "common.pt", "__0_0.distcp"))


def empty_object() -> bytes:
    """The content of the `_extra_state` objects that megatron-core's layers demand on loading: nothing."""
    buffer = io.BytesIO()
    torch.save([None], buffer)
    return buffer.getvalue()


def _check_description(folder: Path) -> None:
    path = folder / "metadata.json"
    if not path.is_file():
        raise Damaged(f"{path} is missing: this checkpoint was never finished")
    try:
        backend = json.loads(path.read_text()).get("sharded_backend")
    except (json.JSONDecodeError, AttributeError):
        raise Damaged(f"{path} is not readable as JSON") from None
    if backend != "torch_dist":
        raise ValueError(f"{folder} is in format {backend!r}; only 'torch_dist' is read")


def _common(folder: Path) -> Dict[str, Any]:
    try:
        return torch.load(folder / "common.pt", weights_only=True)
    except FileNotFoundError:
        raise Damaged(f"{folder / 'common.pt'} is missing") from None
    except pickle.UnpicklingError:
        raise ValueError(f"{folder / 'common.pt'} holds Python objects: it was not written by megatron_ext") from None
    except (RuntimeError, EOFError) as error:
        raise Damaged(f"{folder / 'common.pt'} is damaged: {error}") from None


def _run(folder: Path) -> Run:
    try:
        return config.read(folder / "run.yaml")
    except config.ConfigError as error:
        raise Damaged(f"{error} (in checkpoint {folder})") from None


def _metadata(folder: Path) -> Any:
    try:
        with open(folder / ".metadata", "rb") as file:
            return _IndexUnpickler(file).load()
    except FileNotFoundError:
        raise Damaged(f"{folder / '.metadata'} is missing") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, KeyError, IndexError) as error:
        raise Damaged(f"{folder / '.metadata'} is damaged: {error}") from None


class _IndexUnpickler(pickle.Unpickler):
    """Classes of torch's checkpoint index and nothing else: a checkpoint from elsewhere must not run code."""

    def find_class(self, module: str, name: str) -> Any:
        found = (
            super().find_class(module, name) if module.split(".")[0] in ("torch", "pathlib", "collections") else None
        )
        is_index_class = module.startswith("torch.distributed.checkpoint.") and isinstance(found, type)
        is_value = isinstance(found, (torch.dtype, torch.layout)) or found is torch.Size
        if is_index_class or is_value or (module, name) == ("torch.serialization", "_get_layout"):
            return found
        if module.startswith("pathlib") or (module, name) == ("collections", "OrderedDict"):
            return found
        raise pickle.UnpicklingError(f"it wants to call {module}.{name}")
