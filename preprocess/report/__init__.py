"""What a finished set of shards holds: <prefix>.report.json for programs, <prefix>.card.html for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Tuple

from preprocess.report.gather import facts
from preprocess.report.page import card
from preprocess.staging import write_atomically

__all__ = ["card", "facts", "write"]


def write(prefix: str) -> Tuple[Path, Path]:
    """-> the files written. Equal for equal sets. Raises ValueError when the set is not complete."""
    found = facts(prefix)
    report, page = Path(f"{prefix}.report.json"), Path(f"{prefix}.card.html")
    write_atomically(report, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
    write_atomically(page, card(found).encode())
    return report, page
