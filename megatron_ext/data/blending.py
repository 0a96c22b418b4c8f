"""data.* of a run -> its sources and their weights, what it will see of each, and the fingerprint of all of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, List, Sequence

from megatron_ext.config.schema import Data, Run
from megatron_ext.data.packed import Packs, has_packs
from megatron_ext.data.samples import Blend, Sampler, Samples
from megatron_ext.data.source import Source


def blend(run: Run, which: str) -> Blend:
    """Raises ValueError for missing or damaged shards and for splits shorter than one sequence."""
    sources = [_sampler(run, which, place) for place in range(len(run.data.blend))]
    return Blend(sources, weights(run.data, sources))


def _sampler(run: Run, which: str, place: int) -> Sampler:
    source, length, seed = Source(run.data.blend[place]), run.model.seq_length, run.seed + place
    if has_packs(source.prefix):
        return Packs(source, run.data.split, which, length, seed)
    return Samples(source, run.data.split, which, length, seed, Path(run.data.cache or f"{run.root}/.index"))


def weights(data: Data, samples: Sequence[Sampler]) -> List[float]:
    """As given; or so that each source is seen for the given epochs; or tokens to the power of 1 / temperature."""
    if data.weights:
        return list(data.weights)
    if data.epochs:
        return [epochs * source.per_epoch for epochs, source in zip(data.epochs, samples)]
    return [source.tokens_per_epoch ** (1 / data.temperature) for source in samples]


def report(run: Run, mixed: Blend, number: int) -> Dict[str, Any]:
    """Of the first `number` samples: what is seen of each source, and how many sources that is worth.

    effective_sources: the exponential of the entropy of the shares (Hill 1973); simpson: the probability that two
    samples are of different sources.
    """
    rows: List[Dict[str, Any]] = []
    for source, share, count in zip(mixed.sources, mixed.mixture.shares, mixed.mixture.counts(number)):
        rows.append(
            {
                "source": source.source.prefix,
                "tokens": source.tokens_per_epoch,
                "samples_per_epoch": source.per_epoch,
                "share": share,
                "samples": count,
                "epochs": count / source.per_epoch,
                "repeated": max(0, count - source.per_epoch) / count if count else 0.0,
            }
        )
    seen = [row["samples"] / number for row in rows if row["samples"]]
    return {
        "samples": number,
        "tokens": number * run.model.seq_length,
        "sources": rows,
        "without_a_sample": mixed.without(number),
        "effective_sources": math.exp(-sum(share * math.log(share) for share in seen)),
        "simpson": 1 - sum(share * share for share in seen),
    }


def fingerprint(run: Run, mixed: Blend) -> List[Dict[str, Any]]:
    """What decides which tokens a run sees, a source each: a checkpoint keeps it, and a resumed run compares."""
    return [
        {
            "prefix": source.source.prefix,
            "fingerprint": source.source.fingerprint(),
            "share": share,
            "split": run.data.split,
            "seed": run.seed + place,
        }
        for place, (source, share) in enumerate(zip(mixed.sources, mixed.mixture.shares))
    ]
