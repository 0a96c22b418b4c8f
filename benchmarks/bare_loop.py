"""The least that tokenising takes: read lines, parse, encode, write. What it cost, without imports, as JSON on stdout.

python -m benchmarks.bare_loop {sentencepiece,tokenizers,gigatoken} INPUT.jsonl TOKENIZER OUTPUT.bin
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Callable, Iterator, List

import numpy as np
import orjson

_BATCH_BYTES = 2 << 20


def batches(path: str) -> Iterator[List[str]]:
    with open(path, "rb") as file:
        while lines := file.readlines(_BATCH_BYTES):
            yield [orjson.loads(line)["text"] for line in lines]


def sentencepiece(path: str) -> Callable[[List[str]], Any]:
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=path)

    def encode(texts: List[str]) -> Any:
        return np.concatenate([np.asarray(ids, np.int32) for ids in model.encode(texts, num_threads=1)])

    return encode


def tokenizers(path: str) -> Callable[[List[str]], Any]:
    from tokenizers import Tokenizer

    model = Tokenizer.from_file(path)

    def encode(texts: List[str]) -> Any:
        found = model.encode_batch_fast(texts, add_special_tokens=False)
        return np.concatenate([np.asarray(one.ids, np.int32) for one in found])

    return encode


def gigatoken(path: str) -> Callable[[List[str]], Any]:
    import gigatoken as library

    model = library.Tokenizer(path)

    def encode(texts: List[str]) -> Any:
        return np.asarray(model.encode_batch(texts, parallel=False).layout.content.data)

    return encode


def main() -> None:
    kind, source, tokenizer, output = sys.argv[1:]
    encode = {"sentencepiece": sentencepiece, "tokenizers": tokenizers, "gigatoken": gigatoken}[kind](tokenizer)
    encode(["a text before the clock starts"])
    began, tokens = time.process_time(), 0
    with open(output, "wb") as file:
        for texts in batches(source):
            ids = encode(texts)
            tokens += len(ids)
            file.write(ids.astype(np.uint16).data)
    print(json.dumps({"cpu_s": time.process_time() - began, "tokens": tokens}))


if __name__ == "__main__":
    main()
