"""What data.source.inputs names -> files: files, globs, folders, folders of Hugging Face datasets, remote addresses.

Files come in the order of the inputs, those of one glob or folder by name. In a folder nothing is passed over but
hidden files and what is known to lie beside data; the .arrow files of a saved dataset are those that its state.json
lists, because results of `map` may lie there too.
"""

from __future__ import annotations

import glob
import json
import os
from collections import Counter
from pathlib import Path
from typing import List, Sequence

from preprocess.readers import remote
from preprocess.readers.chunk import Input
from preprocess.readers.formats import COMPRESSED, FORMATS, ending, is_remote

_BESIDE = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "_success", "_metadata")
_LEGAL = ("license", "licence", "copying", "notice")


def resolve(inputs: Sequence[str]) -> List[Input]:
    """Raises ValueError for what is missing, matches nothing, is named twice, or is of an unknown format."""
    if not inputs:
        raise ValueError("data.source.inputs is empty; name files, globs of them or folders")
    files = [file for pattern in inputs for file in _files(pattern.removeprefix("file://"))]
    unknown = [file for file in files if not ending(file)]
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise ValueError(
            f"data.source.inputs: cannot tell the format of {', '.join(unknown[:3])}{more}; names must end in one of "
            f"{', '.join(FORMATS)}, then perhaps (not tables) in one of {', '.join(COMPRESSED)}; "
            f"leave others out with a glob"
        )
    real = [file if is_remote(file) else os.path.realpath(file) for file in files]
    times = Counter(real)
    if twice := sorted({file for file, path in zip(files, real) if times[path] > 1}):
        raise ValueError(f"data.source.inputs names {', '.join(twice)} more than once; correct the globs")
    return [_input(file) for file in files]


def _files(pattern: str) -> List[str]:
    if is_remote(pattern):
        found, is_folder = remote.find(pattern)
        below = pattern.rstrip("/").count("/") + 1
        found = [one for one in found if not is_folder or _is_data(one.split("/")[below:])]
    elif os.path.isdir(pattern):
        found = _folder(pattern)
    else:
        found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        found = found if found == [pattern] else [one for one in found if not os.path.isdir(one)]
    if not found:
        near = (
            f"relative to {os.getcwd()}" if not os.path.isabs(pattern) and not is_remote(pattern) else "no data there"
        )
        raise ValueError(f"data.source.inputs: no file matches {pattern!r} ({near})")
    return found


def _folder(folder: str) -> List[str]:
    splits = Path(folder, "dataset_dict.json")
    if splits.exists() and len(names := json.loads(splits.read_bytes()).get("splits", [])) > 1:
        raise ValueError(
            f"data.source.inputs: {folder} is a dataset of the splits {', '.join(names)}, of which some are for "
            f"testing; name the wanted, as {os.path.join(folder, names[0])}"
        )
    inside = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    found = [path for path in inside if _is_data(path.relative_to(folder).parts) and _is_listed(path)]
    for state in (path for path in inside if path.name == "state.json"):
        _check_complete(state)
    return [os.path.join(folder, str(path.relative_to(folder))) for path in found]


def _is_data(parts: Sequence[str]) -> bool:
    """Of a path inside a folder."""
    name = parts[-1].lower()
    beside = name.endswith(".md") or name in _BESIDE or name.partition(".")[0] in _LEGAL
    return not beside and not any(part.startswith(".") for part in parts)


def _data_files(state: Path) -> List[str]:
    """Of a dataset that `save_to_disk` wrote."""
    listed = json.loads(state.read_bytes()).get("_data_files")
    return [one["filename"] for one in listed] if isinstance(listed, list) else []


def _is_listed(path: Path) -> bool:
    state = path.with_name("state.json")
    return path.suffix != ".arrow" or not state.exists() or path.name in _data_files(state)


def _check_complete(state: Path) -> None:
    for name in _data_files(state):
        if not state.with_name(name).exists():
            raise ValueError(f"{state.with_name(name)} is missing, though {state} lists it; get the dataset again")


def _input(file: str) -> Input:
    if is_remote(file):
        return Input(file, *remote.size_and_stamp(file))
    facts = os.stat(file)
    if not os.path.isfile(file):
        raise ValueError(f"data.source.inputs: {file} is not a file; it must be one that can be read twice")
    return Input(file, facts.st_size, f"{facts.st_size}-{facts.st_mtime_ns}")
