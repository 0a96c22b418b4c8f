"""python -m preprocess.verify PREFIX...: do .bin, .idx, .parquet and .json of a shard tell the same story?

Reads all of it once, as a stream. Exit codes: 0 they do, 1 they do not, 2 there is no such shard.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Iterator, List, Optional

import numpy as np
import pyarrow.parquet as pq

from megatron_ext.config.rundir import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from preprocess.metadata import SCHEMA
from preprocess.shards import SUFFIXES, Shard, Sidecar, read_sidecar

_PART = 1 << 22  # tokens or documents looked at together


def problems(prefix: str) -> Iterator[str]:
    """What is wrong, a sentence each; nothing for a sound shard."""
    try:
        sidecar, shard = read_sidecar(prefix), Shard(prefix)
        table = pq.ParquetFile(f"{prefix}.parquet")
    except (ValueError, OSError) as error:  # Arrow's errors are ValueErrors
        yield str(error)
        return
    found = [*_counts(prefix, sidecar, shard), *_index(prefix, shard)]
    yield from found
    if not found:  # tokens and rows are looked up by the index
        yield from _tokens(prefix, sidecar, shard)
        yield from _table(prefix, table, shard)


def _counts(prefix: str, sidecar: Sidecar, shard: Shard) -> Iterator[str]:
    told = (sidecar.documents, sidecar.tokens, sidecar.dtype)
    held = (len(shard), len(shard.tokens), shard.dtype.name)
    if told != held:
        yield f"{prefix}.json says (documents, tokens, dtype) {told}, the shard holds {held}"
    dropped = sum(sidecar.dropped.values())
    if sidecar.kept != sidecar.documents or sidecar.read != sidecar.kept + dropped:
        yield (
            f"{prefix}.json: {sidecar.read} records read are not {sidecar.kept} kept and {dropped} dropped, "
            f"or these are not its {sidecar.documents} documents"
        )


def _index(prefix: str, shard: Shard) -> Iterator[str]:
    position = 0
    for start in range(0, len(shard), _PART):
        part = slice(start, min(start + _PART, len(shard)))
        size = shard.lengths[part].astype(np.int64) * shard.dtype.itemsize
        ends = position + np.cumsum(size)
        if (size <= 0).any() or not np.array_equal(shard.pointers[part], ends - size):
            yield f"{prefix}.idx: lengths and offsets of documents {part.start} to {part.stop - 1} do not agree"
        if not np.array_equal(shard.boundaries[part], np.arange(part.start, part.stop)):
            yield f"{prefix}.idx: boundaries of documents {part.start} to {part.stop - 1} are not one sequence apart"
        position = int(ends[-1])
    if shard.boundaries[-1] != len(shard):
        yield f"{prefix}.idx: the last boundary is {shard.boundaries[-1]}, not {len(shard)}"


def _tokens(prefix: str, sidecar: Sidecar, shard: Shard) -> Iterator[str]:
    greatest, ends = 0, 0
    for start in range(0, len(shard.tokens), _PART):
        part = shard.tokens[start : start + _PART]
        greatest = max(greatest, int(part.max()))
        ends += int((part == sidecar.eod_id).sum()) if sidecar.eod_id is not None else 0
    if greatest >= sidecar.vocab_size:
        yield f"{prefix}.bin has token id {greatest}, the tokenizer {sidecar.vocab_size} ids"
    expected = len(shard) if sidecar.append_eod else 0
    if sidecar.eod_id is not None and ends != expected:
        yield f"{prefix}.bin has {ends} end-of-document tokens for {expected} expected"
    for start in range(0, len(shard) if sidecar.append_eod else 0, _PART):
        some = slice(start, start + _PART)
        last = shard.pointers[some] // shard.dtype.itemsize + shard.lengths[some] - 1
        wrong = np.flatnonzero(shard.tokens[last] != sidecar.eod_id) + start
        if len(wrong):
            yield f"{prefix}.bin: document {wrong[0]} and {len(wrong) - 1} more do not end with token {sidecar.eod_id}"


def _table(prefix: str, table: pq.ParquetFile, shard: Shard) -> Iterator[str]:
    if not table.schema_arrow.equals(SCHEMA):
        yield f"{prefix}.parquet has columns {table.schema_arrow.names}, expected {SCHEMA.names}"
        return
    if table.metadata.num_rows != len(shard):
        yield f"{prefix}.parquet has {table.metadata.num_rows} rows for {len(shard)} documents"
        return
    row = 0
    for batch in table.iter_batches(columns=["document", "token_start", "token_count"]):
        part = slice(row, row + len(batch))
        expected = [
            np.arange(part.start, part.stop),
            shard.pointers[part] // shard.dtype.itemsize,
            shard.lengths[part],
        ]
        for name, column, right in zip(batch.schema.names, batch.columns, expected):
            if not np.array_equal(column.to_numpy(zero_copy_only=False), right):
                rows = f"rows {part.start} to {part.stop - 1}"
                yield f"{prefix}.parquet: column {name} does not agree with the index in {rows}"
        row = part.stop


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m preprocess.verify", description=__doc__)
    parser.add_argument("prefix", nargs="+", help="as runs/data/demo/python_docs")
    prefixes = parser.parse_args(arguments).prefix
    if missing := [prefix for prefix in prefixes if not any(Path(prefix + suffix).exists() for suffix in SUFFIXES)]:
        print(f"no shard at {', '.join(missing)}: no file {' or '.join(SUFFIXES)} of that prefix", file=sys.stderr)
        return EXIT_BAD_INPUT
    bad = False
    for prefix in prefixes:
        found = list(problems(prefix))
        print("\n".join(found) if found else f"{prefix}: sound, {len(Shard(prefix)):,} documents")
        bad = bad or bool(found)
    return EXIT_FAILED if bad else EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
