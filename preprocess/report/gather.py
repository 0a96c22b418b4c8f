"""A finished set -> what can be said of it, as plain data: the manifest's counts and one pass over the table.

Memory does not grow with the set; 10**8 rows take minutes.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict

import numpy as np

from preprocess.dataset import Dataset
from preprocess.manifest import Manifest
from preprocess.report import samples
from preprocess.report.counters import Groups, Lengths, Scores, Years

BY = ("source", "licence", "language", "file")
_SCORED = 1 << 20  # documents whose scores are looked at, in batches spread over the set


def facts(prefix: str) -> Dict[str, Any]:
    """Raises ValueError when the set is not complete."""
    data = Dataset(prefix)
    counted = _counted(data)
    texts, why_not = samples.kept(data)
    return {
        "name": Path(prefix).name,
        **_told(data.manifest),
        **counted,
        "samples": texts,
        "samples_missing": why_not,
        "dropped_samples": samples.dropped(prefix, data.manifest.dropped),
    }


def _told(made: Manifest) -> Dict[str, Any]:
    """By the manifest."""
    names = ("fingerprint", "created_by", "dtype", "documents", "sequences", "tokens", "text_bytes", "unknown_tokens")
    told = {name: getattr(made, name) for name in (*names, "read", "kept", "created", "unreadable", "dropped")}
    steps = [dataclasses.asdict(step) for step in made.steps]
    return {
        **told,
        "shards": len(made.shards),
        "inputs": {"files": len({part.path for part in made.inputs}), "bytes": _input_bytes(made)},
        "tokenizer": dataclasses.asdict(made.tokenizer),
        "steps": steps,
        "duplicates_removed": sum(sum(step.dropped.values()) for step in made.steps if "duplicates" in step.name),
        "augmented_share": made.created / made.documents,
    }


def _input_bytes(made: Manifest) -> int:
    """As stored."""
    return sum({part.path: part.bytes for part in made.inputs}.values())


def _counted(data: Dataset) -> Dict[str, Any]:
    groups, lengths, years, scores = {name: Groups() for name in BY}, Lengths(), Years(), Scores()
    every = max(1, -(-len(data) // _SCORED))
    for batch in data.batches(["token_count", *BY, "time"]):
        tokens = batch.column("token_count")
        for name, one in groups.items():
            one.add(batch.column(name), tokens)
        lengths.add(np.asarray(tokens))
        years.add(batch.column("time"))
    for number, batch in enumerate(data.batches(["scores"])):
        if number % every == 0:
            scores.add(batch.column("scores"))
    return {
        "by": {name: one.result() for name, one in groups.items()},
        "lengths": lengths.result(),
        "time": years.result(),
        "scores": scores.result(),
    }
