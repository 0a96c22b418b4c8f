"""Texts for the reader: some documents of the set, and some that were dropped, by reason; shortened."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Dict, List, Tuple

import zstandard

from preprocess.dataset import Dataset
from preprocess.show import sample

_DOCUMENTS = 10
_A_REASON = 3  # dropped documents shown
_REASONS = 60
_LETTERS = 600  # of a text; of other values fewer
_ASIDE_BYTES = 1 << 28  # of the file of dropped documents: what is read of it
_LINE = 1 << 24  # bytes of a line that are read; a longer one ends the search


def kept(data: Dataset) -> Tuple[List[Dict[str, Any]], str]:
    """Chosen by a fixed seed, and why there are none."""
    try:
        return [_kept(data, number) for number in sample(data, _DOCUMENTS)], ""
    except ValueError as error:  # the shards are sound without the tokenizer
        return [], str(error)


def _kept(data: Dataset, number: int) -> Dict[str, Any]:
    row = data.row(number)
    told = {
        name: shorten(str(row[name])) for name in ("id", "source", "licence", "language", "url", "file") if row[name]
    }
    text = data.text(number, most=_LETTERS)  # a token has a letter at least, nearly always
    return {
        "document": number,
        "tokens": row["token_count"],
        **told,
        "line": row["line"],
        "text": shorten(text, _LETTERS),
    }


def dropped(prefix: str, reasons: Dict[str, int]) -> Dict[str, List[Dict[str, Any]]]:
    """The first of each reason ("step: reason") in <prefix>.dropped.jsonl.zst; nothing where that was not kept."""
    path = Path(f"{prefix}.dropped.jsonl.zst")
    wanted = {reason: min(number, _A_REASON) for reason, number in list(reasons.items())[:_REASONS]}
    found: Dict[str, List[Dict[str, Any]]] = {reason: [] for reason in wanted}
    if not path.exists():
        return {}
    with open(path, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as stream:
        lines, read, left = io.BufferedReader(stream), 0, sum(wanted.values())
        while left and read < _ASIDE_BYTES and (line := lines.readline(_LINE)).endswith(b"\n"):
            read += len(line)
            record = json.loads(line)
            reason = f"{record['step']}: {record['reason']}"
            if len(found.get(reason, [])) < wanted.get(reason, 0):
                found[reason].append(_dropped(record))
                left -= 1
    return {reason: some for reason, some in found.items() if some}


def _dropped(record: Dict[str, Any]) -> Dict[str, Any]:
    told = {name: shorten(str(record.get(name) or "")) for name in ("id", "file", "detail")}
    return {**told, "line": record.get("line"), "text": shorten(record.get("text") or "", _LETTERS // 2)}


def shorten(text: str, most: int = 200) -> str:
    """What can be encoded of it, and is not cut within a character."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return whole if len(whole) <= most else whole[:most].rstrip("\ufffd") + "\u2026"
