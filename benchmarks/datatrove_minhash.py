"""datatrove's MinHash de-duplication in its four stages, run by datatrove's own interpreter (benchmarks/peers.sh).

python datatrove_minhash.py INPUT_FOLDER FILE WORK: 14 bands of 8, word 5-grams, its defaults. One task: one process.
WORK/outcome.json tells the processor seconds without imports, and the ids of the removed documents.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, List


def main() -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter
    from datatrove.utils.word_tokenizers import load_word_tokenizer

    folder, file, work = sys.argv[1:]
    load_word_tokenizer("en").word_tokenize("a text before the clock starts")
    began = sum(os.times()[:4])

    def at(name: str) -> str:
        return str(Path(work) / name)

    def run(name: str, steps: List[Any], tasks: int = 1) -> None:
        LocalPipelineExecutor(pipeline=steps, tasks=tasks, workers=1, logging_dir=at(f"log-{name}")).run()

    reader = JsonlReader(folder, glob_pattern=file)
    run("signatures", [reader, MinhashDedupSignature(output_folder=at("signatures"))])
    run("buckets", [MinhashDedupBuckets(input_folder=at("signatures"), output_folder=at("buckets"))], tasks=14)
    run("cluster", [MinhashDedupCluster(input_folder=at("buckets"), output_folder=at("remove"))])
    aside = JsonlWriter(at("removed"), compression=None)
    run("filter", [reader, MinhashDedupFilter(input_folder=at("remove"), exclusion_writer=aside)])
    cpu = sum(os.times()[:4]) - began
    files = Path(at("removed")).glob("*.jsonl")
    removed = [json.loads(line)["id"] for path in files for line in path.read_text("utf-8").splitlines()]
    (Path(work) / "outcome.json").write_text(json.dumps({"cpu_s": cpu, "removed": removed}))


if __name__ == "__main__":
    main()
