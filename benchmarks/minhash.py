"""near_duplicates against datatrove's MinHash, on copies that were planted: `python -m benchmarks.minhash [--check]`.

English documents of 0.5 to 20 kB from benchmarks/corpus.py, 15 MB of them, then COPIES for each share of edits: copies
in which each word is replaced with that probability by a word of the corpus (seed 1). Both tools read the same file and
name what they remove; 14 bands of 8 over word 5-grams. Rates are of processor time without imports. Then 1 GB of text
in which a third of the words is new in each round, for the memory.

Recall: the share of planted copies that is removed; it must be datatrove's, less two standard errors of the difference.
Precision: the share of removed documents that have at least half of their word 5-grams (Jaccard) in common with another
document, by plain sets.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set

from benchmarks import corpus
from benchmarks.measure import run

ROOT = Path(__file__).resolve().parents[1]
SEED, COPIES, TEXT_BYTES = 1, 400, 15_000_000
EDITS, JUDGED = (0.0, 0.01, 0.03, 0.05, 0.2), (0.0, 0.01, 0.03, 0.05)  # shares of the words
RATIO, PRECISION, MEMORY_MB, LARGE_BYTES = 10.0, 0.99, 200, 1_000_000_000
ENGLISH = ("linux-doc-6.1", "python3.11-doc", "perl-doc", "manpages-dev")
BATCH_BYTES, PART_BYTES = 1 << 20, 64 << 20  # as the pipeline has them


@dataclass(frozen=True)
class Outcome:
    cpu_s: float
    peak_mb: float
    removed: List[str]


def plant(source: Path, path: Path) -> None:
    """Originals first: id "o<n>"; then "<share>/<n>/<original>"."""
    rng, originals, size = random.Random(SEED), [], 0
    for record in _records(source):
        if record["source"] in ENGLISH and 500 <= len(record["text"]) <= 20_000:
            originals.append(record["text"])
    rng.shuffle(originals)
    words = sorted({word for text in originals[:500] for word in text.split() if word.isalpha()})
    with open(path, "w", encoding="utf-8") as file:
        for number, text in enumerate(originals):
            size += len(text)
            if size > TEXT_BYTES:
                break
            file.write(json.dumps({"id": f"o{number}", "text": text}) + "\n")
        for share in EDITS:
            for copy, original in enumerate(rng.sample(range(number), COPIES)):
                edited = _edited(originals[original], share, words, rng)
                file.write(json.dumps({"id": f"{share}/{copy}/{original}", "text": edited}) + "\n")


def _edited(text: str, share: float, words: List[str], rng: random.Random) -> str:
    return re.sub(r"\S+", lambda word: rng.choice(words) if rng.random() < share else word[0], text)


def enlarge(source: Path, path: Path) -> None:
    """1 GB in which no two texts are alike but those that were: every third word gets the number of the round."""
    texts = [record["text"].split() for record in _records(source)]
    written = turn = 0
    with open(path, "w", encoding="utf-8") as file:
        while written < LARGE_BYTES:
            for number, words in enumerate(texts):
                text = " ".join(f"{word}{turn}x" if place % 3 == 0 else word for place, word in enumerate(words))
                written += file.write(json.dumps({"id": f"{turn}/{number}", "text": text}) + "\n")
            turn += 1


def _records(path: Path) -> Iterator[Dict[str, str]]:
    with open(path, encoding="utf-8") as file:
        yield from map(json.loads, file)


# --- ours, in a process of its own -----------------------------------------------------------------------------------


def ours(source: Path, work: Path) -> None:
    """Parts, sketches, searches and decision as the pipeline does them, in one process."""
    from megatron_ext.config.schema import Source
    from preprocess.dedup import read_removed
    from preprocess.steps import build
    from preprocess.work import Work

    comparison: Any = build(["near_duplicates"])[0][1]
    sketch = comparison.open()
    sketch([])
    began = sum(os.times()[:4])
    parts = sum(1 for _ in _parts(source, Work(work), sketch))
    round = Work(work).round(0, parts, Source(output=str(work / "out")))
    for task in range(comparison.searches):
        comparison.search(task, round)
    comparison.decide(round)
    cpu, removed = sum(os.times()[:4]) - began, []
    for part in range(parts):
        ids = _ids(round.documents(part))
        gone = read_removed(round.removed(part)).slice(0, len(ids))
        removed += [ids[place] for place in gone.documents]
    (work / "outcome.json").write_text(json.dumps({"cpu_s": cpu, "removed": removed}))


def _parts(source: Path, work: Any, sketch: Any) -> Iterator[int]:
    import numpy as np

    from preprocess import store
    from preprocess.document import Document

    with open(source, "rb") as file:
        number = 0
        while lines := file.readlines(BATCH_BYTES):
            work.pass_folder(0).mkdir(parents=True, exist_ok=True)
            written = first = 0
            with (
                store.Writer(work.part(0, number, "documents"), store.SCHEMA) as documents,
                open(work.part(0, number, "owners"), "wb") as owners,
                open(work.part(0, number, "values"), "wb") as values,
            ):
                while lines and written < PART_BYTES:
                    records = [json.loads(line) for line in lines]
                    batch = [Document(one["text"], one["id"], {}, "", 1) for one in records]
                    found = sketch(batch)
                    documents.add(store.to_batch(batch))
                    (found.owners + np.uint32(first)).astype("<u4").tofile(owners)
                    found.values.tofile(values)
                    first, written = first + len(batch), written + sum(map(len, lines))
                    lines = file.readlines(BATCH_BYTES) if written < PART_BYTES else []
            yield number
            number += 1


def _ids(path: Path) -> List[str]:
    from preprocess import store

    file = store.open_file(path)
    return [one for n in range(file.num_record_batches) for one in file.get_batch(n).column("id").to_pylist()]


# --- the comparison --------------------------------------------------------------------------------------------------


def measured(command: List[str], work: Path) -> Outcome:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    cost = run([*command, str(work)], ROOT, work / "log")
    told = json.loads((work / "outcome.json").read_text())
    shutil.rmtree(work)
    return Outcome(told["cpu_s"], cost.peak_mb, told["removed"])


def recall(outcome: Outcome) -> Dict[float, float]:
    found = Counter(one.split("/")[0] for one in outcome.removed if "/" in one)
    return {share: found[str(share)] / COPIES for share in EDITS}


def precision(outcome: Outcome, path: Path) -> float:
    """1.0 when nothing was removed."""
    shingles: Dict[str, Set[int]] = {}
    having: Dict[int, List[str]] = defaultdict(list)
    for record in _records(path):
        words = re.findall(r"\w+", record["text"].lower())
        shingles[record["id"]] = own = {hash(tuple(words[n : n + 5])) for n in range(max(len(words) - 4, 1))}
        for shingle in own:
            having[shingle].append(record["id"])
    right = 0
    for id in outcome.removed:
        common = Counter(other for shingle in shingles[id] for other in having[shingle] if other != id)
        sizes = ((n, len(shingles[id]) + len(shingles[other]) - n) for other, n in common.items())
        right += any(n >= union / 2 for n, union in sizes)
    return right / len(outcome.removed) if outcome.removed else 1.0


class Table:
    def __init__(self) -> None:
        self.missed: List[str] = []

    def row(self, name: str, value: str, bar: str = "", holds: Optional[bool] = None) -> None:
        mark = {True: "ok", False: "MISSED", None: ""}[holds]
        print(f"{name:<44} {value:>34}  {bar:<28} {mark}", flush=True)
        if holds is False:
            self.missed.append(name)


def report(table: Table, name: str, outcome: Outcome, path: Path, size: float) -> float:
    """-> the precision."""
    right, rates = precision(outcome, path), recall(outcome)
    table.row(f"{name}: MB per CPU-s, peak memory", f"{size / outcome.cpu_s:.2f}, {outcome.peak_mb:.0f} MB")
    table.row(f"{name}: recall at {_percent()} % edits", " ".join(f"{rates[share]:.3f}" for share in JUDGED))
    table.row(f"{name}: precision, removed", f"{right:.4f}, {len(outcome.removed)}")
    return right


def planted(table: Table, data: Path, peers: Path) -> None:
    folder = data / "minhash"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "planted.jsonl"
    plant(corpus.build(data), path)
    lengths = [len(record["text"].encode()) for record in _records(path)]
    size = sum(lengths) / 1e6
    table.row("input", f"{size:.1f} MB, {len(lengths)} documents")
    mine = measured(_ours(path), folder / "ours")
    right = report(table, "near_duplicates", mine, path, size)
    table.row("precision", f"{right:.4f}", f">= {PRECISION}", right >= PRECISION)
    python, script = peers / "datatrove/bin/python", str(ROOT / "benchmarks/datatrove_minhash.py")
    if not python.exists():
        table.row("datatrove", "not installed", "recall, rate", False)
        return
    theirs = measured([str(python), script, str(folder), path.name], folder / "datatrove")
    report(table, "datatrove", theirs, path, size)
    ratio = theirs.cpu_s / mine.cpu_s
    table.row("MB per CPU-s: ours over datatrove's", f"{ratio:.1f} x", f">= {RATIO:g} x", ratio >= RATIO)
    own, bars = recall(mine), {share: rate - _margin(rate) for share, rate in recall(theirs).items()}
    told, least = (" ".join(f"{rates[share]:.3f}" for share in JUDGED) for rates in (own, bars))
    holds = all(own[share] >= bars[share] for share in JUDGED)
    table.row(f"recall at {_percent()} % edits", told, f">= {least}", holds)


def _percent() -> str:
    return "/".join(f"{100 * share:g}" for share in JUDGED)


def _margin(rate: float) -> float:
    """Two standard errors of the difference of two shares."""
    return 2 * float((2 * rate * (1 - rate) / COPIES) ** 0.5)


def large(table: Table, data: Path) -> None:
    folder = data / "minhash"
    path = folder / "large.jsonl"
    if not path.exists():
        enlarge(folder / "planted.jsonl", path)
    size, outcome = path.stat().st_size / 1e6, measured(_ours(path), folder / "ours")
    table.row(f"{size:.0f} MB: MB per CPU-s, removed", f"{size / outcome.cpu_s:.1f}, {len(outcome.removed)}")
    within = outcome.peak_mb <= MEMORY_MB
    table.row(f"{size:.0f} MB: peak memory", f"{outcome.peak_mb:.0f} MB", f"<= {MEMORY_MB} MB", within)
    path.unlink()


def _ours(path: Path) -> List[str]:
    return [sys.executable, "-m", "benchmarks.minhash", "--ours", str(path)]


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / ".bench", help="corpus and outputs (default: %(default)s)")
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers", help="as benchmarks/peers.sh made it")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    parser.add_argument("--ours", nargs=2, type=Path, metavar=("INPUT", "WORK"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ours:
        ours(*options.ours)
        return 0
    table = Table()
    planted(table, options.data.resolve(), options.peers.resolve())
    large(table, options.data.resolve())
    print(f"verdict: {'all bars held' if not table.missed else 'missed: ' + '; '.join(table.missed)}")
    return 1 if options.check and table.missed else 0


if __name__ == "__main__":
    sys.exit(main())
