"""Files at an address (s3://, gs://, https://, memory:// ...), through fsspec and its plug-ins.

Keys and endpoints come from where the plug-in looks for them (environment, its own files), never from our settings.
"""

from __future__ import annotations

from typing import Any, BinaryIO, List, Tuple, cast


def open_file(path: str) -> BinaryIO:
    """Raises ValueError when the plug-in is missing."""
    system, name = _system(path)
    return cast(BinaryIO, system.open(name, "rb"))


def find(pattern: str) -> Tuple[List[str], bool]:
    """Addresses of the file, of all files that match a glob, or of all in a folder, by name; whether it is a folder."""
    system, name = _system(pattern)
    if system.isfile(name):
        return [pattern], False
    if system.isdir(name):
        return [system.unstrip_protocol(one) for one in sorted(system.find(name))], True
    found = system.glob(name) if any(mark in name for mark in "*?[") else []
    return [system.unstrip_protocol(one) for one in sorted(found) if system.isfile(one)], False


def size_and_stamp(path: str) -> Tuple[int, str]:
    """Bytes, and what changes with the content: the server's entity tag, else the time, else what fsspec tells."""
    system, name = _system(path)
    facts = system.info(name)
    if (size := facts.get("size")) is None:
        raise ValueError(f"{path}: its server does not tell how long it is; download it first")
    told = ("ETag", "etag", "LastModified", "last_modified", "mtime", "updated")
    version = next((facts[key] for key in told if facts.get(key)), None) or system.ukey(name)
    return size, f"{size}-{version}"


def _system(path: str) -> Tuple[Any, str]:
    import fsspec
    from fsspec.registry import known_implementations

    protocol = path.partition("://")[0]
    try:
        system, name = fsspec.core.url_to_fs(path)
    except ImportError as error:
        package = known_implementations.get(protocol, {}).get("class", "").partition(".")[0]
        remedy = "" if package in ("", "fsspec") else f"; pip install {package}"
        raise ValueError(f"{path}: {protocol}:// needs a plug-in of fsspec ({error}){remedy}") from None
    except ValueError as error:
        raise ValueError(
            f"{path}: {error}; addresses that fsspec knows start with s3://, gs://, https:// ..."
        ) from None
    return system, name
