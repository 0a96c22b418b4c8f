"""A translator of one's own: a folder of a sequence-to-sequence model, in a process of its own.

That process alone imports transformers and torch. It starts with the first text, one for each worker that translates,
and ends with the worker.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

from preprocess import sentences

_LINE_ENDS = re.compile(r"(\n\s*)")


class Local:
    """texts -> texts, in the same order; None for one of which a sentence is too long for the model, or has no end.

    Such models translate sentences. White space between sentences is kept.
    """

    def __init__(self, folder: str, source: str, target: str, prompt: str) -> None:
        """source, target: codes that the model knows, or nothing. Raises ValueError for a folder of no such model."""
        config = Path(folder) / "config.json"
        if not config.is_file():
            raise ValueError(
                f"step back_translation: {folder!r} is no folder of a model (it has no config.json); give one that "
                f"transformers can load, or the address of an endpoint as http://host:8000/v1"
            )
        if not json.loads(config.read_text(encoding="utf-8")).get("is_encoder_decoder"):
            raise ValueError(
                f"step back_translation: the model in {folder} is not a sequence-to-sequence model; serve it behind an "
                f"OpenAI-compatible endpoint and give its address"
            )
        if importlib.util.find_spec("transformers") is None:
            raise ValueError("step back_translation: a local model needs the package transformers; install it")
        self._command = [sys.executable, "-m", "preprocess.augment.seq2seq", folder, source, target]
        self._folder, self._prompt = folder, prompt
        self._process: Optional[subprocess.Popen[str]] = None
        self._log: Any = None

    def __call__(self, texts: List[str]) -> List[Optional[str]]:
        """Raises OSError when the process does not answer: with its last words."""
        cut = [_pieces(text) for text in texts]
        wanted = list(dict.fromkeys(piece.strip() for pieces in cut for piece in pieces if piece.strip()))
        answers: Dict[str, Optional[str]] = dict(
            zip(wanted, self._ask([self._prompt.replace("{text}", w) for w in wanted]))
        )
        return [_together(pieces, answers) for pieces in cut]

    def _ask(self, pieces: List[str]) -> List[Optional[str]]:
        if not pieces:
            return []
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(pieces) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self._process.wait()
            self._log.seek(0)
            said = self._log.read().strip()[-2000:]
            raise OSError(f"the translation with {self._folder} ended with exit code {code}: {said}")
        found: List[Optional[str]] = json.loads(answer)
        return found

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - as long as it
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=env
        )


def _pieces(text: str) -> List[str]:
    """Sentences, each within a line, and what is between lines; joined they are the text."""
    return [piece for part in _LINE_ENDS.split(text) for piece in sentences.split(part)]


def _together(pieces: List[str], answers: Dict[str, Optional[str]]) -> Optional[str]:
    out = []
    for piece in pieces:
        bare = piece.strip()
        answer = answers[bare] if bare else ""
        if answer is None:
            return None
        start = piece.find(bare)
        out.append(piece[:start] + answer + piece[start + len(bare) :] if bare else piece)
    return "".join(out)
