"""The .bin/.idx format: equal to megatron-core's writer, restored by its reader and ours, damage found on opening."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import List

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess import manifest, shards
from preprocess.shards import Shard, ShardWriter, checked, dtype_for

DOCUMENTS = [[5, 6, 7, 2], [2], [9] * 300 + [2], [65000 % 299, 0, 2]]


def write(stem: Path, documents: List[List[int]], vocab_size: int) -> None:
    lengths = np.asarray([len(d) for d in documents])
    with ShardWriter(stem, dtype_for(vocab_size)) as shard:
        shard.add(checked(np.asarray(sum(documents, []), np.int64), lengths, vocab_size), lengths)


def write_as_megatron_does(stem: Path, documents: List[List[int]], vocab_size: int) -> None:
    """The calls of Megatron-LM's tools/preprocess_data.py."""
    from megatron_ext.runtime import device

    device.install()
    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{stem}.bin", dtype=DType.optimal_dtype(vocab_size))
    for document in documents:
        builder.add_document(torch.IntTensor(document), [len(document)])
    builder.finalize(f"{stem}.idx")


@pytest.mark.parametrize("vocab_size", [300, 65499, 65500, 128256])
def test_bytes_are_those_of_megatron(tmp_path, vocab_size):
    """65499 and 65500 are the two sides of Megatron's boundary between uint16 and int32."""
    documents = [*DOCUMENTS, [vocab_size - 1, 2]]
    write(tmp_path / "ours", documents, vocab_size)
    write_as_megatron_does(tmp_path / "theirs", documents, vocab_size)
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()


def test_bytes_are_pinned(tmp_path):
    """Without megatron-core at hand: the hashes of what its builder wrote for the same documents (0.16.1)."""
    write(tmp_path / "a", DOCUMENTS, 300)
    write(tmp_path / "b", DOCUMENTS, 70000)
    found = {f"{n}{s}": sha(tmp_path / f"{n}{s}") for n in "ab" for s in (".bin", ".idx")}
    assert found == {
        "a.bin": "b86ef2f05641955c381a43d9354f150ad95d66ccbabeb2cc37d14512ff55154e",
        "a.idx": "31f0a3b1d5653799b1a2178b399bcd44d3dd5438567255089f4e7dbd7bb6508e",
        "b.bin": "09e763970173570fa48fe42f4b2d5391d27cc5e4b1e4dc1044a81f9090f38dcf",
        "b.idx": "f491ccb2658d25fd7aecf6ed83b4c1e09d3f6b3c2dd86458f85aa95b962a3cea",
    }


def test_megatron_reads_ours(tmp_path):
    write(tmp_path / "a", DOCUMENTS, 300)
    from megatron_ext.runtime import device

    device.install()
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    dataset = IndexedDataset(str(tmp_path / "a"))
    assert [dataset[i].tolist() for i in range(len(dataset))] == DOCUMENTS
    assert dataset.document_indices.tolist() == [0, 1, 2, 3, 4]


@settings(max_examples=50, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 65535), min_size=1, max_size=20), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30)),
    part=st.integers(1, 5),
    vocab_size=st.sampled_from([65536, 70000]),
)
def test_what_is_written_is_read_back(tmp_path_factory, documents, cuts, part, vocab_size):
    """For any documents, added in any portions, with offsets computed in any portions."""
    stem = tmp_path_factory.mktemp("shard") / "s"
    edges = sorted({0, len(documents), *(cut for cut in cuts if cut < len(documents))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "_PART", part)
        with ShardWriter(stem, dtype_for(vocab_size)) as shard:
            for low, high in zip(edges, edges[1:]):
                some = documents[low:high]
                shard.add(np.asarray(sum(some, []), np.int32), np.asarray([len(d) for d in some]))
    read = Shard(str(stem))
    assert [read[i].tolist() for i in range(len(read))] == documents
    assert read.boundaries.tolist() == list(range(len(documents) + 1))
    assert read.pointers.tolist() == [4 * sum(map(len, documents[:i])) for i in range(len(documents))]


@settings(max_examples=50, deadline=None)
@given(
    documents=st.lists(
        st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=5), min_size=1, max_size=4), min_size=1
    ),
    cut=st.integers(0, 10),
)
def test_documents_of_several_sequences_are_those_of_megatron(tmp_path_factory, documents, cut):
    """Sentences: our index is byte for byte that of megatron-core's builder, in whatever portions it is made."""
    from megatron_ext.runtime import device

    device.install()
    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    stem = tmp_path_factory.mktemp("shard") / "s"
    builder = IndexedDatasetBuilder(f"{stem}-theirs.bin", dtype=DType.optimal_dtype(300))
    with ShardWriter(stem, dtype_for(300)) as shard:
        for some in (documents[:cut], documents[cut:]):
            flat = [sequence for document in some for sequence in document]
            ids, lengths = np.asarray(sum(flat, []), np.uint16), np.asarray([len(one) for one in flat], np.int64)
            shard.add(ids, lengths, np.asarray([len(document) for document in some], np.int64))
            for document in some:
                builder.add_document(torch.IntTensor(sum(document, [])), [len(one) for one in document])
    builder.finalize(f"{stem}-theirs.idx")
    for suffix in (".bin", ".idx"):
        assert Path(f"{stem}{suffix}").read_bytes() == Path(f"{stem}-theirs{suffix}").read_bytes()
    assert [Shard(str(stem))[i].tolist() for i in range(len(documents))] == [
        sum(document, []) for document in documents
    ]


@pytest.mark.parametrize("ids, bad", [([1, 70000, 5], "70000"), ([1, 65000], "65000"), ([3, -1], "-1")])
def test_an_id_outside_the_vocabulary_stops_the_run(ids, bad):
    """D09: never wrapped into 16 bits."""
    with pytest.raises(ValueError, match=f"token id {bad} .*65000"):
        checked(np.asarray(ids), np.asarray([len(ids)]), 65000)


def test_memory_does_not_grow_with_documents(tmp_path):
    """D12: two million documents of one token; Megatron's builder needs hundreds of bytes for each, we at most 40."""
    code = f"""
import numpy as np
from benchmarks.measure import own_peak
from preprocess.shards import ShardWriter
one = np.ones(1000, np.uint16)
with ShardWriter(__import__("pathlib").Path({str(tmp_path / "s")!r}), one.dtype) as shard:
    shard.add(one, one)
    before = own_peak()
    for _ in range(1999):
        shard.add(one, one)
print(own_peak() - before)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 40 * 2_000_000
    assert len(Shard(str(tmp_path / "s"))) == 2_000_000


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda f: cut(f / "s.bin", -10), ["s.bin", "608 bytes", "618"]),
        (lambda f: cut(f / "s.idx", -8), ["s.idx", "114 bytes", "122"]),
        (lambda f: cut(f / "s.bin", 1), ["s.bin", "619 bytes", "618"]),
        (lambda f: cut(f / "s.idx", 1), ["s.idx", "123 bytes", "122"]),
        (lambda f: (f / "s.bin").unlink(), ["s.bin does not exist", "llm-preprocess"]),
        (lambda f: (f / "s.idx").unlink(), ["s.idx does not exist", "llm-preprocess"]),
        (lambda f: cut(f / "s.idx", -100), ["s.idx is not a Megatron index"]),
        (lambda f: (f / "s.idx").write_bytes(b"x" * 122), ["s.idx is not a Megatron index"]),
        (lambda f: poke(f / "s.idx", 9, 2), ["version 2"]),
        (lambda f: poke(f / "s.idx", 17, 5), ["dtype code 5"]),
        (lambda f: poke(f / "s.idx", 26, 4), ["122 bytes", "114"]),
        (lambda f: cut(f / "s.bin", -618), ["no token"]),
    ],
    ids=["short bin", "short idx", "long bin", "long idx", "no bin", "no idx", "no header", "foreign", "version",
         "dtype", "boundaries", "empty bin"],
)  # fmt: skip
def test_damage_is_found_on_opening(tmp_path, damage, said):
    """D28: megatron-core opens a short .bin and fails at the first document beyond."""
    write(tmp_path / "s", DOCUMENTS, 300)
    damage(tmp_path)
    with pytest.raises(ValueError) as error:
        Shard(str(tmp_path / "s"))
    assert all(part in str(error.value) for part in said), error.value


def test_documents_outlive_the_reader(tmp_path):
    """D29: with megatron-core the same is a segmentation fault."""
    write(tmp_path / "s", DOCUMENTS, 300)
    code = (
        "import gc; from preprocess.shards import Shard\n"
        f"tokens = Shard({str(tmp_path / 's')!r})[2]; gc.collect(); print(tokens.sum())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(9 * 300 + 2)


@pytest.mark.parametrize(
    "content, said",
    [(None, "not complete"), ("{", "damaged"), ("{}", "damaged"), ('{"format_version": 9}', "format 9"),
     ("[]", "damaged"), ('{"format_version": 3, "inputs": [], "colour": 1}', "damaged")],
)  # fmt: skip
def test_a_manifest_that_is_not_ours_is_refused(tmp_path, content, said):
    if content is not None:
        (tmp_path / "s.json").write_text(content)
    with pytest.raises(ValueError, match=said):
        manifest.read(str(tmp_path / "s"))


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cut(path: Path, change: int) -> None:
    """Shorten by -change bytes, or lengthen by change."""
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"\0" * change)


def poke(path: Path, position: int, value: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] = value
    path.write_bytes(content)
