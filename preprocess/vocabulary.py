"""Train a SentencePiece model on the documents that will be tokenised with it.

The model restores every text it encodes (save U+2581, which SentencePiece itself uses for a space): no normalisation,
no dummy prefix, spaces and newlines kept, bytes for rare characters. One thread and a seeded sample make it the same
on every machine with the same sentencepiece.
"""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Iterable, Iterator, List

from megatron_ext.config.schema import SentencePieceModel
from preprocess.document import Document
from preprocess.staging import write_atomically

SAMPLE_BYTES = 16 << 20  # about what a vocabulary gains from; bounds memory and time for any input
PIECE_BYTES = 2000  # a "sentence" is lines of one document, about this long; SentencePiece ignores above 4192
SMALLEST = 256 + 3  # a byte each, and <unk>, <s>, </s>


def train(documents: Iterable[Document], vocab_size: int, model: SentencePieceModel, path: str) -> bytes:
    """Reads all documents, learns from a uniform sample of them, writes the .model file to `path` and returns it.

    Raises ValueError when there is too little text for vocab_size, or too few ids for its characters.
    """
    import sentencepiece

    if vocab_size <= SMALLEST:
        raise ValueError(
            f"data.tokenizer.train_vocab_size={vocab_size}; it must be above {SMALLEST}: a byte each, and 3"
        )
    sample = _sample(piece for document in documents for piece in _pieces(document.text))
    if not sample:
        raise ValueError("data.source.inputs: no document is left to train the tokenizer on")
    out = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=out,
            vocab_size=vocab_size,
            model_type=str(model),
            num_threads=1,
            byte_fallback=True,
            character_coverage=0.9999,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            max_sentence_length=4 * PIECE_BYTES,
            minloglevel=2,  # errors only
        )
    except RuntimeError as error:
        raise ValueError(
            f"data.tokenizer.train_vocab_size={vocab_size} does not fit {sum(map(len, sample))} characters of text: "
            f"{str(error).rsplit('] ', 1)[-1]}"
        ) from error
    write_atomically(Path(path), out.getvalue())
    return out.getvalue()


def _pieces(text: str) -> Iterator[str]:
    """Consecutive lines, their ends kept, in pieces of at most PIECE_BYTES; longer lines are cut."""
    piece, size, longest = "", 0, PIECE_BYTES // 4  # a character has at most 4 bytes
    for line in io.StringIO(text, newline="\n"):
        for start in range(0, len(line), longest):
            part = line[start : start + longest]
            length = len(part.encode())
            if piece and size + length > PIECE_BYTES:
                yield piece
                piece, size = "", 0
            piece, size = piece + part, size + length
    if piece:
        yield piece


def _sample(pieces: Iterable[str]) -> List[str]:
    """A uniform sample of SAMPLE_BYTES / PIECE_BYTES pieces, each as likely as any other (Vitter 1985, algorithm R)."""
    kept: List[str] = []
    room, choose = SAMPLE_BYTES // PIECE_BYTES, random.Random(0)
    for number, piece in enumerate(pieces):
        if len(kept) < room:
            kept.append(piece)
        elif (place := choose.randrange(number + 1)) < room:
            kept[place] = piece
    return kept
