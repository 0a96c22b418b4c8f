"""An HTTP response as a crawler stored it -> status, content type and body, with what was done to the body undone.

Crawlers may have undone it already and left the header as it was (Common Crawl did before 2018): a body that is not
what its header says is taken as it is. warcio takes the response apart; the encodings are undone here because its way
to brotli fails with brotli 1.2.
"""

from __future__ import annotations

import io
import zlib
from typing import Any, Callable, Dict, List, Tuple

_GZIP_OR_ZLIB, _DEFLATE = 32 + zlib.MAX_WBITS, -zlib.MAX_WBITS


def take_apart(header: bytes, block: bytes, most: int) -> Tuple[str, str, bytes]:
    """Of a WARC record. At most `most` bytes of the body and one more."""
    from warcio.archiveiterator import ArchiveIterator
    from warcio.bufferedreaders import ChunkedDataReader

    record = next(iter(ArchiveIterator(io.BytesIO(header + block))))
    answer = record.http_headers
    if answer is None:  # of another protocol: dns: for one
        return "", record.rec_headers.get_header("Content-Type", ""), b""
    is_chunked = answer.get_header("Transfer-Encoding", "").strip().lower() == "chunked"
    body = _all(ChunkedDataReader(record.raw_stream) if is_chunked else record.raw_stream)
    for encoding in reversed(answer.get_header("Content-Encoding", "").lower().split(",")):
        body = _undone(body, encoding.strip(), most + 1)
    return answer.get_statuscode(), answer.get_header("Content-Type", ""), body[: most + 1]


def _all(stream: Any) -> bytes:
    found: List[bytes] = []
    while data := stream.read(1 << 20):  # a piece at a time, whatever is asked for
        found.append(data)
    return b"".join(found)


def _undone(body: bytes, encoding: str, most: int) -> bytes:
    for decoder in _decoders().get(encoding, ()):
        try:
            return decoder(body, most)
        except Exception:  # each library has its own
            continue
    return body


def _decoders() -> Dict[str, Tuple[Callable[[bytes, int], bytes], ...]]:
    """By their names in HTTP (RFC 9110, 2022); "deflate" is sent in two ways."""
    import brotli
    import zstandard

    def inflate(bits: int) -> Callable[[bytes, int], bytes]:
        return lambda body, most: zlib.decompressobj(bits).decompress(body, most)

    gzip = (inflate(_GZIP_OR_ZLIB),)
    return {
        "gzip": gzip,
        "x-gzip": gzip,
        "deflate": (*gzip, inflate(_DEFLATE)),
        "br": (lambda body, most: brotli.Decompressor().process(body, output_buffer_limit=most),),
        "zstd": (lambda body, most: zstandard.ZstdDecompressor().stream_reader(body).read(most),),
    }
