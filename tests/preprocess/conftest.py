"""Two small tokenizers, and the settings of a shard in a temporary folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, List

import pytest

from megatron_ext.config.schema import Data, Source, Tokenizer, TokenizerKind
from preprocess.document import Document
from preprocess.tokenizer import train

WORDS = "the quick brown fox jumps over the lazy dog while five wizards hex a box of jugs\n"


@pytest.fixture(scope="session")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """300 ids, byte fallback, <unk> 0, <s> 1, </s> 2."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    train.train([Document(WORDS * 30, "a", {}, "a", 1)], Tokenizer(path=str(path), train_vocab_size=300))
    return str(path)


@pytest.fixture(scope="session")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Byte-level BPE as in Llama 3 and GPT-2, with a post-processor that adds <s> and </s>, truncation and padding."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=sorted(alphabet), show_progress=False
    )
    library.train_from_iterator([WORDS], trainer)
    library.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    library.enable_truncation(4)
    library.enable_padding(length=8)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    library.save(str(path))
    return str(path)


@pytest.fixture
def make_data(tmp_path: Path, sentencepiece_model: str) -> Callable[..., Data]:
    """make_data(records or None, tokenizer=path, **source): records are written to in.jsonl, the shard is `out`."""

    def make(records: Any = None, tokenizer: str = sentencepiece_model, **source: Any) -> Data:
        if records is not None:
            write_jsonl(tmp_path / "in.jsonl", records)
            source.setdefault("inputs", [str(tmp_path / "in.jsonl")])
        kind = TokenizerKind.huggingface if tokenizer.endswith(".json") else TokenizerKind.sentencepiece
        source = {"output": str(tmp_path / "out"), "workers": 1, **source}
        return Data(tokenizer=Tokenizer(kind=kind, path=tokenizer), source=Source(**source))

    return make


@pytest.fixture
def odd_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of tests/preprocess/steps.py by their names, in this process; a worker is sent the step itself."""
    from preprocess.steps import STEPS
    from tests.preprocess import steps

    for name in ("Killed", "NoTorch", "Slow", "Nothing", "Twice"):
        monkeypatch.setitem(STEPS, name, f"{steps.__name__}:{name}")


def content(folder: Path, stem: str = "out") -> dict:
    """Of a shard, without its manifest: that has paths and times of the input in it."""
    return {suffix: (folder / f"{stem}{suffix}").read_bytes() for suffix in (".bin", ".idx", ".parquet")}


def nothing_made(folder: Path) -> bool:
    """No file of the output `out`; what a run can go on from may be there."""
    return [path.name for path in folder.glob("out*") if path.name != "out.work"] == []


def write_jsonl(path: Path, records: List[Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
