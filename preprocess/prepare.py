"""Raw text -> one shard: the whole way, to be read first.

inputs -> records -> [worker: document -> steps -> tokens] -> .bin .idx .parquet -> renamed together, .json last
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, List, Optional, Sequence, Tuple

from megatron_ext.config.schema import Data, TokenizerKind
from preprocess import pipeline, readers, tokenizer, vocabulary
from preprocess.encode import Recipe, default_workers, encode
from preprocess.metadata import TableWriter
from preprocess.shards import FORMAT_VERSION, SUFFIXES, InputFile, ShardWriter, Sidecar
from preprocess.staging import publish, staged

Progress = Callable[[int, int, int], None]  # bytes of input consumed, of how many, tokens written


def prepare(
    data: Data,
    progress: Progress = lambda consumed, total, tokens: None,
    steps: Sequence[pipeline.Step] = pipeline.STEPS,
) -> Sidecar:
    """Make the shard that `data.source` describes, replacing an older one, and return its sidecar.

    Raises ValueError for wrong settings or input and ChildProcessError when a worker dies; an older shard of that name
    is then still there, untouched.
    """
    source = data.source
    _check(data)
    files = readers.resolve(source.inputs)
    inputs = [InputFile(file, os.path.getsize(file)) for file in files]
    with staged(source.output) as folder:
        recipe, vocab_size, eod = _recipe(data, files, list(steps))
        counts, total = pipeline.Counts(), sum(file.bytes for file in inputs)
        progress(0, total, 0)
        with ShardWriter(folder / "shard", vocab_size) as shard, TableWriter(folder / "shard.parquet") as table:
            for encoded, consumed in encode(recipe, readers.read(files), source.workers or default_workers()):
                shard.add(encoded.ids, encoded.lengths)
                table.add(encoded.rows, encoded.lengths)
                counts.add(encoded.counts)
                progress(consumed, total, shard.tokens)
        if counts.kept == 0:
            raise ValueError(f"no document was kept of {counts.read} read ({_reasons(counts)}); no shard was written")
        sidecar = Sidecar(
            format_version=FORMAT_VERSION,
            tokenizer_kind=str(recipe.kind),
            tokenizer_sha256=tokenizer.fingerprint(recipe.tokenizer),
            vocab_size=vocab_size,
            append_eod=source.append_eod,
            eod_id=eod,
            dtype=shard.dtype.name,
            documents=shard.documents,
            tokens=shard.tokens,
            text_bytes=counts.text_bytes,
            unknown_tokens=counts.unknown_tokens,
            read=counts.read,
            kept=counts.kept,
            dropped=dict(sorted(counts.dropped.items())),
            inputs=inputs,
        )
        (folder / "shard.json").write_text(sidecar.to_json(), encoding="utf-8")
        publish(folder, source.output, SUFFIXES)
    return sidecar


def _check(data: Data) -> None:
    if not data.source.output:
        raise ValueError("data.source.output is empty; give the prefix of the shard, as runs/data/mine/part0")
    if data.source.output.endswith("/") or Path(data.source.output).is_dir():
        raise ValueError(f"data.source.output={data.source.output} is a folder; give a prefix inside it, as .../part0")
    if data.source.workers < 0:
        raise ValueError(f"data.source.workers={data.source.workers}; give a number of processes, or 0 for one a core")


def _recipe(data: Data, files: List[str], steps: List[pipeline.Step]) -> Tuple[Recipe, int, Optional[int]]:
    """-> recipe, vocabulary size, end-of-document id. Trains the tokenizer first if that was asked and is not done."""
    settings, keys = data.tokenizer, readers.Keys(data.source.text_key, data.source.id_key)
    if settings.train_vocab_size > 0 and settings.path and not Path(settings.path).exists():
        if settings.kind != TokenizerKind.sentencepiece:
            raise ValueError(
                f"tokenizer {settings.path} does not exist, and only SentencePiece models are trained here; correct "
                f"data.tokenizer.path, or set data.tokenizer.kind=sentencepiece"
            )
        parsed = (readers.parse(record, keys) for batch in readers.read(files) for record in batch.records)
        documents = pipeline.run(steps, parsed, pipeline.Counts().dropped)
        vocabulary.train(documents, settings.train_vocab_size, settings.train_model, settings.path)
    blob = tokenizer.read(settings.path)
    opened = tokenizer.open_tokenizer(settings.kind, blob, settings.path)
    if settings.train_vocab_size not in (0, opened.vocab_size):
        raise ValueError(
            f"tokenizer {settings.path} is there already and has {opened.vocab_size} ids, not "
            f"data.tokenizer.train_vocab_size={settings.train_vocab_size}; choose another path, or 0 to use it"
        )
    end = tokenizer.end_of_document(opened, settings.path) if data.source.append_eod else None
    return Recipe(settings.kind, settings.path, blob, end, keys, steps), opened.vocab_size, opened.eod


def _reasons(counts: pipeline.Counts) -> str:
    return (
        ", ".join(f"{number} {reason}" for reason, number in sorted(counts.dropped.items())) or "the inputs are empty"
    )
