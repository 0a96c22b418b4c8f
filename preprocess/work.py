"""The folder <output>.work: what is finished of a run, under final names, so that a killed one goes on.

    pass-0/part-00000.json        the part is done; its counts. Written last
    pass-0/part-00000.documents   what the next pass reads (Arrow)        .owners .values   for the comparison
    pass-0/part-00000.removed     the comparison's outcome                 search-000.*      of its searches
    pass-1/part-00000.tokens .lengths .sequences .rows .mask .packs         the last pass: what is put together
    pass-*/part-00000.aside       dropped documents, when they are wanted

Each mark carries the stamp of all that its content depends on; one with another stamp counts as absent.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

from megatron_ext.config.schema import Source
from preprocess import dedup
from preprocess.staging import write_atomically

LAST_PASS = ("tokens", "lengths", "sequences", "rows", "mask", "packs")


@dataclass(frozen=True)
class Work:
    folder: Path

    def jobs(self) -> List[str]:
        """Ids of the Slurm jobs that were submitted for it last, if any."""
        try:
            found: List[str] = json.loads((self.folder / "jobs.json").read_text())
        except (FileNotFoundError, ValueError):
            return []
        return found

    def sweep(self) -> None:
        """Remove what killed tasks were writing."""
        for path in self.folder.glob("pass-*/.*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget what is finished; the lock, which is ours, stays."""
        for path in self.folder.glob("pass-*"):
            shutil.rmtree(path)

    def pass_folder(self, number: int) -> Path:
        return self.folder / f"pass-{number}"

    def part(self, number: int, part: int, kind: str) -> Path:
        return self.pass_folder(number) / f"part-{part:05}.{kind}"

    def round(self, number: int, parts: int, source: Source) -> dedup.Round:
        return dedup.Round(self.pass_folder(number), parts, source.memory_bytes, source.output)

    def decided(self, number: int) -> Path:
        return self.pass_folder(number) / "decided.json"

    def searched(self, number: int, task: int) -> Path:
        return self.pass_folder(number) / f"searched-{task:03}.json"


def of(output: str) -> Work:
    return Work(Path(f"{output}.work"))


def read_mark(path: Path, stamp: str) -> Optional[Dict[str, Any]]:
    """None when it is not there, or is of other input, settings or code."""
    try:
        mark: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return mark if mark.get("stamp") == stamp else None


def write_mark(path: Path, stamp: str, **facts: Any) -> Dict[str, Any]:
    mark = {"stamp": stamp, **facts}
    write_atomically(path, json.dumps(mark, ensure_ascii=False, default=str).encode())
    return mark


def temporary(path: Path) -> Path:
    """Beside `path`, for this process alone: two tasks may do the same part after a requeue."""
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
