"""Named tensors on disk, read and compared box by box; what every format offers and every conversion takes.

A box is a pair (offset, shape) within a tensor. Tensors are row-major.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Optional, Protocol, Tuple

import torch

Shape = Tuple[int, ...]
Box = Tuple[Shape, Shape]  # offset, shape

BLOCK_BYTES = 64 << 20  # what is read of a tensor at once where nothing else asks for more


class Damaged(ValueError):
    """What is on disk is not a whole checkpoint; the message says which file or tensor, and what is wrong with it."""


@dataclass(frozen=True)
class Spec:
    shape: Shape
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Source(Protocol):
    """Tensors that can be read by boxes: a checkpoint on disk, or a view of one under another format's names."""

    tensors: Dict[str, Spec]

    def read(self, name: str, offset: Shape, shape: Shape) -> torch.Tensor:
        """One box, contiguous, in memory of its own."""

    def sources(self, name: str) -> List[str]:
        """The names on disk that the tensor is made from."""


def read_box(file: BinaryIO, start: int, dtype: torch.dtype, whole: Shape, box: Box) -> torch.Tensor:
    """A box of a tensor of shape `whole` that lies at byte `start` of the file. Reads little more than the box.

    By offset rather than by memory map: a private map counts in full against a login node's `ulimit -d`.
    Raises Damaged when the file ends early.
    """
    offset, shape = box
    if not shape:
        offset, shape, whole = (0,), (1,), (1,)
    axis = next((i for i, size in enumerate(shape) if size != 1), len(shape) - 1)  # all before it are one index each
    first = sum(offset[i] * math.prod(whole[i + 1 :]) for i in range(axis + 1))
    span = torch.empty((shape[axis], *whole[axis + 1 :]), dtype=dtype)
    file.seek(start + first * dtype.itemsize)
    fill(file, span)
    for i in range(1, span.dim()):
        span = span.narrow(i, offset[axis + i], shape[axis + i])
    return span.contiguous().view(box[1])


def fill(file: BinaryIO, tensor: torch.Tensor) -> None:
    """Read the tensor's bytes from where the file stands."""
    view = memoryview(raw_bytes(tensor))
    if (got := file.readinto(view)) != len(view):  # type: ignore[attr-defined]
        raise Damaged(f"{file.name} ends {len(view) - got} bytes too early")


def raw_bytes(tensor: torch.Tensor) -> Any:
    """The bytes of a contiguous tensor as a numpy array that shares its memory."""
    assert tensor.is_contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy()


def part(tensor: torch.Tensor, offset: Iterable[int], shape: Iterable[int]) -> torch.Tensor:
    """A box of a tensor in memory, as a view."""
    return tensor[tuple(slice(start, start + size) for start, size in zip(offset, shape))]


def overlap(one: Box, other: Box) -> Optional[Box]:
    start = tuple(map(max, one[0], other[0]))
    end = tuple(min(a + m, b + n) for a, m, b, n in zip(one[0], one[1], other[0], other[1]))
    return None if any(a >= b for a, b in zip(start, end)) else (start, tuple(b - a for a, b in zip(start, end)))


def blocks(spec: Spec) -> Iterator[Box]:
    """A tensor as boxes of about BLOCK_BYTES, in row-major order, so that their bytes in turn are the tensor's."""
    if not spec.shape or spec.nbytes <= BLOCK_BYTES:
        yield (0,) * len(spec.shape), spec.shape
        return
    inner = Spec(spec.shape[1:], spec.dtype)
    if inner.nbytes > BLOCK_BYTES:
        for index in range(spec.shape[0]):
            for offset, shape in blocks(inner):
                yield (index, *offset), (1, *shape)
        return
    rows = max(1, BLOCK_BYTES // max(inner.nbytes, 1))
    for first in range(0, spec.shape[0], rows):
        yield (first, *[0] * len(inner.shape)), (min(rows, spec.shape[0] - first), *inner.shape)


def fault_in_tiling(boxes: List[Box], shape: Shape) -> Optional[str]:
    """None when the boxes cover a tensor of this shape exactly once, else where they do not.

    A sweep along the first axis: between two neighbouring boundaries the boxes there must tile the other axes.
    """
    if not shape:
        return None if len(boxes) == 1 else f"{len(boxes)} copies of one number"
    if math.prod(shape) == 0:
        return None
    starts = sorted(boxes, key=lambda box: box[0][0])
    marks = sorted({0, shape[0], *(o[0] for o, _ in boxes), *(o[0] + s[0] for o, s in boxes)})
    if marks[0] < 0 or marks[-1] > shape[0]:
        return f"a box reaches to {marks[-1]}, beyond {shape[0]}"
    active: List[Box] = []
    position = 0
    for low, high in zip(marks, marks[1:]):
        active = [box for box in active if box[0][0] + box[1][0] > low]
        while position < len(starts) and starts[position][0][0] <= low:
            active.append(starts[position])
            position += 1
        if not active:
            return f"nothing at [{low}:{high}]"
        if len(shape) == 1 and len(active) > 1:
            return f"{len(active)} values at [{low}:{high}]"
        if len(active) > 1 or active[0][1][1:] != shape[1:]:
            fault = fault_in_tiling([(o[1:], s[1:]) for o, s in active], shape[1:])
            if fault is not None:
                return f"[{low}:{high}], {fault}"
    return None
