"""Parquet, Arrow, CSV and TSV: rows in order within bounds, values as plain Python, and what each refusal says."""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess import readers
from preprocess.document import Document, Dropped
from preprocess.readers import Bad
from tests.preprocess.test_readers import KEYS, chunks, items, texts, write


def write_stream(path, table, **options):
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, **options)
    return path


def write_file(path, table, **options):
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, **options)
    return path


def write_parquet(path, table, **options):
    pq.write_table(table, path, row_group_size=options.get("max_chunksize"))
    return path


TABLES = {"a.parquet": write_parquet, "b.arrow": write_stream, "c.arrow": write_file}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("batch_bytes", [100, 1 << 20])
@pytest.mark.parametrize("group", [7, 1000])
def test_rows_come_in_order_and_in_bounded_chunks(tmp_path, monkeypatch, name, batch_bytes, group):
    monkeypatch.setattr(readers, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(readers, "BATCH_RECORDS", 9)
    table = pa.table({"text": [f"text number {i}" for i in range(100)]})
    path = TABLES[name](tmp_path / name, table, max_chunksize=group)
    cut = chunks(path)
    assert [item.text for chunk in cut for item in readers.parse(chunk, KEYS)] == table["text"].to_pylist()
    assert [item.id for chunk in cut for item in readers.parse(chunk, KEYS)] == [f"{path}#{i}" for i in range(100)]
    assert [chunk.offset for chunk in cut] == [sum(chunk.size for chunk in cut[:i]) for i in range(len(cut))]
    assert all(chunk.size <= 4 * 9 for chunk in cut) and cut[-1].consumed <= path.stat().st_size
    assert [chunk.consumed for chunk in cut] == sorted(chunk.consumed for chunk in cut)


@pytest.mark.parametrize("name", TABLES)
def test_values_of_every_kind_become_what_json_can_hold(tmp_path, name):
    time = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    ns = pa.timestamp("ns")
    table = pa.table(
        {
            "text": pa.array(["x"], pa.large_string()),
            "id": [7],
            "nested": [{"list": [{"day": datetime.date(2024, 2, 29)}], "bytes": b"\xff"}],
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
            "ns": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
            "zone": pa.array([time], pa.timestamp("us", "Europe/Berlin")),
            "price": [decimal.Decimal("1.10")],
            "for": pa.array([datetime.timedelta(seconds=90)], pa.duration("s")),
            "label": pa.array(["cat"]).dictionary_encode(),
            "none": pa.array([None], pa.timestamp("ms")),
            "ns inside": pa.array([[{"t": 1_234_567, "u": None}]], pa.list_(pa.struct([("t", ns), ("u", ns)]))),
            "ns in a map": pa.array([[("k", 1_234_567)]], pa.map_(pa.string(), ns)),
            "ns for": pa.array([1_234_567], pa.duration("ns")),
            "ns of the day": pa.array([1_234_567], pa.time64("ns")),
        }
    )
    (found,) = items(TABLES[name](tmp_path / name, table))
    assert (found.text, found.id) == ("x", "7")
    assert json.loads(json.dumps(found.metadata)) == {
        "nested": {"list": [{"day": "2024-02-29"}], "bytes": "/w=="},
        "map": [["k", 1]],
        "ns": "2023-11-14 22:13:20.123456789",
        "zone": "2024-02-29 10:30:00.000000Z",
        "price": "1.10",
        "for": 90,
        "label": "cat",
        "none": None,
        "ns inside": [{"t": "1970-01-01T00:00:00.001234", "u": None}],
        "ns in a map": [["k", "1970-01-01T00:00:00.001234"]],
        "ns for": 0.001234,
        "ns of the day": "00:00:00.001234",
    }


@pytest.mark.parametrize("name", TABLES)
def test_a_missing_or_null_text_is_told(tmp_path, name):
    (found,) = items(TABLES[name](tmp_path / name, pa.table({"content": ["x"], "n": [1]})))
    assert found == Bad("no field 'text' (it has 'content', 'n'); set data.source.text_key", found.raw)
    assert json.loads(found.raw) == {"content": "x", "n": 1}
    _, found = items(TABLES[name](tmp_path / name, pa.table({"text": ["x", None]})))
    assert isinstance(found, Bad) and "NoneType, not a string" in found.why


@pytest.mark.parametrize("name", TABLES)
def test_a_cut_table_is_refused_wherever_it_is_cut(tmp_path, name):
    table = pa.table({"text": [f"text {i}" for i in range(20)]})
    path = TABLES[name](tmp_path / name, table, max_chunksize=5)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 8), len(whole) - 1]:
        write(path, whole[:size])
        with pytest.raises(ValueError, match=name):
            texts(path)


@pytest.mark.parametrize("name", TABLES)
def test_an_empty_table_has_no_documents(tmp_path, name):
    assert items(TABLES[name](tmp_path / name, pa.table({"text": pa.array([], pa.string())}))) == []


# --- CSV and TSV -------------------------------------------------------------------------------------------------

FIELD = st.text('ab",;\t\r\n\u2028\u0085é猫 ', max_size=8)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.tuples(FIELD, FIELD), max_size=8),
    end=st.sampled_from(["\n", "\r\n"]),
    kind=st.sampled_from(["csv", "tsv"]),
    batch=st.integers(1, 40),
    bom=st.booleans(),
)
def test_what_the_standard_library_writes_is_read_back(tmp_path_factory, rows, end, kind, batch, bom):
    """Quoted newlines, quotes and separators, wherever chunks end."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter="," if kind == "csv" else "\t", lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("text", "täg"), *rows])
    path = tmp_path_factory.mktemp("csv") / f"a.{kind}.gz"
    write(path, gzip.compress(b"\xef\xbb\xbf" * bom + out.getvalue().encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BATCH_BYTES", batch)
        found = items(path)
    assert [(item.text, item.metadata["täg"]) for item in found] == rows
    assert [item.id for item in found] == [f"{path}#{i}" for i in range(len(rows))]


def test_each_bad_row_of_a_csv_is_told(tmp_path):
    content = (
        b'id,text,n\r\n1,"a ""b""\nc",x\r\n\r\n2,too,many,fields\n3,few\n4,"x"y,z\n5,caf\xe9,z\n,5" disk,z\n6,"open,z\n'
    )
    found = items(write(tmp_path / "a.csv", content))
    assert found[0] == Document('a "b"\nc', "1", {"n": "x"}, f"{tmp_path}/a.csv", 1)
    assert found[1] == Dropped("blank line")
    said = ("4 fields, the header has 3", "2 fields, the header has 3", "not a row of CSV", "not UTF-8")
    assert [item.why.startswith(why) for item, why in zip(found[2:6], said)] == [True] * 4
    assert (found[6].text, found[6].id, found[6].line) == ('5" disk', f"{tmp_path}/a.csv#6", 7)
    assert "unexpected end of data" in found[7].why and len(found) == 8
    (found,) = items(write(tmp_path / "b.csv", b'id,text\n1,"open\n2,b\n3,c\n'))
    assert "it takes in 3 lines" in found.why


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "no header line .*no line at all"),
        (b"\n1,2\n", "no header line .*blank"),
        (b"text,n,text\n1,2,3\n", "2 columns 'text'"),
        (b'"text\n1,2\n', "no header line"),
    ],
)
def test_a_csv_without_a_usable_header_is_refused(tmp_path, content, said):
    with pytest.raises(ValueError, match=f"a.csv has {said}"):
        items(write(tmp_path / "a.csv", content))


def test_a_csv_without_the_text_column_is_told(tmp_path):
    (found,) = items(write(tmp_path / "a.csv", b"content,title\nx,y\n"))
    assert found == Bad("no field 'text' (it has 'content', 'title'); set data.source.text_key", "x,y\n")


def test_a_long_field_is_read_and_an_endless_one_is_told(tmp_path, monkeypatch):
    from preprocess.readers import delimited

    long = "x" * 300_000  # above the standard library's limit
    assert texts(write(tmp_path / "a.csv", f'text\n"{long}"\n'.encode())) == [long]
    monkeypatch.setattr(delimited, "_LARGEST_FIELD", 1000)
    first, *_ = items(write(tmp_path / "a.csv", b'text\n"never closed' + b"\nx" * 5000))
    assert "field larger than field limit (1000)" in first.why


def test_text_that_is_stored_as_bytes_is_text_and_bytes_that_are_none_are_refused(tmp_path):
    """Older tables have no type for text; base64 of it would be trained on."""
    table = pa.table({"text": pa.array(["caf\u00e9".encode(), b"\xff\xfe"], pa.binary())})
    pq.write_table(table, tmp_path / "a.parquet")
    (part,) = readers.split(readers.resolve([str(tmp_path / "a.parquet")]), 1 << 20)
    found = [item for chunk in readers.chunks(part) for item in readers.parse(chunk, readers.Keys("text", "id"))]
    assert found[0].text == "caf\u00e9" and "is bytes, not a string" in found[1].why
