"""Names of steps in YAML -> steps: `[normalise, language: {keep: [en]}]`.

A step's module is imported when it is named, so that a run pays only for what it uses.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import typing
from typing import Any, Dict, List, Tuple

from preprocess.pipeline import Step

STEPS: Dict[str, str] = {  # name in YAML: module:class
    "empty": "preprocess.clean.empty:Empty",
    "normalise": "preprocess.clean.normalise:Normalise",
    "licence": "preprocess.clean.licence:Licence",
    "language": "preprocess.clean.language:Language",
    "script": "preprocess.clean.script:Script",
    "length": "preprocess.clean.length:Length",
    "gopher_repetition": "preprocess.clean.gopher_repetition:GopherRepetition",
    "gopher_quality": "preprocess.clean.gopher_quality:GopherQuality",
    "c4": "preprocess.clean.c4:C4",
    "fineweb": "preprocess.clean.fineweb:FineWeb",
    "classifier": "preprocess.clean.classifier:Classifier",
    "protect": "preprocess.protect.scrub:Protect",
    "decontaminate": "preprocess.decontaminate:Decontaminate",
    "duplicates": "preprocess.dedup.documents:Duplicates",
    "near_duplicates": "preprocess.dedup.documents:NearDuplicates",
    "duplicate_lines": "preprocess.dedup.lines:DuplicateLines",
    "synonyms": "preprocess.augment.synonyms:Synonyms",
    "back_translation": "preprocess.augment.back_translation:BackTranslation",
}


def build(entries: List[Any]) -> List[Tuple[str, Step]]:
    """-> (unique name, step) in order. Raises ValueError for an unknown step or setting, with a near name."""
    built: List[Tuple[str, Step]] = []
    for entry in entries:
        name, settings = _read(entry)
        if name not in STEPS:
            raise ValueError(f"data.source.steps: no step {name!r}{_near(name, STEPS)}; there are {', '.join(STEPS)}")
        taken = sum(other.split("#")[0] == name for other, _ in built)
        built.append((f"{name}#{taken + 1}" if taken else name, _make(name, settings)))
    return built


def _read(entry: Any) -> Tuple[str, Dict[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, dict) and len(entry) == 1:
        name, settings = next(iter(entry.items()))
        if settings is None or isinstance(settings, dict):
            return name, settings or {}
    raise ValueError(f"data.source.steps: {entry!r} is not a step; write a name, or name: {{setting: value}}")


def _make(name: str, settings: Dict[str, Any]) -> Step:
    module, _, kind = STEPS[name].partition(":")
    step = getattr(importlib.import_module(module), kind)
    types = typing.get_type_hints(step)
    fields = {field.name: types[field.name] for field in dataclasses.fields(step)}
    for key, value in settings.items():
        if key not in fields:
            known = ", ".join(fields) or "none"
            raise ValueError(f"step {name} has no setting {key!r}{_near(key, fields)}; it has {known}")
        if not _is(value, fields[key]):
            raise ValueError(f"step {name}: {key}={value!r} is {type(value).__name__}, expected {_said(fields[key])}")
    try:
        made: Step = step(**settings)
        return made
    except TypeError as error:  # a setting without a default
        raise ValueError(f"step {name}: {str(error).split(') ', 1)[-1]}; give it as {name}: {{...}}") from None


def _is(value: Any, kind: Any) -> bool:
    """Of the types that settings have: bool, int, float, str, Optional, List and Dict of them."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Union:
        return any(_is(value, one) for one in inside)
    if origin is list:
        return isinstance(value, list) and all(_is(item, inside[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_is(k, inside[0]) and _is(v, inside[1]) for k, v in value.items())
    if kind is Any:
        return True
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _said(kind: Any) -> str:
    """A type as a person would say it."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Union:
        return " or ".join("null" if one is type(None) else _said(one) for one in inside)
    if origin in (list, dict):
        return f"a {origin.__name__}, each {_said(inside[-1])}"
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}.get(kind, str(kind))


def _near(name: str, known: Any) -> str:
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
