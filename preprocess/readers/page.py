"""An HTML page -> its main text, without navigation, comments and boilerplate, by trafilatura (Barbaresi, ACL 2021).

Set to favour precision, as the makers of FineWeb (2024) did. What it would remember from page to page (its own
deduplication) is off: a text depends on its page alone.
"""

from __future__ import annotations

import codecs
import logging
import re
from typing import Union

from preprocess.document import Dropped

LARGEST = 8 << 20  # bytes of HTML; a parsed page takes some twenty times as much memory
_MOST_TAGS = 100_000  # the time for a page grows faster than they do: some 4 s here
_CHARSET = re.compile(rb"<(?:meta|\?xml)[^>]{0,300}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_MEANT = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
}  # what pages declare: what browsers read (WHATWG, Encoding Standard)
_HEAD = 4096  # bytes in which a page names its encoding


def main_text(html: bytes, charset: str) -> Union[str, Dropped]:
    """`charset` is what the server said, or empty."""
    import trafilatura

    if len(html) > LARGEST:
        return Dropped("page too large", f"{len(html)} bytes, at most {LARGEST}")
    if (tags := html.count(b"<")) > _MOST_TAGS:
        return Dropped("page too large", f"{tags} tags, at most {_MOST_TAGS}")
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # it logs what we count
    try:
        text = trafilatura.extract(
            _decode(html, charset), favor_precision=True, include_comments=False, deduplicate=False, with_metadata=False
        )
    except Exception as error:  # of one page in a crawl of millions; it is counted
        return Dropped("page could not be parsed", f"{type(error).__name__}: {error}")
    return text if text else Dropped("no main text")


def _decode(html: bytes, charset: str) -> Union[str, bytes]:
    """As UTF-8, else as what is declared, else left to guess: many pages declare what they are not."""
    declared = _CHARSET.search(html[:_HEAD])
    for name in ("utf-8-sig", charset, declared.group(1).decode("ascii") if declared else ""):
        try:
            known = codecs.lookup(name).name
            return html.decode(_MEANT.get(known, known))
        except (LookupError, UnicodeDecodeError, ValueError):
            continue
    return html
