"""llm-preprocess against bare loops and public tools: `python -m benchmarks.preprocess [--check]`.

Some 150 MB of real text (benchmarks/corpus.py), all tools on the same file, processor seconds with children. Rates are
steady: what each needs for one document is taken off. Tokenizers: SentencePiece BPE and byte-level BPE of 32,000 ids,
trained here with a fixed seed. Peers are installed by benchmarks/peers.sh; one that is not there is a missed bar.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional

from benchmarks import corpus
from benchmarks.measure import Cost, run

ROOT = Path(__file__).resolve().parents[1]
VOCABULARY = 32000
PAIRS = 5  # of runs with one and two workers
# Those of configs/data/clean.yaml that have a counterpart in benchmarks/datatrove_pipeline.py.
STEPS = "[gopher_repetition,gopher_quality,c4,fineweb,protect,near_duplicates]"


@dataclass
class Table:
    """Rows that were measured; a bar that is missed is remembered."""

    missed: List[str] = field(default_factory=list)

    def row(self, name: str, value: str, bar: str = "", holds: Optional[bool] = None) -> None:
        mark = {True: "ok", False: "MISSED", None: ""}[holds]
        print(f"{name:<58} {value:>26}  {bar:<16} {mark}", flush=True)
        if holds is False:
            self.missed.append(name)

    def ratio(self, name: str, ratio: float, least: float) -> None:
        self.row(name, f"{ratio:.2f} x", f">= {least:g} x", ratio >= least)


class Bench:
    def __init__(self, data: Path, peers: Path, megabytes: int) -> None:
        self.data, self.peers, self.table = data.resolve(), peers.resolve(), Table()
        self.log = self.data / "benchmark.log"
        self.input = _cut(corpus.build(self.data), megabytes)
        self.one = self._first_record()
        with open(self.input, "rb") as lines:
            self.megabytes = sum(len(json.loads(line)["text"].encode()) for line in lines) / 1e6

    def _first_record(self) -> Path:
        path = self.data / "one.jsonl"
        with open(self.input, "rb") as file:
            path.write_bytes(file.readline())
        return path

    def ours(self, name: str, source: Path, kind: str, tokenizer: Path, **settings: object) -> Cost:
        shutil.rmtree(self.data / f"{name}.work", ignore_errors=True)
        overrides = {
            "inputs": f"[{source}]",
            "output": str(self.data / name),
            "workers": 1,
            "keep_work": False,
            **settings,
        }
        fast = overrides.pop("fast", True)
        command = [sys.executable, "-m", "preprocess.cli", "data=demo", "--force", "--no-report"]
        command += [f"data.source.{key}={value}" for key, value in overrides.items()]
        command += [f"data.tokenizer.kind={kind}", f"data.tokenizer.path={tokenizer}", f"data.tokenizer.fast={fast}"]
        size = 0 if tokenizer.exists() else VOCABULARY
        return run([*command, f"data.tokenizer.train_vocab_size={size}"], ROOT, self.log)

    def steady(self, name: str, kind: str, tokenizer: Path, **settings: object) -> float:
        """Processor seconds beyond those for one document."""
        start = self.ours(f"{name}-one", self.one, kind, tokenizer, **settings).cpu_s
        return self.ours(name, self.input, kind, tokenizer, **settings).cpu_s - start

    def bare(self, library: str, tokenizer: Path) -> float:
        out = self.data / "bare.bin"
        python = self.peers / "tokenizers/bin/python"
        command = [str(python if python.exists() else sys.executable), str(ROOT / "benchmarks/bare_loop.py")]
        run([*command, library, str(self.input), str(tokenizer), str(out)], ROOT, self.log)
        return float(json.loads(self.log.read_text().splitlines()[-1])["cpu_s"])

    def megatron(self, script: str, kind: str, tokenizer: Path, prefix: str) -> Optional[float]:
        """Steady processor seconds of Megatron-LM's script; its output is <prefix>_text_document."""
        source = self.peers / "Megatron-LM"
        if not (source / script).is_file():
            return None
        path = f"{self.peers / 'triton'}{os.pathsep}{source}"
        options = ["--tokenizer-type", kind, "--tokenizer-model", str(tokenizer), "--append-eod"]
        options += ["--use-gigatoken"] if script.endswith("fast.py") else ["--workers", "1"]
        costs = []
        for text in (self.one, self.input):
            files = ["--input", str(text), "--output-prefix", str(self.data / prefix)]
            shim = [sys.executable, str(ROOT / "benchmarks/megatron_script.py"), script]
            costs.append(
                run([*shim, *files, *options], source, self.log, {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}).cpu_s
            )
        return costs[1] - costs[0]


def _cut(path: Path, megabytes: int) -> Path:
    """Every n-th document, about so many megabytes in all; 0: all."""
    if not megabytes:
        return path
    part = path.with_name(f"part-{megabytes}.jsonl")
    step = max(1, path.stat().st_size // (megabytes * 1_000_000))
    with open(path, "rb") as file, open(part, "wb") as out:
        out.writelines(line for number, line in enumerate(file) if number % step == 0)
    return part


def tokenise(bench: Bench) -> None:
    """Against the bare loop of each library, and Megatron-LM's scripts."""
    table, size = bench.table, bench.megabytes
    tokenizers = {"sentencepiece": bench.data / "sp32k.model", "huggingface": bench.data / "bpe32k/tokenizer.json"}
    for kind, path in tokenizers.items():
        if not path.exists():
            bench.ours("training", bench.input, kind, path)
    says = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}  # what transformers asks for
    (tokenizers["huggingface"].parent / "tokenizer_config.json").write_text(json.dumps(says))
    start = bench.ours("start", bench.one, "sentencepiece", tokenizers["sentencepiece"], fast=False)
    table.row("start-up: one document", f"{start.cpu_s:.2f} CPU-s", "<= 1.5 CPU-s", start.cpu_s <= 1.5)
    rates: Dict[str, float] = {}
    for name, library, kind, fast, least in (
        ("SentencePiece, exact library", "sentencepiece", "sentencepiece", False, 0.9),
        ("byte-level BPE, exact library", "tokenizers", "huggingface", False, 0.9),
        ("byte-level BPE, gigatoken", "gigatoken", "huggingface", True, 0.6),
    ):
        ours, bare = bench.steady(library, kind, tokenizers[kind], fast=fast), bench.bare(library, tokenizers[kind])
        rates[library] = size / ours
        table.row(f"{name}: ours, bare loop", f"{size / ours:.1f}, {size / bare:.1f} MB/CPU-s")
        table.ratio(f"{name}: share of the bare loop", bare / ours, least)
    fast_sp = size / bench.steady("sp-fast", "sentencepiece", tokenizers["sentencepiece"])
    table.row("SentencePiece, gigatoken", f"{fast_sp:.1f} MB/CPU-s")
    _against_megatron(bench, tokenizers, rates)


def _against_megatron(bench: Bench, tokenizers: Dict[str, Path], rates: Dict[str, float]) -> None:
    table, size = bench.table, bench.megabytes
    rows = [  # script, kind of tokenizer in their words and in ours, which of our rates, least ratio
        ("preprocess_data.py", "SentencePieceTokenizer", "sentencepiece", "sentencepiece", 0),
        ("preprocess_data.py", "HuggingFaceTokenizer", "huggingface", "gigatoken", 10),
        ("preprocess_data_fast.py", "HuggingFaceTokenizer", "huggingface", "gigatoken", 4),
    ]
    for script, kind, ours_kind, ours, least in rows:
        name = f"{script}, {ours_kind}"
        path = tokenizers[ours_kind]
        cpu = bench.megatron(
            f"tools/{script}", kind, path.parent if ours_kind == "huggingface" else path, f"megatron-{ours}"
        )
        if cpu is None:
            table.row(f"Megatron-LM {name}", "not installed", "to be measured", False)
            continue
        table.row(f"Megatron-LM {name}", f"{size / cpu:.1f} MB/CPU-s")
        if least:
            table.ratio(f"ours by gigatoken against {name}, steady", rates[ours] / (size / cpu), least)
        equal = all(
            filecmp.cmp(bench.data / f"{ours}{suffix}", bench.data / f"megatron-{ours}_text_document{suffix}", False)
            for suffix in (".bin", ".idx")
        )
        table.row(f"bytes of .bin and .idx equal to {name}", str(equal), "True", equal)


def memory(bench: Bench) -> None:
    """Whatever the input: the corpus, and seven times the corpus."""
    table, tokenizer = bench.table, bench.data / "bpe32k/tokenizer.json"
    large = bench.data / "large.jsonl"
    if not large.exists():
        with open(large, "wb") as out:
            for _ in range(7):
                with open(bench.input, "rb") as file:
                    shutil.copyfileobj(file, out, 1 << 22)
    for name, source, steps, limit in (
        ("tokenise, the corpus", bench.input, "[]", 500),
        ("tokenise, seven times the corpus", large, "[]", 500),
        ("near_duplicates, seven times the corpus", large, "[near_duplicates]", 500),
    ):
        cost = bench.ours("memory", source, "huggingface", tokenizer, steps=steps)
        size = source.stat().st_size / 1e6
        table.row(
            f"peak memory: {name} ({size:.0f} MB)", f"{cost.peak_mb:.0f} MB", f"<= {limit} MB", cost.peak_mb <= limit
        )
    large.unlink()


def workers(bench: Bench) -> None:
    """Wall time of one worker over that of two, in pairs; the best pair, since the machine may have other work."""
    ratios = []
    for _ in range(PAIRS):
        one, two = (
            bench.ours("pair", bench.input, "sentencepiece", bench.data / "sp32k.model", workers=n, fast=False).wall_s
            for n in (1, 2)
        )
        ratios.append(one / two)
    bench.table.row("two workers against one, all pairs", " ".join(f"{ratio:.2f}" for ratio in ratios))
    bench.table.ratio("two workers against one, best pair", max(ratios), 1.7)


def pipeline(bench: Bench) -> None:
    """Filters, scrubbing, near-duplicates, tokens: against datatrove's steps of the same names."""
    tokenizer = bench.data / "bpe32k/tokenizer.json"
    ours = bench.ours("pipeline", bench.input, "huggingface", tokenizer, steps=STEPS).cpu_s
    size = bench.megabytes
    bench.table.row("whole pipeline: ours", f"{size / ours:.2f} MB/CPU-s")
    python = bench.peers / "datatrove/bin/python"
    if not python.exists():
        bench.table.row("whole pipeline: datatrove", "not installed", "to be measured", False)
        return
    folder = bench.data / "datatrove"
    shutil.rmtree(folder, ignore_errors=True)
    script = str(ROOT / "benchmarks/datatrove_pipeline.py")
    theirs = run(
        [str(python), script, str(bench.data), bench.input.name, str(folder), str(tokenizer)], ROOT, bench.log
    ).cpu_s
    bench.table.row("whole pipeline: datatrove", f"{size / theirs:.2f} MB/CPU-s")
    bench.table.ratio("whole pipeline: ours against datatrove", theirs / ours, 8)


SECTIONS = {"tokenise": tokenise, "memory": memory, "workers": workers, "pipeline": pipeline}


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / ".bench", help="corpus and outputs (default: %(default)s)")
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers", help="as benchmarks/peers.sh made it")
    parser.add_argument("--megabytes", type=int, default=0, help="a run over part of the corpus (default: all of it)")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="some of the sections")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args(arguments)
    bench = Bench(options.data, options.peers, options.megabytes)
    bench.table.row("input", f"{bench.megabytes:.1f} MB of text")
    for name in options.only or SECTIONS:
        SECTIONS[name](bench)
    missed = bench.table.missed
    print(f"verdict: {'all bars held' if not missed else 'missed: ' + '; '.join(missed)}")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
