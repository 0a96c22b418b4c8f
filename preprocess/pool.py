"""Work in worker processes, results in the order of the jobs; with one worker, in this very process.

Only a few jobs a worker are on their way at a time, so memory does not grow with the input.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Callable, Deque, Iterable, Iterator, Optional, Tuple, Type, TypeVar

_AHEAD = 2  # jobs given to each worker beyond the one awaited
_COLLECT_AFTER = 100_000  # new objects; documents are no cycles, and looking for some costs a twentieth of the time

Tag = TypeVar("Tag")


class Pool:
    """Context manager. `make` is called once in each worker and gives the function of one job; both are sent there."""

    def __init__(self, workers: int, make: Callable[[], Callable[[Any], Any]]) -> None:
        self._workers, self._make = workers, make
        self._own: Optional[Callable[[Any], Any]] = None
        self._pool: Optional[ProcessPoolExecutor] = None
        if workers > 1:
            # spawn: a fork would copy whatever locks the threads of pyarrow and of the caller hold at that moment
            self._pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start, (make,))

    def __enter__(self) -> Pool:
        self._threshold = gc.get_threshold()
        gc.set_threshold(_COLLECT_AFTER, *self._threshold[1:])
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        gc.set_threshold(*self._threshold)
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, jobs: Iterable[Tuple[Tag, Any]]) -> Iterator[Tuple[Tag, Any]]:
        """(tag, job) -> (tag, its result); a job None is not worked on, its result is None.

        Raises what a job raises, and ChildProcessError when a worker dies.
        """
        if self._pool is None:
            for tag, job in jobs:
                yield tag, None if job is None else self._here()(job)
            return
        try:
            yield from self._in_order(self._pool, jobs)
        except BrokenProcessPool:
            raise ChildProcessError(
                "a worker process died (killed from outside, or out of memory: see dmesg); "
                "a smaller data.source.workers needs less memory"
            ) from None

    def _here(self) -> Callable[[Any], Any]:
        if self._own is None:
            self._own = self._make()
        return self._own

    def _in_order(self, pool: ProcessPoolExecutor, jobs: Iterable[Tuple[Tag, Any]]) -> Iterator[Tuple[Tag, Any]]:
        waiting: Deque[Tuple[Tag, Optional[Future[Any]]]] = deque()
        for tag, job in jobs:
            with _ctrl_c_held():
                waiting.append((tag, None if job is None else pool.submit(_work, job)))
            if len(waiting) > self._workers * _AHEAD:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())


def default_workers() -> int:
    """The cores this process may use: under Slurm those of the job."""
    asked = os.environ.get("SLURM_CPUS_PER_TASK", "")  # not every site binds tasks to their cores
    cores = len(os.sched_getaffinity(0))
    return min(cores, int(asked)) if asked.isdigit() and int(asked) > 0 else cores


def _result(waiting: Tuple[Tag, Optional[Future[Any]]]) -> Tuple[Tag, Any]:
    tag, future = waiting
    return tag, None if future is None else future.result()


@contextmanager
def _ctrl_c_held() -> Iterator[None]:
    """A worker started in here never sees Ctrl-C, which reaches the whole process group: its parent ends the pool."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_function: Optional[Callable[[Any], Any]] = None  # of this worker process


def _start(make: Callable[[], Callable[[Any], Any]]) -> None:
    global _function
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _function = make()


def _die_with_parent() -> None:
    """A pool's workers wait for work for ever when their parent is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _work(job: Any) -> Any:
    assert _function is not None
    return _function(job)
