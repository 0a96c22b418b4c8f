"""Output appears under its name whole or not at all."""

from __future__ import annotations

import os
import shutil
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A working folder beside `target`; when the block ends well, it is synced to disk and renamed to `target`.

    When the block raises, the working folder is removed. What a killed process of this machine left is removed on the
    next attempt. Raises ValueError when `target` exists and is not an empty folder.
    """
    target = target.absolute()
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ValueError(f"{target} exists already; give another name, or delete it first")
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.{socket.gethostname()}."
    for left in target.parent.glob(f"{prefix}*.tmp"):
        pid = left.name[len(prefix) : -len(".tmp")]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left)
    working = target.parent / f"{prefix}{os.getpid()}.tmp"
    working.mkdir()
    try:
        yield working
        for path in [*working.rglob("*"), working]:
            _sync(path)
        os.rename(working, target)  # replaces an empty folder, nothing else
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
