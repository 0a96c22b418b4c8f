"""Run a function on N ranks of this machine, started by forking: torch and megatron-core are imported once.

Starting eight interpreters costs half a minute of imports on two cores; eight forks cost nothing. For CPU ranks: a
process that has touched a GPU cannot fork.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from multiprocessing.connection import Connection, wait
from typing import Any, Callable, List, Tuple

from megatron_ext.runtime import device


class RankFailed(RuntimeError):
    """A rank raised or died; the message is its traceback."""


def run_ranks(world: int, work: Callable[..., Any], *arguments: Any, timeout: float = 300.0) -> List[Any]:
    """work(*arguments) on every rank, RANK and its like set -> results by rank (they must pickle).

    The first rank that fails ends all others at once. Raises RankFailed; TimeoutError after `timeout` seconds.
    """
    assert not device.on_gpu(), "ranks on GPUs are started by a launcher"
    device.install()
    context, port = multiprocessing.get_context("fork"), _free_port()
    ranks: List[Tuple[Any, Connection]] = []
    try:
        for rank in range(world):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(sender, rank, world, port, work, arguments), daemon=True)
            process.start()
            sender.close()
            ranks.append((process, receiver))
        results = _collect(ranks, time.monotonic() + timeout, timeout)
        for process, _ in ranks:
            process.join(5)  # what runs at a process's end, such as coverage's notes, may finish
        return results
    finally:
        for process, receiver in ranks:
            process.kill()
            process.join()
            receiver.close()


def _rank(sender: Connection, rank: int, world: int, port: int, work: Callable[..., Any], arguments: Any) -> None:
    import torch.distributed as dist

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        answer = (True, work(*arguments))
        if dist.is_initialized():
            dist.barrier()
    except BaseException:
        answer = (False, traceback.format_exc())
    sender.send(answer)
    sender.close()


def _collect(ranks: List[Tuple[Any, Connection]], deadline: float, timeout: float) -> List[Any]:
    results: List[Any] = [None] * len(ranks)
    waiting = {receiver: rank for rank, (_, receiver) in enumerate(ranks)}
    while waiting:
        ready = wait(list(waiting), max(deadline - time.monotonic(), 0))
        if not ready:
            raise TimeoutError(f"ranks {sorted(waiting.values())} did not answer within {timeout:.0f} s")
        for receiver in ready:
            rank = waiting.pop(receiver)  # type: ignore
            try:
                succeeded, results[rank] = receiver.recv()  # type: ignore
            except EOFError:
                raise RankFailed(f"rank {rank} died without a word") from None
            if not succeeded:
                raise RankFailed(f"rank {rank}:\n{results[rank]}")
    return results


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
