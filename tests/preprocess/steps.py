"""Steps that misbehave, importable by worker processes; `names` puts them beside the real ones."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from preprocess import steps
from preprocess.document import Document, Dropped
from preprocess.pipeline import Apply, Tally, each


def register() -> None:
    """For a process of its own; in tests the fixture `odd_steps` does it."""
    steps.STEPS.update({name: f"{__name__}:{name}" for name in ("Killed", "NoTorch", "Slow", "Nothing", "Twice")})


@dataclass(frozen=True)
class Killed:
    """What the kernel does to a worker that needs too much memory."""

    def open(self) -> Apply:
        def kill(document: Document, tally: Tally) -> Document:
            if document.text.startswith("die"):
                os.kill(os.getpid(), signal.SIGKILL)
            return document

        return each(kill)


@dataclass(frozen=True)
class NoTorch:
    """Fails the run when torch was imported in the process that tokenises."""

    def open(self) -> Apply:
        assert "torch" not in sys.modules
        return lambda documents, tally: documents


@dataclass(frozen=True)
class Slow:
    """Leaves its process number in the folder of the input, and a line a document, then takes its time."""

    def open(self) -> Apply:
        def work(document: Document, tally: Tally) -> Document:
            folder = Path(document.file).parent
            (folder / f"pid.{os.getpid()}").touch()
            with open(folder / "seen", "a") as file:
                file.write(f"{document.id}\n")
            time.sleep(0.05)
            return document

        return each(work)


@dataclass(frozen=True)
class Nothing:
    def open(self) -> Apply:
        return each(lambda document, tally: Dropped("not wanted", document.text))


@dataclass(frozen=True)
class Twice:
    """A document made from each."""

    def open(self) -> Apply:
        def double(documents, tally):
            return [
                made
                for one in documents
                for made in (one, Document(one.text, f"{one.id}/2", {"parent": one.id}, one.file, one.line))
            ]

        return double


def slow_score(text: str) -> float:
    """For the step `classifier`, as a user would name a model of their own."""
    time.sleep(0.05)
    return 1.0
