"""What a conversion did, tensor by tensor: written as conversion.json into the output.

The content hash is SHA-256 of the whole tensor's bytes in row-major order. How the tensor is cut into files does not
enter, so the same weights have the same hash in every layout.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Dict, List

import torch

from checkpoints_tools.formats.tensors import Source, Spec, blocks, raw_bytes

FILE = "conversion.json"


class Certificate:
    def __init__(self, source: Path, source_format: str, target_format: str) -> None:
        self.facts: Dict[str, Any] = {"source": str(source), "from": source_format, "to": target_format}
        self.notes: List[str] = []
        self._entries: Dict[str, Dict[str, Any]] = {}
        self._digests: Dict[str, Any] = {}

    def add(self, name: str, spec: Spec, sources: List[str], data: torch.Tensor) -> None:
        """The next bytes of tensor `name`; its parts come in row-major order."""
        if name not in self._entries:
            entry = {"target": name, "sources": sources, "shape": list(spec.shape), "dtype": dtype_name(spec.dtype)}
            self._entries[name] = {**entry, "bytes": spec.nbytes}
            self._digests[name] = hashlib.sha256()
        self._digests[name].update(raw_bytes(data))

    def note(self, text: str) -> None:
        """Something the user should know: what was left out, dropped or changed."""
        if text not in self.notes:
            self.notes.append(text)

    def hash_of(self, name: str) -> str:
        return self._digests[name].hexdigest()

    def content(self) -> Dict[str, Any]:
        entries = [{**entry, "sha256": self.hash_of(name)} for name, entry in self._entries.items()]
        total = {"tensors": len(entries), "bytes": sum(entry["bytes"] for entry in entries)}
        return {**self.facts, "total": total, "notes": self.notes, "tensors": entries}

    def write(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(self.content(), indent=1) + "\n")


def content_hash(source: Source, name: str) -> str:
    digest = hashlib.sha256()
    for offset, shape in blocks(source.tensors[name]):
        digest.update(raw_bytes(source.read(name, offset, shape)))
    return digest.hexdigest()


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")
