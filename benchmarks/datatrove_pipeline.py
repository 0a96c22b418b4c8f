"""datatrove's pipeline nearest to configs/data/clean.yaml, run by datatrove's own interpreter (benchmarks/peers.sh).

python datatrove_pipeline.py INPUT_FOLDER FILE WORK TOKENIZER_JSON: filters, PII, MinHash in four stages, tokens in
Megatron's format. One task: one process, as ours has one worker.
"""

from __future__ import annotations

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
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )
    from datatrove.pipeline.formatters import PIIFormatter
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import MegatronDocumentTokenizer
    from datatrove.pipeline.writers import JsonlWriter

    folder, file, work, tokenizer = sys.argv[1:]

    def at(name: str) -> str:
        return str(Path(work) / name)

    def run(name: str, steps: List[Any], tasks: int = 1) -> None:
        LocalPipelineExecutor(pipeline=steps, tasks=tasks, workers=1, logging_dir=at(f"log-{name}")).run()

    filters = [
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(),
        FineWebQualityFilter(),
        PIIFormatter(),
    ]
    run("clean", [JsonlReader(folder, glob_pattern=file), *filters, JsonlWriter(at("clean"), compression=None)])
    reader = JsonlReader(at("clean"))
    run("signatures", [reader, MinhashDedupSignature(output_folder=at("signatures"))])
    run("buckets", [MinhashDedupBuckets(input_folder=at("signatures"), output_folder=at("buckets"))], tasks=14)
    run("cluster", [MinhashDedupCluster(input_folder=at("buckets"), output_folder=at("remove"))])
    tokens = MegatronDocumentTokenizer(at("tokens"), tokenizer_name_or_path=tokenizer, eos_token="<|endoftext|>")
    run("tokens", [JsonlReader(at("clean")), MinhashDedupFilter(input_folder=at("remove")), tokens])


if __name__ == "__main__":
    main()
