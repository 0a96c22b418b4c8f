"""Where the licence of a document comes from, and which are wanted."""

from __future__ import annotations

import dataclasses
import fnmatch
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Union

from preprocess.document import Document, Dropped
from preprocess.pipeline import Apply, Tally, each

FIELDS = ("licence", "license")
_NONE = ("", "unknown", "none", "null", "n/a", "noassertion")  # the last: SPDX


@dataclass(frozen=True)
class Licence:
    """defaults: {pattern of the input's path: licence} for documents without one, the first that fits; {"*": licence}
    is for all. missing: what happens to those still without one: `flag` counts them, and the column `licence` of the
    table is null; `drop`. allowed: licences that are kept, case aside; of a list of licences, all must be allowed."""

    defaults: Dict[str, str] = field(default_factory=dict)
    missing: str = "flag"
    allowed: Optional[List[str]] = None

    def open(self) -> Apply:
        if self.missing not in ("flag", "drop"):
            raise ValueError(f"step licence: missing={self.missing!r}; it is flag or drop")
        for pattern, licence in self.defaults.items():
            if not _names(licence):
                raise ValueError(f"step licence: defaults has {licence!r} for {pattern!r}; give the licence's name")
        if self.allowed is not None and not self.allowed:
            raise ValueError("step licence: allowed is empty, nothing would be left; name licences, or leave it out")
        return each(self._one)

    def _one(self, document: Document, tally: Tally) -> Union[Document, Dropped]:
        names = next((found for key in FIELDS if (found := _names(document.metadata.get(key)))), [])
        if not names:
            return self._without(document, tally)
        if not _names(document.metadata.get("licence", names)):  # the table takes `licence` before `license`
            metadata = {key: value for key, value in document.metadata.items() if key != "licence"}
            document = dataclasses.replace(document, metadata=metadata)
        return self._refused(names) or document

    def _without(self, document: Document, tally: Tally) -> Union[Document, Dropped]:
        default = next((name for path, name in self.defaults.items() if fnmatch.fnmatch(document.file, path)), None)
        if default is not None:
            tally.change("default licence")
        elif self.missing == "drop":
            return Dropped("no licence")
        else:
            tally.change("no licence")
        metadata = {key: value for key, value in document.metadata.items() if key not in FIELDS}
        if default is not None:
            metadata["licence"] = default
        return (default and self._refused([default])) or dataclasses.replace(document, metadata=metadata)

    def _refused(self, names: List[str]) -> Optional[Dropped]:
        allowed = None if self.allowed is None else {name.casefold() for name in self.allowed}
        bad = [] if allowed is None else [name for name in names if name.casefold() not in allowed]
        return Dropped("licence not allowed", ", ".join(bad)) if bad else None


def _names(value: Any) -> List[str]:
    """Of a field: a name, or a list of them."""
    names = [str(one).strip() for one in value] if isinstance(value, list) else [str(value).strip()]
    return [name for name in names if value is not None and name.casefold() not in _NONE]
