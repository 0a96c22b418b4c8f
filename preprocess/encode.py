"""Batches of records -> tokens and table rows, in worker processes, in order.

Each batch is a pure function of its records, and results are taken in the order of the batches: the shard is the same
for any number of workers. Only a few batches a worker are on their way at a time, so memory does not grow with input.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Deque, Iterator, List, Optional, Tuple

import numpy as np

from megatron_ext.config.schema import TokenizerKind
from preprocess import metadata, pipeline, readers
from preprocess.tokenizer import open_tokenizer

_AHEAD = 2  # batches given to each worker beyond the one awaited


@dataclass(frozen=True)
class Recipe:
    """All that a worker needs, as plain data. `eod`: the id to end each document with, or None."""

    kind: TokenizerKind
    tokenizer_path: str
    tokenizer: bytes
    eod: Optional[int]
    keys: readers.Keys
    steps: List[pipeline.Step]


@dataclass(frozen=True)
class Encoded:
    """Of one batch: ids [sum of lengths], lengths and rows one a kept document."""

    ids: np.ndarray
    lengths: np.ndarray
    rows: List[metadata.Row]
    counts: pipeline.Counts


class Encoder:
    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._tokenizer = open_tokenizer(recipe.kind, recipe.tokenizer, recipe.tokenizer_path)

    def __call__(self, records: List[readers.Record]) -> Encoded:
        """Raises ValueError, naming file and line, for a record that cannot be read."""
        counts = pipeline.Counts(read=len(records))
        parsed = (readers.parse(record, self._recipe.keys) for record in records)
        documents = list(pipeline.run(self._recipe.steps, parsed, counts.dropped))
        parts, rows = [], []
        for document, tokens in zip(documents, self._tokenizer.encode([document.text for document in documents])):
            if not tokens:  # the tokenizer's own normalisation left nothing
                counts.dropped["no tokens"] += 1
                continue
            counts.unknown_tokens += tokens.count(self._tokenizer.unknown) if self._tokenizer.unknown is not None else 0
            counts.text_bytes += len(document.text.encode("utf-8"))
            parts.append(tokens if self._recipe.eod is None else [*tokens, self._recipe.eod])
            rows.append(metadata.row(document))
        counts.kept = len(rows)
        ids = np.concatenate([np.zeros(0, np.int32), *(np.asarray(part, np.int32) for part in parts)])
        return Encoded(ids, np.asarray([len(part) for part in parts], np.int64), rows, counts)


def encode(recipe: Recipe, batches: Iterator[readers.Batch], workers: int) -> Iterator[Tuple[Encoded, int]]:
    """Yields each batch encoded, and the bytes of input consumed with it.

    Raises ValueError for bad input and ChildProcessError when a worker dies.
    """
    if workers == 1:
        encoder = Encoder(recipe)
        for batch in batches:
            yield encoder(batch.records), batch.consumed
        return
    # spawn: a fork would copy whatever locks the threads of pyarrow and of the caller hold at that moment
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start, (recipe,))
    try:
        yield from _in_order(pool, batches, workers * _AHEAD)
    except BrokenProcessPool:
        raise ChildProcessError(
            "a worker process died (killed from outside, or out of memory: see dmesg); "
            "a smaller data.source.workers needs less memory"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def default_workers() -> int:
    """The cores this process may use: under Slurm those of the job."""
    return len(os.sched_getaffinity(0))


def _in_order(pool: ProcessPoolExecutor, batches: Iterator[readers.Batch], ahead: int) -> Iterator[Tuple[Encoded, int]]:
    waiting: Deque[Tuple[Future[Encoded], int]] = deque()
    for batch in batches:
        with _ctrl_c_held():
            waiting.append((pool.submit(_work, batch.records), batch.consumed))
        if len(waiting) > ahead:
            future, consumed = waiting.popleft()
            yield future.result(), consumed
    for future, consumed in waiting:
        yield future.result(), consumed


@contextmanager
def _ctrl_c_held() -> Iterator[None]:
    """A worker started in here never sees Ctrl-C, which reaches the whole process group: its parent ends the pool."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_encoder: Optional[Encoder] = None  # of this worker process


def _start(recipe: Recipe) -> None:
    global _encoder
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _encoder = Encoder(recipe)


def _die_with_parent() -> None:
    """A pool's workers wait for work for ever when their parent is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _work(records: List[readers.Record]) -> Encoded:
    assert _encoder is not None
    return _encoder(records)
