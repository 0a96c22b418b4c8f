"""The tokenizer that goes with a model: ours into a Hugging Face folder, and theirs into a checkpoint."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

from megatron_ext.config.schema import Run, Tokenizer, TokenizerKind

# What transformers may look for beside the weights.
_THEIR_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
)


def export(run: Run, folder: Path, config: Dict[str, Any], notes: List[str]) -> None:
    """Write the run's tokenizer as transformers loads it, and its special ids into `config`."""
    path = Path(run.data.tokenizer.path)
    if not run.data.tokenizer.path or not path.is_file():
        named = f"{path} does not exist" if run.data.tokenizer.path else "the run names none"
        notes.append(f"tokenizer: left out, {named}")
    elif run.data.tokenizer.kind == TokenizerKind.huggingface:
        shutil.copyfile(path, folder / "tokenizer.json")
        _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
        notes.append("tokenizer: tokenizer.json copied; its special ids are not in config.json")
    elif run.data.tokenizer.kind == TokenizerKind.tiktoken:
        notes.append(f"tokenizer: left out, transformers does not load tiktoken's ranks; convert {path} yourself")
    else:
        _export_sentencepiece(path, folder, config, notes)


def adopt(source: Path, folder: Path, target: Path, run: Run, notes: List[str]) -> Run:
    """Copy a Hugging Face folder's tokenizer into the checkpoint being written; -> the run that names it."""
    found = [name for name in _THEIR_FILES if (source / name).is_file()]
    for name in found:
        shutil.copyfile(source / name, folder / name)
    for name, kind in (
        ("tokenizer.json", TokenizerKind.huggingface),
        ("tokenizer.model", TokenizerKind.sentencepiece),
    ):
        if name in found:
            notes.append(f"tokenizer: {', '.join(found)} copied")
            tokenizer = Tokenizer(kind=kind, path=str(target.absolute() / name))
            return replace(run, data=replace(run.data, tokenizer=tokenizer))
    notes.append("tokenizer: left out, the source has none")
    return run


def _export_sentencepiece(path: Path, folder: Path, config: Dict[str, Any], notes: List[str]) -> None:
    from checkpoints_tools.hf import sentencepiece

    try:
        tokenizer, pieces, ids = sentencepiece.build(path)
    except (ImportError, ValueError) as error:
        notes.append(f"tokenizer: left out, {path}: {error}")
        return
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.copyfile(path, folder / "tokenizer.model")  # for those who read SentencePiece themselves
    settings = {f"{role}_token": piece for role, piece in pieces.items()}
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **settings})
    config.update({f"{role}_token_id": number for role, number in ids.items()})
    notes.append(
        "tokenizer: rebuilt as tokenizer.json, with SentencePiece's ids on every probe; tokenizer.model copied"
    )


def _write(path: Path, content: Dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
