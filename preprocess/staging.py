"""Files appear under their final names when they are whole and on disk.

A shard is made in the folder <prefix>.partial, which only one command at a time may hold. What a killed command left
there is thrown away by the next one.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator, Sequence

from megatron_ext.config.rundir import Lock, lock_owner


@contextmanager
def staged(prefix: str) -> Iterator[Path]:
    """The empty folder to write in; removed at the end, whatever happens.

    Raises ValueError, naming the owner, when another live command is making the same shard.
    """
    folder = Path(f"{prefix}.partial")
    folder.mkdir(parents=True, exist_ok=True)
    if owner := lock_owner(folder):
        raise ValueError(
            f"shard {prefix} is being made by pid {owner['pid']} on {owner['host']}; wait for it, or choose another "
            f"data.source.output (if that command is gone, remove {folder})"
        )
    lock = Lock(folder)
    lock.acquire()
    try:
        _empty(folder)
        yield folder
    finally:
        _empty(folder)
        lock.release()
        with suppress(OSError):  # the next command may be in it already
            folder.rmdir()


def publish(folder: Path, prefix: str, suffixes: Sequence[str]) -> None:
    """Move <folder>/shard<suffix> to <prefix><suffix>, the last suffix last: only with it is the shard complete."""
    *parts, last = suffixes
    for suffix in suffixes:
        fsync(folder / f"shard{suffix}")
    Path(f"{prefix}{last}").unlink(missing_ok=True)  # from here on the old shard is not complete, nor is the new one
    fsync(folder.parent)
    for suffix in parts:
        os.replace(folder / f"shard{suffix}", f"{prefix}{suffix}")
    fsync(folder.parent)
    os.replace(folder / f"shard{last}", f"{prefix}{last}")
    fsync(folder.parent)


def _empty(folder: Path) -> None:
    for file in folder.glob("shard.*"):
        file.unlink()


def write_atomically(path: Path, content: bytes) -> None:
    """Readers see the old content or the new one, never a part; survives a power loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        fsync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Of a file or a folder (the names in it)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
