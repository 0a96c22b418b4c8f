"""Steps that misbehave, importable by worker processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from preprocess.document import Document, Dropped


def killed(document: Document) -> Document:
    """What the kernel does to a worker that needs too much memory."""
    if document.text.startswith("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    return document


def no_torch(document: Document) -> Document:
    """Fails the run when torch was imported in the process that tokenises."""
    assert "torch" not in sys.modules
    return document


def slow(document: Document) -> Document:
    """Leaves its process number in the folder of the input, then takes its time."""
    Path(document.file).with_name(f"pid.{os.getpid()}").touch()
    time.sleep(0.05)
    return document


def nothing(document: Document) -> Dropped:
    return Dropped("not wanted")
