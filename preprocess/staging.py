"""Files appear under their final names when they are whole and on disk; one command at a time makes an output."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator

from megatron_ext.config.rundir import Lock, lock_owner


@contextmanager
def held(folder: Path, output: str) -> Iterator[None]:
    """The work folder of an output, made and locked. Raises ValueError, naming who, when another command is at it."""
    folder.mkdir(parents=True, exist_ok=True)
    if owner := lock_owner(folder):
        raise ValueError(
            f"shard {output} is being made by pid {owner['pid']} on {owner['host']}; wait for it, or choose another "
            f"data.source.output (if that command is gone, remove {folder / 'lock.json'})"
        )
    lock = Lock(folder)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()
        with suppress(OSError):  # not empty: a killed run goes on from it
            folder.rmdir()


def write_atomically(path: Path, content: bytes) -> None:
    """Readers see the old content or the new one, never a part; survives a power loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
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
