"""python -m benchmarks.corpus FOLDER: at least 100 MB of real text as FOLDER/corpus.jsonl, from Debian's packages.

Documentation, a manual in many languages, manual pages in eight. Nothing is installed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, Optional, Tuple

PACKAGES: Dict[str, Tuple[str, ...]] = {  # the endings of the files that hold their text
    "linux-doc-6.1": (".rst.txt",),
    "python3.11-doc": (".rst.txt",),
    "perl-doc": (".pod",),
    "gnome-user-docs": (".page",),
    "manpages-de": (".gz",),
    "manpages-fr": (".gz",),
    "manpages-ja": (".gz",),
    "manpages-ru": (".gz",),
    "manpages-zh": (".gz",),
    "manpages-es": (".gz",),
    "manpages-pl": (".gz",),
    "manpages-dev": (".gz",),
    "debian-reference-en": (".txt.gz",),
}


def build(folder: Path) -> Path:
    """Downloads what is not there. Raises RuntimeError, with apt's words, when a package cannot be had."""
    folder.mkdir(parents=True, exist_ok=True)
    path, temporary = folder / "corpus.jsonl", folder / "corpus.jsonl.tmp"
    if path.exists():
        return path
    with open(temporary, "w", encoding="utf-8") as file:
        for package, endings in PACKAGES.items():
            for name, text in documents(_extracted(package, folder), endings):
                record = {"id": f"{package}/{name}", "text": text, "source": package}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
    os.replace(temporary, path)
    return path


def documents(root: Path, endings: Tuple[str, ...]) -> Iterator[Tuple[str, str]]:
    """(name, text) of each file of text, in order of name."""
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or not path.is_file() or not path.name.endswith(endings):
            continue
        name, data = str(path.relative_to(root)), path.read_bytes()
        text = _decoded(gzip.decompress(data) if path.suffix == ".gz" else data)
        if text is None or not text.strip():
            continue
        yield name, text


def _extracted(package: str, folder: Path) -> Path:
    root = folder / "packages" / package
    if not root.exists():
        answer = subprocess.run(["apt-get", "download", "-q", package], cwd=folder, capture_output=True, text=True)
        if answer.returncode:
            raise RuntimeError(f"apt-get download {package}: {answer.stderr.strip()}")
        (archive,) = folder.glob(f"{package}_*.deb")
        partial = folder / "packages" / f"{package}.partial"
        partial.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg-deb", "-x", str(archive), str(partial)], check=True)
        os.replace(partial, root)
        archive.unlink()
    return root


def _decoded(data: bytes) -> Optional[str]:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    path = build(parser.parse_args().folder)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
