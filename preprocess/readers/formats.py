"""The format of a file, from its name: an ending of FORMATS, and then perhaps one of COMPRESSED."""

from __future__ import annotations

import importlib
import os
from typing import Any, Dict

FORMATS: Dict[str, str] = {  # ending: module with `chunks` and `parse`, imported when such a file is read
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json_file",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "delimited",
    ".tsv": "delimited",
    ".txt": "whole",
    ".html": "whole",
    ".htm": "whole",
    ".warc": "warc",
}
COMPRESSED = (".gz", ".zst", ".xz", ".bz2")
SPLIT = (".jsonl", ".ndjson")  # lines that need nothing of what stands before them
_WITHIN = (".parquet", ".arrow")  # have their own compression, and are read from their end


def is_remote(path: str) -> bool:
    return "://" in path


def compression(path: str) -> str:
    """Its ending, or ''."""
    last = os.path.splitext(_name(path))[1]
    return last if last in COMPRESSED else ""


def is_plain(path: str) -> bool:
    """Any of its bytes can be had without those before."""
    return not is_remote(path) and not compression(path)


def ending(path: str) -> str:
    """'.jsonl' of a/b.jsonl.zst, '' of what is not known."""
    stem, last = os.path.splitext(_name(path))
    compressed = last in COMPRESSED
    last = os.path.splitext(stem)[1] if compressed else last
    return last if last in FORMATS and not (compressed and last in _WITHIN) else ""


def module(path: str) -> Any:
    return importlib.import_module(f"preprocess.readers.{FORMATS[ending(path)]}")


def _name(path: str) -> str:
    name = path.partition("?")[0] if path.startswith(("http://", "https://")) else path
    return os.path.basename(name).lower()
