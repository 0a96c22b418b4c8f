"""Boxes: read from a file as a slice would be, and a tiling is found faulty exactly when it is."""

from __future__ import annotations

import io
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints_tools.formats.tensors import (
    BLOCK_BYTES,
    Damaged,
    Spec,
    blocks,
    fault_in_tiling,
    overlap,
    part,
    raw_bytes,
    read_box,
)


@st.composite
def boxes_in_tensors(draw):
    whole = draw(st.lists(st.integers(1, 5), max_size=4).map(tuple))
    offset = tuple(draw(st.integers(0, size - 1)) for size in whole)
    return whole, (offset, tuple(draw(st.integers(1, size - start)) for size, start in zip(whole, offset)))


@settings(max_examples=200, deadline=None)
@given(boxes_in_tensors(), st.sampled_from([torch.bfloat16, torch.float32, torch.int8]))
def test_a_box_is_read_as_the_slice_of_the_tensor(sample, dtype):
    whole, (offset, shape) = sample
    tensor = torch.arange(math.prod(whole)).reshape(whole).to(dtype)
    file = io.BytesIO(b"before" + raw_bytes(tensor).tobytes() + b"after")
    file.name = "memory"
    found = read_box(file, 6, dtype, whole, (offset, shape))
    assert torch.equal(found, part(tensor, offset, shape)) and found.is_contiguous()


def test_a_file_that_ends_early_is_damaged():
    file = io.BytesIO(b"12345")
    file.name = "short.distcp"
    with pytest.raises(Damaged, match="short.distcp ends 3 bytes too early"):
        read_box(file, 0, torch.float32, (2,), ((0,), (2,)))


@st.composite
def tilings(draw):
    """A tensor cut by random guillotine cuts, boxes in random order."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple))
    boxes = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        offset, size = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, size[axis]))
        for start, length in ((0, at), (at, size[axis] - at)):
            if length:
                moved = (*offset[:axis], offset[axis] + start, *offset[axis + 1 :])
                boxes.append((moved, (*size[:axis], length, *size[axis + 1 :])))
    return shape, draw(st.permutations(boxes))


@settings(max_examples=200, deadline=None)
@given(tilings(), st.data())
def test_exact_tilings_pass_and_a_hole_or_a_double_is_found(tiling, data):
    shape, boxes = tiling
    assert fault_in_tiling(boxes, shape) is None
    which = data.draw(st.integers(0, len(boxes) - 1))
    assert fault_in_tiling(boxes[:which] + boxes[which + 1 :], shape) is not None
    assert fault_in_tiling([*boxes, boxes[which]], shape) is not None


def test_a_hole_that_an_overlap_makes_up_for_in_volume_is_found():
    assert fault_in_tiling([((0, 0), (2, 2)), ((0, 1), (2, 2))], (2, 4)) == "[0:2], 2 values at [1:2]"
    assert fault_in_tiling([((0,), (2,)), ((1,), (2,))], (4,)) == "2 values at [1:2]"
    assert "beyond 4" in fault_in_tiling([((0,), (5,))], (4,))
    assert fault_in_tiling([], ()) == "0 copies of one number"


@pytest.mark.parametrize("shape", [(), (3,), (5, 7), (300, 1024, 128), (3, BLOCK_BYTES // 2, 3)], ids=str)
def test_blocks_tile_in_row_major_order(shape):
    spec = Spec(shape, torch.bfloat16)
    found = list(blocks(spec))
    assert fault_in_tiling(found, shape) is None
    assert [offset for offset, _ in found] == sorted(offset for offset, _ in found)
    assert all(math.prod(size) * 2 <= BLOCK_BYTES for _, size in found)


def test_overlap():
    assert overlap(((0, 0), (2, 3)), ((1, 2), (4, 4))) == ((1, 2), (1, 1))
    assert overlap(((0,), (2,)), ((2,), (2,))) is None
