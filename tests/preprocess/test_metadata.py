"""The table beside the shard: its columns and rows, written out."""

from __future__ import annotations

import json

import pyarrow.parquet as pq

from preprocess import metadata, readers
from preprocess.prepare import prepare

FULL = {
    "text": "one two",
    "id": "doc-1",
    "source": "a book",
    "licence": "CC-BY-4.0",
    "url": "https://example.org/1",
    "time": "2024-01-01",
    "language": "en",
    "title": "Ünicode",
    "scores": {"quality": 0.5},
}
OTHER = {"text": "three", "license": "MIT", "timestamp": 1700000000, "lang": "de", "source": {"site": "x"}, "url": None}
BARE = {"text": "four"}
BOTH = {"text": "five", "licence": "MIT", "license": "GPL", "language": ""}


def test_golden_table(tmp_path, make_data, monkeypatch):
    """Columns under either spelling, values that are no strings as JSON, the rest together; nothing is lost."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (FULL, OTHER, BARE, BOTH)))
    prepare(make_data(inputs=["in.jsonl"]))
    table = pq.read_table(tmp_path / "out.parquet")
    assert [f"{field.name}: {field.type}" for field in table.schema] == [
        "document: int64",
        "token_start: int64",
        "token_count: int64",
        "id: string",
        "source: string",
        "licence: string",
        "url: string",
        "time: string",
        "language: string",
        "parent: string",
        "scores: string",
        "file: string",
        "line: int64",
        "text_hash: string",
        "metadata: string",
    ]
    first, second, third, fourth = table.to_pylist()
    count = first["token_count"]
    assert first == {
        "document": 0,
        "token_start": 0,
        "token_count": count,
        "id": "doc-1",
        "source": "a book",
        "licence": "CC-BY-4.0",
        "url": "https://example.org/1",
        "time": "2024-01-01",
        "language": "en",
        "parent": None,
        "scores": '{"quality": 0.5}',
        "file": "in.jsonl",
        "line": 1,
        "text_hash": "0e8fa0ea5fd6fe4ce8eb1460b6a93ffe",
        "metadata": '{"title": "Ünicode"}',
    }
    assert (second["id"], second["document"], second["token_start"]) == (
        f"in.jsonl@{len(json.dumps(FULL)) + 1}",
        1,
        count,
    )
    assert [second[name] for name in ("licence", "time", "language")] == ["MIT", "1700000000", "de"]
    assert second["source"] == '{"site": "x"}' and json.loads(second["metadata"]) == {"url": None}
    assert [third[name] for name in ("source", "licence", "url", "time", "language", "metadata")] == [None] * 6
    assert (fourth["licence"], fourth["metadata"], fourth["language"]) == ("MIT", '{"license": "GPL"}', "")


def test_row_groups_are_bounded_by_size(tmp_path, make_data, monkeypatch):
    """A table of large metadata does not wait for 16384 rows."""
    monkeypatch.setattr(metadata, "_GROUP_BYTES", 3000)
    monkeypatch.setattr(readers, "BATCH_RECORDS", 1)
    prepare(make_data([{"text": "a", "note": "x" * 1000}] * 10))
    file = pq.ParquetFile(tmp_path / "out.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [3, 3, 3, 1]
