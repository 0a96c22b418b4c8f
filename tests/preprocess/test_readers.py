"""Files -> parts -> chunks -> documents: cuts, compression, line ends, encodings, and what each refusal says."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import subprocess
import sys

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess import readers
from preprocess.document import Document, Dropped
from preprocess.readers import Bad, json_file, jsonl
from preprocess.readers.stream import Stream

KEYS = readers.Keys("text", "id")
ONE, TWO = b'{"text":"one"}\n', b'{"text":"two"}\n'
COMPRESS = {
    ".gz": gzip.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


def chunks(*paths, part_bytes=1 << 26):
    inputs = readers.resolve([str(path) for path in paths])
    return [chunk for part in readers.split(inputs, part_bytes) for chunk in readers.chunks(part)]


def items(*paths, keys=KEYS, part_bytes=1 << 26):
    sent = pickle.loads(pickle.dumps(chunks(*paths, part_bytes=part_bytes)))
    return [item for chunk in sent for item in readers.parse(chunk, keys)]


def texts(*paths, **more):
    return [item.text for item in items(*paths, **more)]


def write(path, data):
    path.write_bytes(data)
    return path


# --- compression -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", COMPRESS)
def test_every_frame_is_read_and_a_cut_file_is_refused(tmp_path, suffix):
    """D15: two frames are two records; a file cut anywhere but between them never passes for whole."""
    path, compress = tmp_path / f"a.jsonl{suffix}", COMPRESS[suffix]
    frames = compress(ONE) + compress(TWO)
    assert texts(write(path, frames)) == ["one", "two"]
    for size in range(len(frames)):
        write(path, frames[:size])
        if size == len(compress(ONE)):
            assert texts(path) == ["one"]
            continue
        with pytest.raises(ValueError, match=rf"a.jsonl{suffix} is damaged or cut short"):
            texts(path)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_what_follows_a_frame_and_is_none_is_refused(tmp_path, suffix):
    """The standard library ignores it after .xz and .bz2: a damaged second frame would be lost silently."""
    second = bytearray(COMPRESS[suffix](TWO))
    second[0] ^= 0xFF
    path = write(tmp_path / f"a.jsonl{suffix}", COMPRESS[suffix](ONE) + bytes(second))
    with pytest.raises(ValueError, match="damaged"):
        texts(path)


@pytest.mark.parametrize("suffix", (".gz", ".xz"))
def test_zeros_after_a_frame_are_padding(tmp_path, suffix):
    padded = COMPRESS[suffix](ONE) + bytes(512) + COMPRESS[suffix](TWO) + bytes(70000)
    assert texts(write(tmp_path / f"a.jsonl{suffix}", padded)) == ["one", "two"]


def test_zstd_content_larger_than_any_buffer(tmp_path):
    """A frame without a content size, that expands 30,000 times, then a skippable frame and another record."""
    writer = zstandard.ZstdCompressor().compressobj()
    long = json.dumps({"text": "z" * 10_000_000}).encode() + b"\n"
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    data = writer.compress(long) + writer.flush() + skippable + COMPRESS[".zst"](TWO)
    assert list(map(len, texts(write(tmp_path / "a.jsonl.zst", data)))) == [10_000_000, 3]


def test_flipped_bits_are_refused(tmp_path):
    data = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(ONE * 50))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(ValueError, match="damaged"):
        texts(write(tmp_path / "a.jsonl.zst", data))


@pytest.mark.parametrize("suffix", ("", *COMPRESS))
def test_a_text_file_is_one_document_named_by_its_path(tmp_path, suffix):
    """An empty one is a document too, for a step to drop and count."""
    compress = COMPRESS.get(suffix, bytes)
    a, b = write(tmp_path / "a.txt", b""), write(tmp_path / f"b.txt{suffix}", compress(b"one\n\ntwo\n"))
    assert items(a, b) == [Document("", str(a), {}, str(a), 1), Document("one\n\ntwo\n", str(b), {}, str(b), 1)]


# --- cuts --------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    lines=st.lists(st.text("ab\r\u2028\u0085é ", max_size=12), max_size=12),
    part_bytes=st.integers(1, 60),
    batch=st.integers(1, 40),
    records=st.integers(1, 5),
    bom=st.booleans(),
    last_newline=st.booleans(),
)
def test_cuts_lose_nothing_and_repeat_nothing(tmp_path_factory, lines, part_bytes, batch, records, bom, last_newline):
    """Whatever the size of parts and chunks, plain or compressed: the same documents in order, lines counted right."""
    data = b"\n".join(json.dumps({"text": line}, ensure_ascii=False).encode() for line in lines)
    data = b"\xef\xbb\xbf" * bom + data + b"\n" * (last_newline and bool(lines))
    plain = write(tmp_path_factory.mktemp("cuts") / "a.jsonl", data)
    packed = write(plain.with_name("b.jsonl.gz"), gzip.compress(data))
    expected = lines or ([None] if bom else [])  # a file of a byte-order mark alone is a blank line
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BATCH_BYTES", batch)
        patch.setattr(readers, "BATCH_RECORDS", records)
        for path in (plain, packed):
            found = []
            for part in readers.split(readers.resolve([str(path)]), part_bytes):
                before = readers.place(str(path), part.start) - 1 if part.start else 0
                assert before == len(found)
                consumed = 0
                for chunk in readers.chunks(part):
                    got = list(readers.parse(chunk, KEYS))
                    assert [item.line for item in got if isinstance(item, Document)] in ([*range(1, len(got) + 1)], [])
                    assert readers.place(str(path), chunk.offset) == len(found) + 1 and len(got) <= records
                    assert consumed <= chunk.consumed <= part.end - part.start
                    consumed = chunk.consumed
                    found += got
            assert [getattr(item, "text", None) for item in found] == expected


def test_only_plain_local_lines_are_cut_into_parts(tmp_path):
    sizes = {"a.jsonl": 3, "b.ndjson": 3, "c.jsonl.gz": 1, "d.txt": 1, "e.json": 1}
    for name in sizes:
        write(tmp_path / name, (ONE * 5)[:60])
    inputs = readers.resolve([f"{tmp_path}/*"])
    parts = readers.split(inputs, 25)
    assert {name: sum(part.path.endswith(name) for part in parts) for name in sizes} == sizes
    assert [(part.start, part.end) for part in parts[:3]] == [(0, 25), (25, 50), (50, 60)]
    empty = readers.resolve([str(write(tmp_path / "z.jsonl", b""))])
    assert readers.split(empty, 25) == [readers.Part(f"{tmp_path}/z.jsonl", 0, 0)]


def test_workers_read_plain_files_themselves(tmp_path):
    plain = write(tmp_path / "a.jsonl", ONE * 3)
    packed = write(tmp_path / "b.jsonl.gz", gzip.compress(ONE * 3))
    assert [chunk.data for chunk in chunks(plain, packed)] == [None, ONE * 3]
    cut = chunks(plain)[0]
    write(plain, ONE)
    with pytest.raises(ValueError, match="became shorter"):
        list(readers.parse(cut, KEYS))


def test_a_line_larger_than_a_chunk(tmp_path):
    long = b'{"text":"' + b"x" * (5 << 20) + b'"}\n'
    path = write(tmp_path / "a.jsonl", ONE + long + TWO)
    for part_bytes in (1 << 20, 1 << 30):
        assert list(map(len, texts(path, part_bytes=part_bytes))) == [3, 5 << 20, 3]


def test_short_records_are_cut_by_number(tmp_path):
    path = write(tmp_path / "a.jsonl", ONE * 10_000)
    assert [len(list(readers.parse(chunk, KEYS))) for chunk in chunks(path)] == [4096, 4096, 1808]


def test_the_order_is_by_input_then_name_then_line(tmp_path):
    """D16: plain and compressed files and a table through one folder or glob."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pairs = [b'{"text":"%d"}\n{"text":"%d"}\n' % (2 * i, 2 * i + 1) for i in range(4)]
    write(tmp_path / "a.jsonl.gz", gzip.compress(pairs[0]))
    write(tmp_path / "b.jsonl.zst", COMPRESS[".zst"](pairs[1]))
    write(tmp_path / "c.jsonl", pairs[2])
    pq.write_table(pa.table({"text": ["6", "7"]}), tmp_path / "d.parquet")
    assert texts(tmp_path) == texts(f"{tmp_path}/*") == [*"01234567"]
    assert texts(f"{tmp_path}/c*", f"{tmp_path}/[abd].*") == [*"45012367"]


# --- lines of JSON -----------------------------------------------------------------------------------------------


def test_a_byte_order_mark_is_no_text(tmp_path):
    """D13: at the start it belongs to the file; inside a text it stays."""
    a = write(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + ONE + '{"text":"\ufefftwo"}\n'.encode())
    b = write(tmp_path / "b.txt", b"\xef\xbb\xbfthree \xef\xbb\xbf")
    assert texts(a, b) == ["one", "\ufefftwo", "three \ufeff"]


def test_only_newline_ends_a_line(tmp_path):
    """D14: str.splitlines would make many records of these two."""
    lines = '{"text":"a\u2028b\u2029"}\r\n{"text":"c\u0085d"}'
    assert texts(write(tmp_path / "a.jsonl", lines.encode())) == ["a\u2028b\u2029", "c\u0085d"]


def test_fields_of_a_record(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"text":"x","id":7,"n":{"a":1}}\n\n \r\n{"id":null,"text":""}\n')
    assert items(path) == [
        Document("x", "7", {"n": {"a": 1}}, str(path), 1),
        Dropped("blank line"),
        Dropped("blank line"),
        Document("", f"{path}@36", {}, str(path), 4),
    ]
    assert items(path, keys=readers.Keys("", "id"))[0].metadata == {"text": "x", "n": {"a": 1}}


@pytest.mark.parametrize(
    "line, said",
    [
        (b"{nonsense}", "not a line of JSON"),
        (b'{"text":"cut', "not a line of JSON"),
        (b'{"text":"a\nb"}', "not a line of JSON"),
        (b'{"text":"\xff"}', "not a line of JSON in UTF-8"),
        (b'{"text":"\xed\xa0\x80"}', "not a line of JSON in UTF-8"),
        (b'{"text":"\\ud800"}', "surrogate"),
        (b'{"text":"x","id":"\\uDC00"}', "surrogate"),
        (b'{"text":"x","\\ud83d":1}', "surrogate"),
        (b"[" * 100_000, "not a line of JSON"),
        (b'{"text":"x","n":' + b"9" * 5000 + b"}", "not a line of JSON"),
        (b'["text"]', "a JSON list, not an object"),
        (b'{"content":"x","title":"y"}', "no field 'text' (it has 'content', 'title'); set data.source.text_key"),
        (b"{}", "no field at all"),
        (b'{"text":null}', "NoneType, not a string"),
        (b'{"text":["One.","Two."]}', "list, not a string"),
    ],
)
def test_a_bad_record_says_why_and_the_next_is_read(tmp_path, line, said):
    """D03 (a) and D05 (a list of sentences) among them."""
    first, found, *rest = items(write(tmp_path / "a.jsonl", ONE + line.partition(b"\n")[0] + b"\n" + TWO))
    assert isinstance(found, Bad) and said in found.why and len(found.raw) <= 200
    assert [first.text, *(item.text for item in rest)] == ["one", "two"]
    json.dumps(found.raw, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "value",
    ["18446744073709551616", "-9223372036854775809", "9223372036854775808", "1e400", "NaN", "[-Infinity]", "-0", "1E5",
     '"\\ud83d\\ude00"', '{"a":1,"a":[{"b":123456789012345678901234567890}]}', "9007199254740993", "0.1", "1e300"],
)  # fmt: skip
def test_values_are_those_that_json_reads(value):
    """orjson alone would make large integers inexact, and refuse NaN and what is too large for a float."""
    line = f'{{"text":"x","n":{value}}}'
    assert repr(jsonl.load(line.encode())) == repr(json.loads(line))


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    ),
    st.booleans(),
)
def test_any_record_is_read_as_json_reads_it(value, ascii_only):
    line = json.dumps({"text": "x", "n": value}, ensure_ascii=ascii_only)
    assert repr(jsonl.load(line.encode())) == repr(json.loads(line))


def test_text_that_is_not_utf8_is_bad(tmp_path):
    (found,) = items(write(tmp_path / "a.txt", "caf\xe9".encode("latin-1")))
    assert isinstance(found, Bad) and "not UTF-8" in found.why and "iconv" in found.why


# --- .json -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content, expected",
    [
        (ONE + TWO, ["one", "two"]),
        (b"\xef\xbb\xbf" + ONE, ["one"]),
        (b'[{"text":"one"},{"text":"two"}]', ["one", "two"]),
        (b'\xef\xbb\xbf[\n {"text": "one"},\n {"text": "two"}\n]\n', ["one", "two"]),
        (b'{\n "text": "one\\n\\u2028"\n}', ["one\n\u2028"]),
        (b" [ ] ", []),
        (b"\n[\n" + ONE + b"," + TWO + b"]", ["one", "two"]),
    ],
)
def test_a_json_file_is_lines_or_one_array(tmp_path, content, expected):
    for path in (write(tmp_path / "a.json", content), write(tmp_path / "b.json.xz", lzma.compress(content))):
        assert texts(path) == expected


@pytest.mark.parametrize(
    "end, why",
    [
        (b"3]", "element 1 ('3' stands where a comma should)"),
        (b", 3", "element 2 (the array has no end)"),
        (b', {"text": "tw', "element 1 (Unterminated string"),
        (b"] 5", "element 1 ('5' stands behind the array)"),
        (b"," + b"[" * 100_000, "element 1 (nested too deeply)"),
        (b",]", "element 1 (Expecting value"),
    ],
)
def test_a_broken_array_is_refused_where_it_breaks(tmp_path, end, why):
    """What follows cannot be told apart, so that a count of bad records would hide how much was lost."""
    path = write(tmp_path / "a.json", b"[\n" + ONE + end)
    with pytest.raises(ValueError) as caught:
        items(path)
    assert f"a.json: the array is broken at its {why}" in str(caught.value) and ".jsonl" in str(caught.value)


def test_an_element_that_is_no_text_is_bad_alone(tmp_path):
    path = write(
        tmp_path / "a.json", b'[{"text":"\xff"},' + ONE + rb',{"text":"\ud800"},{"text":"' + b"\xc3\xa9" + b'"}]'
    )
    first, one, half, last = items(path)
    assert "not a line of JSON in UTF-8" in first.why and "surrogate" in half.why
    assert (one.text, last.text) == ("one", "\xe9")


@given(st.lists(st.recursive(st.text() | st.integers() | st.booleans(), st.lists), max_size=20), st.integers(1, 40))
def test_an_array_is_read_element_by_element_as_json_reads_it(tmp_path_factory, values, read):
    path = tmp_path_factory.mktemp("array") / "a.json"
    path.write_text(json.dumps(values, ensure_ascii=False, indent=read % 3 or None), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_file, "_READ", read)
        with Stream(str(path)) as stream:
            assert list(json_file._elements(json_file._Text(stream), str(path))) == values


def test_an_array_is_not_held_in_memory(tmp_path):
    """60 MB of elements, of which no more than some are held at a time."""
    path = tmp_path / "a.json"
    with open(path, "w") as out:
        for number in range(300):
            out.write(("," if number else "[") + json.dumps({"text": "x" * 200_000}) + "\n")
        out.write("]")
    code = f"""
from benchmarks.measure import own_peak
from preprocess import readers
from preprocess.readers import json_file
from preprocess.readers.chunk import Limits, Part
before = own_peak()
part = Part({str(path)!r}, 0, {path.stat().st_size})
count = sum(chunk.size for chunk in json_file.chunks(part, Limits(1 << 20, 4096)))
print(count, own_peak() - before)
"""
    count, grown = map(
        int, subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split()
    )
    assert count == 300 and grown < 15_000_000


def test_elements_of_an_array_are_named_by_their_number(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "BATCH_RECORDS", 2)
    path = write(tmp_path / "a.json", b'[{"text":"a"},{"text":"b","id":"x"},{"text":"c","n":18446744073709551616},5]')
    assert [item.id for item in items(path)[:3]] == [f"{path}#0", "x", f"{path}#2"]
    assert items(path)[2].metadata == {"n": 1 << 64} and "not an object" in items(path)[3].why


def test_a_cut_json_file_is_refused(tmp_path):
    path = write(tmp_path / "a.json.gz", gzip.compress(b"[\n" + ONE + b"]")[:-3])
    with pytest.raises(ValueError, match="cut short"):
        items(path)
