"""python -m preprocess.verify PREFIX...: do .bin, .idx, .parquet, .mask and .json tell the same story?

Reads all of it, as a stream; of a set of shards, each. With --text it also decodes documents and compares them with the
hashes of the texts they were made from. Exit codes: 0 they do, 1 they do not, 2 there is no such shard.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from megatron_ext.config.rundir import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from preprocess import manifest
from preprocess.dataset import Dataset, labelled, named, open_table, set_of
from preprocess.label.packed import Packs
from preprocess.manifest import Manifest, ShardFile
from preprocess.metadata import SCHEMA, text_hash
from preprocess.shards import SUFFIXES, Shard

_PART = 1 << 22  # tokens, documents or bytes looked at together


def problems(prefix: str) -> Iterator[str]:
    """What is wrong, a sentence each; nothing for a sound set."""
    try:
        told = manifest.read(prefix)
    except ValueError as error:
        yield str(error)
        return
    yield from _counts(prefix, told)
    found = [problem for part in zip(told.prefixes(prefix), told.shards) for problem in _shard(*part, told)]
    yield from found
    if not found and (held := fingerprint(told.prefixes(prefix))) != told.fingerprint:
        yield f"{prefix}.json says fingerprint {told.fingerprint}, its shards have {held}: their content was changed"


def fingerprint(prefixes: List[str]) -> str:
    """Of a set of shards, as the manifest has it."""
    whole = hashlib.sha256()
    for prefix in prefixes:
        whole.update(_digest(f"{prefix}.bin", f"{prefix}.idx"))
        if Path(f"{prefix}.mask").exists():
            whole.update(_digest(f"{prefix}.mask") + _digest(f"{prefix}.packs"))
    return whole.hexdigest()


def _digest(*paths: str) -> bytes:
    """Of the files, one after the other."""
    found = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while part := file.read(_PART):
                found.update(part)
    return found.digest()


def restored(prefix: str, most: int, tokenizer_path: str = "") -> Tuple[int, int]:
    """-> documents that decode to the text whose hash the table has, of how many looked at: at most `most` (0: all).

    Not all do where the tokenizer does not restore texts (it normalises them, or has an <unk>); after a shift of rows
    none does. Raises ValueError when the tokenizer is not the one that made the set.
    """
    data = Dataset(prefix, tokenizer_path)
    number, equal, looked = 0, 0, 0
    step = max(1, -(-len(data) // most)) if most else 1
    for batch in data.batches(["text_hash"]):
        for place in range(-number % step, len(batch), step):
            looked += 1
            equal += text_hash(data.text(number + place)) == batch.column(0)[place].as_py()
        number += len(batch)
    return equal, looked


def _counts(prefix: str, told: Manifest) -> Iterator[str]:
    """The manifest by itself."""
    sums = (sum(shard.documents for shard in told.shards), sum(shard.tokens for shard in told.shards))
    if sums != (told.documents, told.tokens):
        yield f"{prefix}.json says (documents, tokens) {(told.documents, told.tokens)}, its shards have {sums}"
    dropped = sum(told.dropped.values())
    if told.kept != told.documents or told.read != told.kept - told.created + dropped + told.unreadable:
        yield (
            f"{prefix}.json: {told.read} records read are not {told.kept} kept less {told.created} created, {dropped} "
            f"dropped and {told.unreadable} unreadable, or these are not its {told.documents} documents"
        )
    if (records := sum(part.records for part in told.inputs)) != told.read:
        yield f"{prefix}.json: {told.read} records read, its inputs have {records}"
    if (by_step := sum(sum(step.dropped.values()) for step in told.steps)) != dropped:
        yield f"{prefix}.json: {dropped} records dropped, its steps dropped {by_step}"


def _shard(prefix: str, file: ShardFile, told: Manifest) -> Iterator[str]:
    try:
        shard, table = Shard(prefix), open_table(prefix)
    except ValueError as error:
        yield str(error)
        return
    held = (len(shard), len(shard.tokens), shard.dtype.name)
    if held != (said := (file.documents, file.tokens, told.dtype)):
        yield f"the manifest says of {prefix} (documents, tokens, dtype) {said}, the shard holds {held}"
    found = list(_index(prefix, shard))
    yield from found
    if not found:  # tokens and rows are looked up by the index
        yield from _tokens(prefix, told, shard)
        yield from _table(prefix, table, shard)
        yield from _labels(prefix, told)


def _index(prefix: str, shard: Shard) -> Iterator[str]:
    position, count = 0, len(shard.lengths)
    for start in range(0, count, _PART):
        part = slice(start, min(start + _PART, count))
        size = shard.lengths[part].astype(np.int64) * shard.dtype.itemsize
        ends = position + np.cumsum(size)
        if (size <= 0).any() or not np.array_equal(shard.pointers[part], ends - size):
            yield f"{prefix}.idx: lengths and offsets of sequences {part.start} to {part.stop - 1} do not agree"
        position = int(ends[-1])
    for start in range(0, len(shard), _PART):
        part = slice(start, min(start + _PART, len(shard)))
        if (np.diff(shard.boundaries[part.start : part.stop + 1]) < 1).any():
            yield f"{prefix}.idx: boundaries of documents {part.start} to {part.stop - 1} do not ascend"
    ends_of_all = (int(shard.boundaries[0]), int(shard.boundaries[-1]))
    if ends_of_all != (0, count):
        yield f"{prefix}.idx: boundaries go from {ends_of_all[0]} to {ends_of_all[1]}, not from 0 to {count}"


def _tokens(prefix: str, told: Manifest, shard: Shard) -> Iterator[str]:
    """Ids that the tokenizer has; BOS and EOD around each document and nowhere else."""
    vocab_size, greatest, ends = told.tokenizer.vocab_size, 0, 0
    for start in range(0, len(shard.tokens), _PART):
        part = shard.tokens[start : start + _PART]
        greatest = max(greatest, int(part.max()))
        ends += int((part == told.eod_id).sum()) if told.eod_id is not None else 0
    if greatest >= vocab_size:
        yield f"{prefix}.bin has token id {greatest}, the tokenizer {vocab_size} ids"
    if labelled(told):  # the template says where such tokens stand
        return
    both = told.prepend_bos and told.bos_id == told.eod_id
    expected = len(shard) * (int(told.append_eod) + int(both))
    if told.eod_id is not None and ends != expected:
        yield f"{prefix}.bin has {ends} end-of-document tokens for {expected} expected"
    for start in range(0, len(shard), _PART):
        places = shard.starts(start, min(start + _PART, len(shard)))
        if told.prepend_bos:
            yield from _mark(prefix, "begin", told.bos_id, shard.tokens[places[:-1]], start)
        if told.append_eod:
            yield from _mark(prefix, "end", told.eod_id, shard.tokens[places[1:] - 1], start)


def _mark(prefix: str, where: str, expected: Optional[int], held: np.ndarray, first: int) -> Iterator[str]:
    wrong = np.flatnonzero(held != expected)
    if len(wrong):
        documents = f"document {wrong[0] + first} and {len(wrong) - 1} more"
        yield f"{prefix}.bin: {documents} do not {where} with token {expected}"


def _table(prefix: str, table: pq.ParquetFile, shard: Shard) -> Iterator[str]:
    if not table.schema_arrow.equals(SCHEMA):
        yield f"{prefix}.parquet has columns {table.schema_arrow.names}, expected {SCHEMA.names}"
        return
    if table.metadata.num_rows != len(shard):
        yield f"{prefix}.parquet has {table.metadata.num_rows} rows for {len(shard)} documents"
        return
    row = 0
    try:
        for batch in table.iter_batches(columns=["document", "token_start", "token_count"], use_threads=False):
            part = slice(row, row + len(batch))
            starts = shard.starts(part.start, part.stop)
            for name, right in zip(
                batch.schema.names, (np.arange(part.start, part.stop), starts[:-1], np.diff(starts))
            ):
                if not np.array_equal(batch.column(name).to_numpy(zero_copy_only=False), right):
                    rows = f"rows {part.start} to {part.stop - 1}"
                    yield f"{prefix}.parquet: column {name} does not agree with the index in {rows}"
            row = part.stop
    except (pa.ArrowException, OSError) as error:
        yield f"{prefix}.parquet is damaged ({error}); make the shard again with llm-preprocess"


def _labels(prefix: str, told: Manifest) -> Iterator[str]:
    if not labelled(told):
        return
    try:
        Packs(prefix)
    except ValueError as error:
        yield str(error)
        return
    mask = np.memmap(f"{prefix}.mask", np.uint8, "r")
    for start in range(0, len(mask), _PART):
        if (greatest := int(mask[start : start + _PART].max())) > 1:
            yield f"{prefix}.mask holds {greatest} in bytes {start} to {start + _PART - 1}, and should hold 0 and 1"


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m preprocess.verify", description=__doc__)
    parser.add_argument("prefix", nargs="+", type=named, help="as runs/data/demo/python_docs")
    parser.add_argument("--text", type=int, metavar="N", help="also decode N documents, evenly spread; 0: all")
    parser.add_argument("--tokenizer", default="", metavar="FILE", help="where it is now, if not where it was")
    options = parser.parse_args(arguments)
    missing = [one for one in options.prefix if not any(Path(one + suffix).exists() for suffix in SUFFIXES)]
    if missing or (options.text or 0) < 0:
        said = f"no shard at {', '.join(missing)}: no file {' or '.join(SUFFIXES)} of that prefix"
        print(said if missing else f"--text={options.text}: give 0 or more documents", file=sys.stderr)
        return EXIT_BAD_INPUT
    bad = False
    for prefix in dict.fromkeys(map(_whole, options.prefix)):
        found = list(problems(prefix))
        if not found:
            print(f"{prefix}: sound, {manifest.read(prefix).documents:,} documents")
        if not found and options.text is not None:
            found = list(_texts(prefix, options.text, options.tokenizer))
        print("\n".join(found), end="\n" if found else "")
        bad = bad or bool(found)
    return EXIT_FAILED if bad else EXIT_DONE


def _whole(prefix: str) -> str:
    """A shard is sound when its set is."""
    try:
        return set_of(prefix)
    except ValueError:  # of the manifest, which is read again to say so
        return re.sub(r"-\d{5}$", "", prefix)


def _texts(prefix: str, most: int, tokenizer_path: str) -> Iterator[str]:
    try:
        equal, looked = restored(prefix, most, tokenizer_path)
    except ValueError as error:
        yield str(error)
        return
    print(f"{prefix}: {equal:,} of {looked:,} documents decode to the text whose hash the table has")
    if not equal:
        other = "the rows of the table are of other documents, or this tokenizer restores no text"
        yield f"{prefix}: no document decodes to its text; {other}"


if __name__ == "__main__":
    sys.exit(main())
