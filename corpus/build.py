"""Rebuild corpus/python_docs.jsonl.zst, byte for byte: python corpus/build.py [--package FILE.deb]

The text is the reStructuredText source of Python's documentation, one document a file, as Debian's package
python3.11-doc ships it under _sources. Without --package the .deb is fetched by apt-get into a temporary folder;
nothing is installed. Documents are ordered by a hash of their path, so that a contiguous split (data.split) has every
chapter in each part.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, Iterator, List, Optional

import zstandard

PACKAGE = "python3.11-doc"
VERSION = "3.11.2-6+deb12u9"  # another version has other text; the committed corpus is this one
LICENCE = "PSF-2.0"
LEVEL = 19  # smallest at a speed one can wait for; the bytes also depend on libzstd (1.5.7 here)
HERE = Path(__file__).resolve().parent


def documents(root: Path) -> Iterator[Dict[str, str]]:
    """Every _sources/**/*.txt below root, in the order of the corpus. source is the path inside the package."""
    paths = [path.relative_to(root).as_posix() for path in root.rglob("_sources/**/*.txt") if path.is_file()]
    for path in sorted(paths, key=lambda name: hashlib.blake2b(name.encode()).digest()):
        text = (root / path).read_text(encoding="utf-8")
        name = path.split("_sources/", 1)[1].removesuffix(".txt").removesuffix(".rst")
        yield {
            "id": f"python-3.11/{name}",
            "text": text,
            "title": title(text) or name,
            "source": f"{PACKAGE}: {path}",
            "licence": LICENCE,
        }


def title(text: str) -> str:
    """The first heading: a line that is followed by a line of one repeated punctuation mark at least as long."""
    lines = [line.strip() for line in text.split("\n")]
    for line, under in zip(lines, lines[1:]):
        is_rule = len(set(under)) == 1 and under[0] in "*=-#~^" and len(under) >= max(3, len(line))
        if line and is_rule and set(line) != set(under):
            return line
    return ""


def pack(root: Path) -> bytes:
    lines = [json.dumps(document, ensure_ascii=False) + "\n" for document in documents(root)]
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress("".join(lines).encode())


def fetch(folder: Path) -> Path:
    """Raises ValueError when Debian's archive has another version by now."""
    fetched = subprocess.run(
        ["apt-get", "download", f"{PACKAGE}={VERSION}"], cwd=folder, capture_output=True, text=True
    )
    if fetched.returncode != 0:
        raise ValueError(
            f"apt-get download {PACKAGE}={VERSION} failed ({fetched.stderr.strip()}); get that version from "
            f"snapshot.debian.org and pass it with --package"
        )
    return next(folder.glob("*.deb"))


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, help="a .deb already at hand")
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write to (default: this one)")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            package = options.package or fetch(Path(scratch))
            root = Path(scratch) / "root"
            subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
            data = pack(root)
            licence = (root / f"usr/share/doc/{PACKAGE}/copyright").read_bytes()
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"corpus/build.py: {error}", file=sys.stderr)
        return 1
    (options.output / "python_docs.jsonl.zst").write_bytes(data)
    (options.output / "LICENCE.python_docs.txt").write_bytes(licence)
    print(f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
