"""What is counted in one pass over the table. Each counter takes batches of columns and holds a bounded amount.

A corpus may have as many sources as documents, so only the greatest groups are told apart; what they are of is exact as
long as there are no more than LIMIT.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TOP = 50  # groups told apart in the report
LIMIT = 20_000  # groups held while counting
_LETTERS = 200  # of a value: longer ones are cut
_LONGEST = 1 << 20  # tokens: lengths up to here are counted one by one
_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_NAMES = 20  # of scores
_BINS = 20
# The year of 2023-09-05, 2023-09-05T12:00:00Z, 20230905, 20230905120000 and Tue, 05 Sep 2023 12:00
_YEAR = r"(?:^|[^0-9])(?P<year>(?:19|20)[0-9]{2})(?:[^0-9]|[0-9]{4}(?:[^0-9]|$)|[0-9]{10}(?:[^0-9]|$)|$)"


class Groups:
    """Documents and tokens by the values of a column; None: those without one."""

    def __init__(self) -> None:
        self._found: Dict[Optional[str], List[int]] = {}  # documents, tokens
        self._other = [0, 0]
        self._exact, self._missing = True, 0

    def add(self, values: pa.Array, tokens: pa.Array) -> None:
        self._missing += values.null_count
        table = pa.table({"value": pc.utf8_slice_codeunits(values, 0, _LETTERS), "tokens": tokens})
        summed = table.group_by("value", use_threads=False).aggregate([("tokens", "count"), ("tokens", "sum")])
        columns = (summed.column(name).to_pylist() for name in ("value", "tokens_count", "tokens_sum"))
        for value, documents, number in zip(*columns):
            group = self._found.setdefault(value, [0, 0])
            group[0] += documents
            group[1] += number
        if len(self._found) > LIMIT:
            self._exact = False
            self._found, _ = self._divided(LIMIT // 2)

    def result(self) -> Dict[str, Any]:
        """`values`: how many there are, at least that many if not `exact`; counts of `top` are then at least so large.
        `missing`: documents without a value."""
        number = len(self._found)
        top, other = self._divided(TOP)
        rows = [{"value": value, "documents": counts[0], "tokens": counts[1]} for value, counts in top.items()]
        rest = {"values": number - len(top), "documents": other[0], "tokens": other[1]}
        return {"values": number, "exact": self._exact, "missing": self._missing, "top": rows, "other": rest}

    def _divided(self, most: int) -> Tuple[Dict[Optional[str], List[int]], List[int]]:
        """The groups with most tokens, and what all others have together, those forgotten before included."""
        ordered = sorted(self._found.items(), key=lambda item: (-item[1][1], item[0] is None, item[0] or ""))
        for _, (documents, tokens) in ordered[most:]:
            self._other = [self._other[0] + documents, self._other[1] + tokens]
        return dict(ordered[:most]), self._other


class Lengths:
    """Tokens a document."""

    def __init__(self) -> None:
        self._counts = np.zeros(_LONGEST + 1, np.int64)
        self._least, self._greatest, self._sum = np.iinfo(np.int64).max, 0, 0
        self._documents, self._tokens = np.zeros((2, 64), np.int64)  # of 2**i tokens to twice that

    def add(self, lengths: np.ndarray) -> None:
        found = np.bincount(np.minimum(lengths, _LONGEST))
        self._counts[: len(found)] += found
        self._least, self._greatest = min(self._least, int(lengths.min())), max(self._greatest, int(lengths.max()))
        self._sum += int(lengths.sum())
        octaves = np.frexp(lengths.astype(np.float64))[1] - 1  # exact: below 2**53
        self._documents += np.bincount(octaves, minlength=64)
        self._tokens += np.bincount(octaves, weights=lengths, minlength=64).astype(np.int64)

    def result(self) -> Dict[str, Any]:
        number = int(self._counts.sum())
        ends = np.cumsum(self._counts)
        places = {q: int(np.searchsorted(ends, max(1, math.ceil(q * number)))) for q in _QUANTILES}
        inside = {str(q): place if place < _LONGEST else self._greatest for q, place in places.items()}
        octaves = range(int(self._least).bit_length() - 1, self._greatest.bit_length())
        bins = [
            {"from": 1 << i, "to": (2 << i) - 1, "documents": int(self._documents[i]), "tokens": int(self._tokens[i])}
            for i in octaves
        ]
        return {
            "least": int(self._least),
            "greatest": self._greatest,
            "mean": self._sum / number,
            "quantiles": inside,
            "bins": bins,
        }


class Years:
    """Documents by the year in their time, where one can be read from it."""

    def __init__(self) -> None:
        self._years: Counter[str] = Counter()
        self._missing = self._unread = 0

    def add(self, times: pa.Array) -> None:
        found = pc.struct_field(pc.extract_regex(times, _YEAR), "year")
        self._missing += times.null_count
        self._unread += found.null_count - times.null_count
        for entry in pc.value_counts(found.drop_null()).to_pylist():
            self._years[entry["values"]] += entry["counts"]

    def result(self) -> Dict[str, Any]:
        years = [{"year": int(year), "documents": number} for year, number in sorted(self._years.items())]
        return {"years": years, "missing": self._missing, "unread": self._unread}


class Scores:
    """Distribution of each score, from the documents it is given."""

    def __init__(self) -> None:
        self._values: Dict[str, array[float]] = {}
        self._left_out = 0
        self._documents = 0

    def add(self, scores: pa.Array) -> None:
        self._documents += len(scores)
        for text in scores.drop_null().to_pylist():
            named = json.loads(text)
            for name, value in (named if isinstance(named, dict) else {"": named}).items():
                self._put(name[:_LETTERS], value)

    def _put(self, name: str, value: Any) -> None:
        if isinstance(value, (int, float)) and math.isfinite(value) and (name in self._values or self._room()):
            self._values.setdefault(name, array("d")).append(value)
        else:
            self._left_out += 1

    def _room(self) -> bool:
        return len(self._values) < _NAMES

    def result(self) -> Dict[str, Any]:
        """`documents`: looked at; `left_out`: values that are no numbers, or of more scores than are told apart."""
        names = {name: _distribution(np.frombuffer(values)) for name, values in sorted(self._values.items())}
        return {"documents": self._documents, "left_out": self._left_out, "names": names}


def _distribution(values: np.ndarray) -> Dict[str, Any]:
    counts, edges = np.histogram(values, bins=_BINS if values.min() < values.max() else 1)
    return {
        "documents": len(values),
        "least": float(values.min()),
        "median": float(np.median(values)),
        "greatest": float(values.max()),
        "counts": counts.tolist(),
        "edges": edges.tolist(),
    }
