"""python -m preprocess.merge_shards A B --output C: finished sets -> one shard with all their documents, in this order.

Tokens are widened to the widest dtype of them; table, mask, counts and the documents set aside are joined too. Before
anything is written each set is verified, and all must be of one tokenizer and one frame (BOS, EOD).
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from megatron_ext.config.rundir import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from preprocess import manifest, report, verify, work
from preprocess.dataset import BATCH_ROWS, labelled, named, open_table
from preprocess.manifest import Manifest, StepReport
from preprocess.merge import ShardSet, publish
from preprocess.metadata import DESCRIPTION
from preprocess.parts import PLACES
from preprocess.shards import Shard
from preprocess.staging import held

_ASIDE = ".dropped.jsonl.zst"
_TOKENS = 1 << 22  # held in memory at a time, unless a document has more
_SAME = ("append_eod", "prepend_bos", "eod_id", "bos_id")


def merge(prefixes: Sequence[str], output: str) -> Manifest:
    """Raises ValueError, with nothing written, for sets that are damaged or do not belong together."""
    sets = _checked(prefixes, output)
    folder = work.of(output).folder
    staged = folder / "merged"
    with held(folder, output):
        try:
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir()
            dtype = np.result_type(*(np.dtype(one.dtype) for one in sets))
            with ShardSet(staged, Path(output).name, dtype, 0, labelled(sets[0])) as shards:
                for prefix, one in zip(prefixes, sets):
                    for member in one.prefixes(prefix):
                        _copy(member, shards, labelled(one))
            _join_aside(prefixes, staged / f"{Path(output).name}{_ASIDE}")
            made = _manifest(prefixes, sets, shards)
            publish(staged, output, made)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return made


def _checked(prefixes: Sequence[str], output: str) -> List[Manifest]:
    sets = [manifest.read(prefix) for prefix in prefixes]
    _check_output(prefixes, sets, Path(output))
    for prefix in prefixes:
        if found := next(verify.problems(prefix), ""):
            raise ValueError(f"{prefix} is not sound: {found}")
    first = sets[0]
    for prefix, one in zip(prefixes[1:], sets[1:]):
        if one.tokenizer.sha256 != first.tokenizer.sha256:
            raise ValueError(
                f"{prefixes[0]} was made with {first.tokenizer.path} and {prefix} with {one.tokenizer.path}, another "
                f"tokenizer, so that equal ids mean different texts; make one of them again"
            )
        for name in _SAME:
            if getattr(one, name) != getattr(first, name):
                said = f"{name} {getattr(first, name)}, {prefix} {getattr(one, name)}"
                raise ValueError(f"{prefixes[0]} has {said}; make one of them again")
        if labelled(one) != labelled(first):
            raise ValueError(f"of {prefixes[0]} and {prefix} one has a loss mask and one has not; keep them apart")
    twice = [prefix for prefix, one in zip(prefixes, sets) if [o.fingerprint for o in sets].count(one.fingerprint) > 1]
    if twice:
        raise ValueError(f"{twice[0]} and {twice[1]} hold the same tokens; leave one out, or weigh it in data.blend")
    return sets


def _check_output(prefixes: Sequence[str], sets: Sequence[Manifest], output: Path) -> None:
    """Publishing replaces the output's older files, numbered ones too: none of the sets may be among them."""
    if output.is_dir():
        raise ValueError(f"--output {output} is a folder; give a prefix inside it, as {output}/all")
    members = [member for prefix, one in zip(prefixes, sets) for member in (prefix, *one.prefixes(prefix))]
    for member in map(Path, members):
        if member.parent.resolve() == output.parent.resolve() and re.fullmatch(
            rf"{re.escape(output.name)}(-\d{{5}})?", member.name
        ):
            raise ValueError(f"--output {output} would replace {member}, which is to be merged; choose another name")


def _copy(prefix: str, shards: ShardSet, masked: bool) -> None:
    shard, table = Shard(prefix), open_table(prefix)
    first = 0
    for rows in table.iter_batches(BATCH_ROWS, columns=DESCRIPTION.names, use_threads=False):
        rows = rows.select(DESCRIPTION.names)
        starts = shard.starts(first, first + len(rows))
        bounds = np.asarray(shard.boundaries[first : first + len(rows) + 1])
        begin = 0
        while begin < len(rows):  # as many documents as are some tokens together
            end = max(begin + 1, int(np.searchsorted(starts, starts[begin] + _TOKENS, side="right")) - 1)
            tokens = shard.tokens[starts[begin] : starts[end]].astype(shards.dtype, copy=False)
            lengths = np.asarray(shard.lengths[bounds[begin] : bounds[end]])
            shards.add(tokens, lengths, np.diff(bounds[begin : end + 1]), rows.slice(begin, end - begin), 0)
            begin = end
        first += len(rows)
    if masked:
        packs = np.diff(np.fromfile(f"{prefix}.packs", "<i8"))
        shards.add_labels(np.memmap(f"{prefix}.mask", np.uint8, "r"), packs)


def _join_aside(prefixes: Sequence[str], path: Path) -> None:
    """Frames of zstd may follow each other in a file."""
    if found := [Path(prefix + _ASIDE) for prefix in prefixes if Path(prefix + _ASIDE).exists()]:
        with open(path, "wb") as file:
            for one in found:
                with open(one, "rb") as part:
                    shutil.copyfileobj(part, file)


def _manifest(prefixes: Sequence[str], sets: Sequence[Manifest], shards: ShardSet) -> Manifest:
    """Counts add up; what was the same stays; of what each was made is told in settings.merged."""
    summed = ("documents", "sequences", "tokens", "text_bytes", "unknown_tokens", "read", "kept", "created")
    counts = {name: sum(getattr(one, name) for one in sets) for name in (*summed, "unreadable")}
    dropped = Counter[str]()
    for one in sets:
        dropped.update(one.dropped)
    made_of = [
        {"prefix": prefix, "fingerprint": one.fingerprint, "created_by": one.created_by, "settings": one.settings}
        for prefix, one in zip(prefixes, sets)
    ]
    code = manifest.code_digest()
    return replace(
        sets[0],
        **counts,
        fingerprint=shards.fingerprint,
        stamp=manifest.digest("merged", [one.stamp for one in sets], code),
        created_by={**sets[0].created_by, "code_sha256": code},
        settings={**sets[0].settings, "merged": made_of},
        dtype=shards.dtype.name,
        unreadable_places=[place for one in sets for place in one.unreadable_places][:PLACES],
        dropped=dict(sorted(dropped.items())),
        steps=_steps(sets),
        inputs=[part for one in sets for part in one.inputs],
        shards=shards.shards,
    )


def _steps(sets: Sequence[Manifest]) -> List[StepReport]:
    """One a step and its settings, in order of appearance."""
    found: Dict[Tuple[str, str], StepReport] = {}
    for step in [step for one in sets for step in one.steps]:
        key = (step.name, manifest.digest(step.settings))
        before = found.get(key, StepReport(step.name, step.settings, {}, {}))
        sums: Dict[str, Any] = {
            kind: dict(sorted((Counter(getattr(before, kind)) + Counter(getattr(step, kind))).items()))
            for kind in ("changed", "dropped")
        }
        found[key] = replace(before, **sums)
    return list(found.values())


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m preprocess.merge_shards", description=__doc__)
    parser.add_argument("prefix", nargs="+", type=named, help="of finished sets, as runs/data/mine/web")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="of the shard to be made")
    options = parser.parse_args(arguments)
    try:
        made = merge(options.prefix, options.output)
        report.write(options.output)
    except ValueError as error:
        print(f"preprocess.merge_shards: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except OSError as error:
        print(f"preprocess.merge_shards: {error}", file=sys.stderr)
        return EXIT_FAILED
    print(f"{options.output}: {made.documents:,} documents, {made.tokens:,} tokens of {made.dtype}")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
