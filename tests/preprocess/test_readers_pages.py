"""HTML pages and archives of crawls -> main text, with every record of an archive accounted for."""

from __future__ import annotations

import gzip
import io
import zlib

import brotli
import pytest
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from preprocess import readers
from preprocess.document import Document, Dropped
from preprocess.readers import page
from tests.preprocess.test_readers import COMPRESS, chunks, items, texts, write

SENTENCE = "The weather in Lisbon is mild in winter, and in summer a wind from the sea cools the streets. "
MAIN = SENTENCE * 4
TEXT = MAIN.strip()


def html(main=MAIN, head=""):
    navigation = "".join(f'<li><a href="/{name}">{name}</a></li>' for name in ("Home", "Login", "Sitemap"))
    comment = "<div id='comments'><p>First! " + "I disagree with all of this, as always. " * 4 + "</p></div>"
    return (
        f"<html><head><title>t</title>{head}</head><body><nav><ul>{navigation}</ul></nav>"
        f"<article><h1>Weather</h1><p>{main}</p></article>{comment}<footer>All rights reserved</footer></body></html>"
    )


@pytest.mark.parametrize(
    "name, compress", [("a.html", bytes), ("a.htm.gz", gzip.compress), ("a.html.xz", COMPRESS[".xz"])]
)
def test_a_page_is_its_main_text(tmp_path, name, compress):
    path = write(tmp_path / name, compress(html().encode()))
    (found,) = items(path)
    assert found.id == str(path) and TEXT in found.text
    assert not any(word in found.text for word in ("Login", "disagree", "rights", "<"))


@pytest.mark.parametrize("content", [b"", b"\0", b"<html><body><script>x()</script></body></html>"])
def test_a_page_without_text_is_dropped(tmp_path, content):
    assert items(write(tmp_path / "a.html", content)) == [Dropped("no main text")]


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    "encoding, name, sentence",
    [
        ("utf-8", "utf-8", "Zażółć gęślą jaźń, powiedziała stara kobieta do swojego wnuka wieczorem. "),
        ("cp1252", "iso-8859-1", "“Größe” ist ein Wort – und Übermut ein anderes, sagte der alte Müller. "),
        ("cp932", "Shift_JIS", "これは日本語の文章です。天気がとても良いです。"),
        ("gb18030", "gb2312", "这是一个关于天气的中文句子，今天非常晴朗，适合散步。"),
        ("koi8-r", "koi8-r", "Погода в Москве сегодня мягкая и солнечная, можно гулять весь день. "),
    ],
)
def test_the_encoding_is_what_the_page_or_the_server_says(encoding, name, sentence, declared):
    """Names of encodings mean what browsers make of them: iso-8859-1 has curly quotes."""
    content = html(sentence * 6, f"<meta charset='{name}'>" if declared else "").encode(encoding)
    assert sentence.strip() in page.main_text(content, "" if declared else name)


def test_a_wrong_declaration_is_passed_over():
    content = html(head='<meta charset="no-such-code">').encode()
    assert TEXT in page.main_text(content, "hex")
    assert TEXT in page.main_text(b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-16"?>' + content, "")


def test_a_page_that_would_take_minutes_is_dropped():
    """trafilatura's time grows with the square of the number of paragraphs."""
    many = html("</p><p>".join(["word"] * 60_000)).encode()
    assert page.main_text(many, "").reason == page.main_text(b"x" * (page.LARGEST + 1), "").reason == "page too large"
    assert isinstance(page.main_text(b"<div>" * 50_000 + html().encode(), ""), (str, Dropped)), "deep, but no crash"


def test_a_text_depends_on_its_page_alone():
    first, second = html().encode(), html(SENTENCE * 3 + "And one more.").encode()
    alone = page.main_text(second, "")
    for _ in range(4):
        page.main_text(first, "")
    assert page.main_text(second, "") == alone


# --- archives ----------------------------------------------------------------------------------------------------


def archive(*records, gzipped=False):
    """records: (type, block), or (type, HTTP header, body), which warcio writes."""
    out = io.BytesIO()
    writer = WARCWriter(out, gzip=gzipped)
    for number, (kind, *rest) in enumerate(records):
        known = {"WARC-Record-ID": f"<urn:uuid:{number}>", "WARC-Date": "2024-05-01T00:00:00Z"}
        if len(rest) == 1:
            fields = {"WARC-Type": kind, **known, "Content-Length": len(rest[0])}
            header = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            record = f"WARC/1.1\r\n{header}\r\n".encode() + rest[0] + b"\r\n\r\n"
            out.write(gzip.compress(record) if gzipped else record)
            continue
        status, *fields = rest[0].split("\n")
        http = StatusAndHeaders(status, [tuple(field.split(": ")) for field in fields], protocol="HTTP/1.1")
        address, body = f"https://example.org/{number}", io.BytesIO(rest[1])
        writer.write_record(
            writer.create_warc_record(address, kind, payload=body, http_headers=http, warc_headers_dict=known)
        )
    return out.getvalue()


PAGE = ("response", "200 OK\nContent-Type: Text/HTML; Charset=utf-8", html().encode())
RECORDS = (
    ("warcinfo", b"software: test\r\n"),
    ("request", "GET / HTTP/1.1\nHost: example.org", b""),
    PAGE,
    ("response", "200 OK\nContent-Type: image/png", b"\x89PNG"),
    ("response", "404 Not Found\nContent-Type: text/html", html().encode()),
    ("response", "200 OK\nContent-Type: text/html", b"<html></html>"),
    ("metadata", b"fetchTimeMs: 5\r\n"),
    PAGE,
)


@pytest.mark.parametrize("suffix", ["", *COMPRESS])
@pytest.mark.parametrize("records", [2, 4096])
def test_every_record_of_an_archive_is_a_document_or_a_counted_drop(tmp_path, monkeypatch, suffix, records):
    monkeypatch.setattr(readers, "BATCH_RECORDS", records)
    content = archive(*RECORDS, gzipped=suffix == ".gz")  # a member a record, as crawlers write
    path = write(tmp_path / f"a.warc{suffix}", content if suffix in ("", ".gz") else COMPRESS[suffix](content))
    found = items(path)
    reasons = [item.reason if isinstance(item, Dropped) else "" for item in found]
    other = "not a response with HTML"
    assert reasons == [other, other, "", other, other, "no main text", other, ""]
    known = {"url": "https://example.org/2", "time": "2024-05-01T00:00:00Z"}
    line = 3 if records == 4096 else 1
    assert found[2] == Document(found[7].text, "urn:uuid:2", known, str(path), line) and TEXT in found[2].text


def chunked(body):
    half = len(body) // 2
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:half], body[half:], b""))


def raw_deflate(body):
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


@pytest.mark.parametrize(
    "fields, body",
    [
        ("Transfer-Encoding: chunked", chunked(html().encode())),
        ("Content-Encoding: gzip", gzip.compress(html().encode())),
        ("Content-Encoding: br", brotli.compress(html().encode())),
        ("Content-Encoding: zstd", COMPRESS[".zst"](html().encode())),
        ("Content-Encoding: deflate", zlib.compress(html().encode())),
        ("Content-Encoding: deflate", raw_deflate(html().encode())),
        ("Content-Encoding: br, gzip", gzip.compress(brotli.compress(html().encode()))),
        ("Content-Encoding: br", html().encode()),
        ("Content-Encoding: gzip\nTransfer-Encoding: chunked", chunked(gzip.compress(html().encode()))),
        ("Content-Encoding: gzip\nTransfer-Encoding: chunked", html().encode()),  # already decoded by the crawler
    ],
)
def test_what_the_server_encoded_is_decoded(tmp_path, fields, body):
    path = write(tmp_path / "a.warc", archive(("response", f"200 OK\nContent-Type: text/html\n{fields}", body)))
    assert TEXT in texts(path)[0]


@pytest.mark.parametrize(
    "name, compress", [("gzip", gzip.compress), ("br", brotli.compress), ("zstd", COMPRESS[".zst"])]
)
def test_a_small_answer_that_becomes_huge_is_dropped(tmp_path, monkeypatch, name, compress):
    monkeypatch.setattr(page, "LARGEST", 100_000)
    fields = f"200 OK\nContent-Type: text/html\nContent-Encoding: {name}"
    (found,) = items(write(tmp_path / "a.warc", archive(("response", fields, compress(bytes(50_000_000))))))
    assert found == Dropped("page too large", "100001 bytes, at most 100000")


def test_broken_answers_do_not_end_the_run(tmp_path):
    broken = ("response", b"this is not HTTP"), ("response", b""), ("response", b"\xff\xfe\0")
    found = items(write(tmp_path / "a.warc", archive(*broken, PAGE)))
    reasons = ["answer could not be parsed", "not a response with HTML", "answer could not be parsed"]
    assert [item.reason for item in found[:3]] == reasons and TEXT in found[3].text


def test_blocks_that_are_not_wanted_are_not_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "LARGEST", 100_000)
    large = ("response", "200 OK\nContent-Type: text/html", html("x" * 200_000).encode())
    path = write(tmp_path / "a.warc", archive(("request", b"x" * 500_000), large, PAGE))
    assert sum(len(chunk.data) for chunk in chunks(path)) < 10_000
    assert [item.reason for item in items(path)[:2]] == ["not a response with HTML", "response too large"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_cut_or_damaged_archive_is_refused(tmp_path, suffix):
    content, compress = archive(PAGE, PAGE), COMPRESS.get(suffix, bytes)
    path = tmp_path / f"a.warc{suffix}"
    second = content.index(b"WARC/1.", 10)
    for size in (10, 200, second - 500, second + 5, second + 300, len(content) - 5):
        with pytest.raises(ValueError, match=f"a.warc{suffix}.* damaged"):
            items(write(path, compress(content[:size])))
    with pytest.raises(ValueError, match="after 1 records something else begins, b'rubbish"):
        items(write(path, compress(content[:second] + b"rubbish\r\n" + content[second:])))
    for wrong in (b"x", b"-1", b"99999999"):
        changed = content.replace(b"Content-Length: ", b"Content-Length: " + wrong, 1)
        with pytest.raises(ValueError, match="damaged"):
            items(write(path, compress(changed)))
