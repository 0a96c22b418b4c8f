"""Where the bytes of a tensor lie in what torch.save wrote, so that parts of it can be read without the rest.

torch.save makes an uncompressed zip archive: data.pkl describes the tensor, data/<key> is its storage.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import zipfile
from typing import Any, BinaryIO, NamedTuple, Optional, cast

from checkpoints_tools.formats.tensors import Damaged, Shape, Spec


class Window(io.RawIOBase):
    """Bytes [start, start + length) of a file as a file."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        self.file, self.start, self.length, self.position = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.length}[whence]
        return self.position

    def readinto(self, buffer: Any) -> int:
        self.file.seek(self.start + self.position)
        count = min(len(buffer), max(self.length - self.position, 0))
        got = self.file.readinto(memoryview(buffer)[:count])  # type: ignore[attr-defined]
        self.position += got
        return got


def data_start(window: Window, spec: Spec) -> Optional[int]:
    """The byte of the archive where the tensor's values start, or None when they are not in row-major order.

    Raises Damaged when the archive is not one of a tensor of this spec.
    """
    try:
        with zipfile.ZipFile(cast(Any, window)) as archive:
            names = {name.split("/", 1)[1]: name for name in archive.namelist()}
            described = _TensorUnpickler(io.BytesIO(archive.read(names["data.pkl"]))).load()
            entry = archive.getinfo(names[f"data/{described.key}"])
            order = archive.read(names["byteorder"]) if "byteorder" in names else b"little"
    except (zipfile.BadZipFile, KeyError, IndexError, AttributeError, pickle.UnpicklingError, EOFError) as error:
        raise Damaged(str(error)) from None
    if described.shape != spec.shape or order != b"little" or entry.compress_type != zipfile.ZIP_STORED:
        raise Damaged(f"it holds a {order.decode()}-endian {list(described.shape)}, not {list(spec.shape)}")
    row_major = [math.prod(spec.shape[i + 1 :]) for i in range(len(spec.shape))]
    if any(size > 1 and a != b for size, a, b in zip(spec.shape, described.stride, row_major)):
        return None
    window.seek(entry.header_offset + 26)  # the local header's name and padding have lengths of their own
    lengths = window.read(4)
    assert lengths is not None
    name_length, padding = int.from_bytes(lengths[:2], "little"), int.from_bytes(lengths[2:], "little")
    return entry.header_offset + 30 + name_length + padding + described.start * spec.dtype.itemsize


class _Described(NamedTuple):
    key: str
    start: int  # element of the storage
    shape: Shape
    stride: Shape


class _TensorUnpickler(pickle.Unpickler):
    """data.pkl of one saved tensor -> _Described."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda key, start, shape, stride, *rest: _Described(key, start, tuple(shape), tuple(stride))
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module == "torch" and name.endswith("Storage"):
            return name
        raise pickle.UnpicklingError(f"not a plain tensor but {module}.{name}")

    def persistent_load(self, reference: Any) -> str:
        return reference[2]  # ("storage", type, key, device, number of elements)
