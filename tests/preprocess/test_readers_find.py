"""What the inputs name -> files: globs, folders, folders of datasets, remote addresses, and what is refused."""

from __future__ import annotations

import gzip
import importlib
import json
import os

import fsspec
import pyarrow as pa
import pytest

from preprocess import readers
from tests.preprocess.test_readers import ONE, TWO, chunks, items, texts, write


def names(folder, *inputs):
    return [os.path.relpath(one.path, folder) for one in readers.resolve([str(one) for one in inputs])]


def test_a_folder_gives_its_data_by_name_and_nothing_else(tmp_path):
    for name in ("b/2.jsonl", "b/1.csv", "a.txt", "c.PARQUET", "README.md", "b/state.json", "LICENSE.txt", "_SUCCESS",
                 ".cache/x.jsonl", "b/.hidden", "b/dataset_info.json", "b/COPYING"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, b"{}")
    assert names(tmp_path, tmp_path) == ["a.txt", "b/1.csv", "b/2.jsonl", "c.PARQUET"]
    assert names(tmp_path, f"{tmp_path}/b") == ["b/1.csv", "b/2.jsonl"]
    assert names(tmp_path, f"{tmp_path}/LICENSE.txt") == ["LICENSE.txt"], "what is named itself is meant"


def test_a_glob_takes_files_and_recurses(tmp_path):
    (tmp_path / "z.jsonl").mkdir()
    write(tmp_path / "z.jsonl/a.jsonl", ONE), write(tmp_path / "b.jsonl", ONE)
    assert names(tmp_path, f"{tmp_path}/*.jsonl") == ["b.jsonl"]
    assert names(tmp_path, f"{tmp_path}/**/*.jsonl") == ["b.jsonl", "z.jsonl/a.jsonl"]


def test_a_file_whose_name_looks_like_a_glob(tmp_path):
    path = write(tmp_path / "[a].jsonl", ONE)
    assert names(tmp_path, path, f"file://{write(tmp_path / 'b.jsonl', ONE)}") == ["[a].jsonl", "b.jsonl"]


@pytest.mark.parametrize(
    "inputs, said",
    [
        ([], "data.source.inputs is empty"),
        (["gone.jsonl"], "no file matches"),
        (["gone*.jsonl"], "no file matches"),
        (["empty"], "no file matches 'empty'"),
        (["data.txt.bak"], r"the format of data.txt.bak; names must end in one of .jsonl, .ndjson"),
        (["folder"], "the format of folder/data.txt.bak"),
        (["a.gz"], "cannot tell the format of a.gz"),
        (["t.parquet.gz"], "cannot tell the format of t.parquet.gz"),
        (["a.jsonl", "*.jsonl"], "a.jsonl more than once"),
        (["a.jsonl", "./a.jsonl"], "a.jsonl more than once"),
        (["a.jsonl", "link"], "a.jsonl, link/b.jsonl more than once"),
        (["pipe.txt"], "pipe.txt is not a file"),
        (["nosuch://bucket/a.jsonl"], "nosuch://bucket/a.jsonl: .*Protocol not known"),
    ],
)
def test_inputs_that_cannot_be_meant(tmp_path, monkeypatch, inputs, said):
    """D03 (b) among them."""
    for folder in ("folder", "empty", "link"):
        (tmp_path / folder).mkdir()
    for name in ("a.jsonl", "data.txt.bak", "a.gz", "t.parquet.gz", "folder/data.txt.bak", "folder/a.jsonl"):
        write(tmp_path / name, ONE)
    (tmp_path / "link/b.jsonl").symlink_to(tmp_path / "a.jsonl")
    os.mkfifo(tmp_path / "pipe.txt")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said):
        readers.resolve(inputs)


def test_the_stamp_changes_with_the_content(tmp_path):
    path = write(tmp_path / "a.jsonl", ONE)
    os.utime(path, ns=(1, 1))
    (before,) = readers.resolve([str(path)])
    write(path, TWO)
    (after,) = readers.resolve([str(path)])
    assert before.bytes == after.bytes == len(ONE) and before.stamp != after.stamp


# --- folders of Hugging Face datasets ----------------------------------------------------------------------------


def save(folder, shards):
    """As datasets' save_to_disk lays it out: one Arrow stream a shard, listed in state.json."""
    folder.mkdir(parents=True)
    files = [f"data-{i:05}-of-{len(shards):05}.arrow" for i in range(len(shards))]
    for name, rows in zip(files, shards):
        table = pa.table({"text": rows})
        with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in files]}))
    (folder / "dataset_info.json").write_text("{}")


def test_a_saved_dataset_is_what_its_state_lists(tmp_path):
    save(tmp_path / "data", [["a", "b", "c"], ["d"]])
    write(tmp_path / "data/cache-12345.arrow", b"a result of map, that may lie there too")
    assert texts(tmp_path / "data") == ["a", "b", "c", "d"]
    os.remove(tmp_path / "data/data-00001-of-00002.arrow")
    with pytest.raises(ValueError, match="data-00001-of-00002.arrow is missing, though .*state.json lists it"):
        texts(tmp_path / "data")


def test_of_several_splits_one_is_named(tmp_path):
    """The test split never gets into training data by naming the folder above."""
    save(tmp_path / "train", [["a"]]), save(tmp_path / "test", [["b"]])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ValueError, match="splits train, test, .* name the wanted, as .*/train"):
        texts(tmp_path)
    assert texts(tmp_path / "train") == ["a"]


# --- remote ------------------------------------------------------------------------------------------------------


@pytest.fixture
def bucket():
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pipe("/bucket/b.jsonl", TWO + ONE)
    system.pipe("/bucket/a.jsonl.gz", gzip.compress(ONE))
    system.pipe("/bucket/deep/c.txt", b"three")
    system.pipe("/bucket/README.md", b"#")
    yield system
    system.store.clear()


@pytest.mark.parametrize(
    "address, expected",
    [
        ("memory://bucket", ["one", "two", "one", "three"]),
        ("memory://bucket/", ["one", "two", "one", "three"]),
        ("memory://bucket/*.jsonl*", ["one", "two", "one"]),
        ("memory://bucket/**/*.txt", ["three"]),
        ("memory://bucket/b.jsonl", ["two", "one"]),
    ],
)
def test_remote_files_are_read_like_local_ones(bucket, address, expected):
    assert texts(address) == expected
    assert all(item.file.startswith("memory://") and item.id.startswith(item.file) for item in items(address))


def test_remote_tables_are_read(bucket, tmp_path):
    import pyarrow.parquet as pq

    save(tmp_path / "data", [["a", "b", "c"]])
    pq.write_table(pa.table({"text": ["p", "q"]}), tmp_path / "t.parquet")
    bucket.put(str(tmp_path / "t.parquet"), "/bucket/t.parquet")
    bucket.put(str(tmp_path / "data/data-00000-of-00001.arrow"), "/bucket/t.arrow")
    both = "memory://bucket/t.arrow", "memory://bucket/t.parquet"
    assert texts(*both) == ["a", "b", "c", "p", "q"]
    assert all(chunk.data for chunk in chunks(*both)), "what is fetched once is not fetched again by workers"


def test_the_stamp_of_a_remote_file_changes_with_the_content(bucket):
    before = readers.resolve(["memory://bucket/b.jsonl"])[0]
    bucket.pipe("/bucket/b.jsonl", ONE + TWO)
    after = readers.resolve(["memory://bucket/b.jsonl"])[0]
    assert before.bytes == after.bytes == 2 * len(ONE) and before.stamp != after.stamp


def test_a_missing_remote_file_or_a_cut_one_is_named(bucket):
    with pytest.raises(ValueError, match="no file matches 'memory://bucket/gone.jsonl'"):
        readers.resolve(["memory://bucket/gone.jsonl"])
    bucket.pipe("/bucket/a.jsonl.gz", gzip.compress(ONE)[:-2])
    with pytest.raises(ValueError, match="memory://.*a.jsonl.gz is damaged or cut short"):
        texts("memory://bucket/a.jsonl.gz")


def test_a_missing_plug_in_is_named(monkeypatch):
    registry = importlib.import_module("fsspec.registry")
    monkeypatch.setitem(registry.known_implementations, "s3", {"class": "nosuch_s3fs.S3", "err": "Install s3fs"})
    monkeypatch.setattr(registry, "_registry", {k: v for k, v in registry._registry.items() if k != "s3"})
    with pytest.raises(ValueError, match=r"s3://b/a.jsonl: s3:// needs a plug-in .* pip install nosuch_s3fs"):
        readers.resolve(["s3://b/a.jsonl"])


def test_a_remote_file_of_unknown_length_is_refused(bucket, monkeypatch):
    """It would pass for an empty one."""
    monkeypatch.setattr(type(bucket), "info", lambda self, name: {"name": name, "size": None, "type": "file"})
    with pytest.raises(ValueError, match="memory://bucket/b.jsonl: its server does not tell how long it is"):
        readers.resolve(["memory://bucket/b.jsonl"])
