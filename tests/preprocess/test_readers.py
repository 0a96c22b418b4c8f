"""Files -> records -> documents: compression, line ends, encodings, and what each refusal says."""

from __future__ import annotations

import gzip
import json

import pytest
import zstandard

from preprocess import readers
from preprocess.document import Document, Dropped

KEYS = readers.Keys("text", "id")
ONE, TWO = b'{"text":"one"}\n', b'{"text":"two"}\n'


def documents(*paths):
    return [readers.parse(record, KEYS) for batch in readers.read(list(map(str, paths))) for record in batch.records]


def texts(*paths):
    return [document.text for document in documents(*paths)]


def compress_zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize("suffix, compress", [(".gz", gzip.compress), (".zst", compress_zst)])
def test_every_frame_is_read_and_a_cut_file_is_refused(tmp_path, suffix, compress):
    """D15: two frames are two records; a file cut anywhere but between them never passes for whole."""
    path = tmp_path / f"a.jsonl{suffix}"
    frames = compress(ONE) + compress(TWO)
    path.write_bytes(frames)
    assert texts(path) == ["one", "two"]
    for size in range(len(frames)):
        path.write_bytes(frames[:size])
        if size == len(compress(ONE)):
            assert texts(path) == ["one"]
            continue
        with pytest.raises(ValueError, match=rf"a.jsonl{suffix} is damaged or cut short"):
            texts(path)


@pytest.mark.parametrize("suffix, compress", [(".gz", gzip.compress), (".zst", compress_zst)])
def test_a_text_file_is_one_document(tmp_path, suffix, compress):
    """Compressed or not; an empty one is a document too, for a step to drop and count; a cut one is refused."""
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / f"b.txt{suffix}").write_bytes(compress(b"one\n\ntwo\n"))
    a, b = tmp_path / "a.txt", tmp_path / f"b.txt{suffix}"
    assert documents(a, b) == [Document("", str(a), {}, str(a), 1), Document("one\n\ntwo\n", str(b), {}, str(b), 1)]
    b.write_bytes(b.read_bytes()[:-3])
    with pytest.raises(ValueError, match="damaged or cut short"):
        documents(b)


def test_zstd_content_larger_than_any_buffer(tmp_path):
    """A frame without a content size, that expands 30,000 times, then a skippable frame and another record."""
    writer = zstandard.ZstdCompressor().compressobj()
    long = json.dumps({"text": "z" * 10_000_000}).encode() + b"\n"
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(writer.compress(long) + writer.flush() + skippable + compress_zst(TWO))
    assert list(map(len, texts(path))) == [10_000_000, 3]


def test_flipped_bits_are_refused(tmp_path):
    data = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(ONE * 50))
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "a.jsonl.zst").write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        texts(tmp_path / "a.jsonl.zst")


def test_a_byte_order_mark_is_no_text(tmp_path):
    """D13: at the start it belongs to the file; inside a text it stays."""
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + ONE + '{"text":"\ufefftwo"}\n'.encode())
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfthree \xef\xbb\xbf")
    assert texts(tmp_path / "a.jsonl", tmp_path / "b.txt") == ["one", "\ufefftwo", "three \ufeff"]


def test_only_newline_ends_a_line(tmp_path):
    """D14: str.splitlines would make five records of these two."""
    (tmp_path / "a.jsonl").write_text('{"text":"a\u2028b\u2029"}\r\n{"text":"c\u0085d"}', encoding="utf-8", newline="")
    assert texts(tmp_path / "a.jsonl") == ["a\u2028b\u2029", "c\u0085d"]


def test_order_is_by_input_then_name_then_line(tmp_path):
    """D16: plain and compressed files through one glob."""
    pairs = [b'{"text":"%d"}\n{"text":"%d"}\n' % (2 * i, 2 * i + 1) for i in range(4)]
    (tmp_path / "c.jsonl").write_bytes(pairs[2])
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(pairs[0]))
    (tmp_path / "b.jsonl.zst").write_bytes(compress_zst(pairs[1]))
    (tmp_path / "z").mkdir()
    (tmp_path / "z/first.jsonl").write_bytes(pairs[3])
    files = readers.resolve([f"{tmp_path}/z/first.jsonl", f"{tmp_path}/*.jsonl*"])
    assert texts(*files) == ["6", "7", "0", "1", "2", "3", "4", "5"]
    assert len(readers.resolve([f"{tmp_path}/**/*.jsonl*"])) == 4


def test_a_file_whose_name_looks_like_a_glob(tmp_path):
    (tmp_path / "[a].jsonl").write_bytes(ONE)
    assert readers.resolve([f"{tmp_path}/[a].jsonl"]) == [f"{tmp_path}/[a].jsonl"]


def test_fields_of_a_record(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text":"x","id":7,"n":{"a":1}}\n\n{"id":null,"text":""}\n', encoding="utf-8")
    assert documents(path) == [
        Document("x", "7", {"n": {"a": 1}}, str(path), 1),
        Dropped("blank line"),
        Document("", f"{path}:3", {}, str(path), 3),
    ]


def test_batches_are_bounded_and_count_what_was_consumed(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "BATCH_BYTES", 40)
    monkeypatch.setattr(readers, "BATCH_RECORDS", 4)
    (tmp_path / "a.jsonl").write_bytes(ONE * 5)
    (tmp_path / "b.jsonl").write_bytes(b"1\n" * 6)
    batches = list(readers.read([f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"]))
    assert [len(batch.records) for batch in batches] == [3, 4, 4]
    assert batches[-1].consumed == 5 * len(ONE) + 12
    assert [record.line for batch in batches for record in batch.records] == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "line, said",
    [
        (b"{nonsense}", "not a line of JSON"),
        (b'{"text":"cut', "not a line of JSON"),
        (b'{"text":"\xff"}', "not a line of JSON in UTF-8"),
        (b'{"text":"\\ud800"}', "surrogate"),
        (b'{"text":"x","id":"\\uDC00"}', "surrogate"),
        (b"[" * 100_000, "not a line of JSON"),
        (b'["text"]', "a JSON list, not an object"),
        (b'{"content":"x","title":"y"}', "no field 'text' (it has 'content', 'title'); set data.source.text_key"),
        (b"{}", "no field at all"),
        (b'{"text":null}', "NoneType, not a string"),
        (b'{"text":["One.","Two."]}', "list, not a string"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, said):
    """D03 (a) and D05 (a list of sentences) among them."""
    (tmp_path / "a.jsonl").write_bytes(ONE + TWO + line + b"\n" + ONE)
    with pytest.raises(ValueError) as error:
        texts(tmp_path / "a.jsonl")
    assert str(error.value).startswith(f"{tmp_path}/a.jsonl:3: ") and said in str(error.value)


def test_a_whole_surrogate_pair_is_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text":"\\ud83d\\ude00"}')
    assert texts(tmp_path / "a.jsonl") == ["\U0001f600"]


def test_text_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes("caf\xe9".encode("latin-1"))
    with pytest.raises(ValueError, match="a.txt: not UTF-8"):
        texts(tmp_path / "a.txt")


@pytest.mark.parametrize(
    "inputs, said",
    [
        ([], "data.source.inputs is empty"),
        (["gone.jsonl"], "no file matches"),
        (["gone*.jsonl"], "no file matches"),
        (["folder"], "is a folder"),
        (["data.txt.bak"], "data.txt.bak; its name must end in one of .jsonl, .txt"),
        (["a.gz"], "cannot tell the format of"),
        (["a.jsonl", "*.jsonl"], "a.jsonl more than once"),
    ],
)
def test_inputs_that_cannot_be_meant(tmp_path, monkeypatch, inputs, said):
    """D03 (b) among them."""
    for name in ("a.jsonl", "data.txt.bak", "a.gz"):
        (tmp_path / name).write_bytes(ONE)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said):
        readers.resolve(inputs)
