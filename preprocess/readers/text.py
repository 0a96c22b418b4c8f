"""A plain text file is one document."""

from __future__ import annotations

from preprocess.document import Document


def parse(raw: bytes, file: str) -> Document:
    """Its id is its path. Raises ValueError, naming the file, when it is not UTF-8."""
    try:
        return Document(raw.decode("utf-8").removeprefix("\ufeff"), file, {}, file, 1)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 ({error}); convert it, as with iconv") from None
