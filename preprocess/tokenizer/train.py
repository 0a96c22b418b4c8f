"""Train a tokenizer on the documents that will be tokenised with it: SentencePiece, or a byte-level BPE.

Both restore every text they encode (SentencePiece save U+2581, which it uses for a space): no normalisation, no dummy
prefix, spaces and newlines kept, bytes for rare characters. One thread and a seeded sample make them the same on every
machine with the same library.
"""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from typing import Iterable, Iterator, List

from megatron_ext.config import schema
from megatron_ext.config.schema import TokenizerKind
from preprocess.document import Document
from preprocess.staging import write_atomically

SAMPLE_BYTES = 16 << 20  # about what a vocabulary gains from; bounds memory and time for any input
PIECE_BYTES = 2000  # a "sentence" is lines of one document, about this long; SentencePiece ignores above 4192
SMALLEST = 256 + 3  # a byte each, and <unk>, <s>, </s>


def train(documents: Iterable[Document], settings: schema.Tokenizer) -> bytes:
    """Reads all documents, learns from a uniform sample of them, writes the file to settings.path and returns it.

    Raises ValueError when there is too little text for the vocabulary, or too few ids for its characters.
    """
    size = settings.train_vocab_size
    if settings.kind == TokenizerKind.tiktoken:
        raise ValueError(
            f"tokenizer {settings.path} does not exist, and no tiktoken file is trained here; correct "
            f"data.tokenizer.path, or set data.tokenizer.kind to sentencepiece or huggingface"
        )
    if size <= SMALLEST:
        raise ValueError(f"data.tokenizer.train_vocab_size={size}; it must be above {SMALLEST}: a byte each, and 3")
    sample = _sample(piece for document in documents for piece in _pieces(document.text))
    if not sample:
        raise ValueError("data.source.inputs: no document is left to train the tokenizer on")
    make = _sentencepiece if settings.kind == TokenizerKind.sentencepiece else _byte_level_bpe
    made = make(sample, settings)
    write_atomically(Path(settings.path), made)
    return made


def _sentencepiece(sample: List[str], settings: schema.Tokenizer) -> bytes:
    import sentencepiece

    out = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=out,
            vocab_size=settings.train_vocab_size,
            model_type=str(settings.train_model),
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
        raise ValueError(_does_not_fit(sample, settings, str(error).rsplit("] ", 1)[-1])) from error
    return out.getvalue()


def _byte_level_bpe(sample: List[str], settings: schema.Tokenizer) -> bytes:
    """As GPT-2's (Radford et al. 2019); <|endoftext|> and <|begin_of_text|> are ids 0 and 1."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread, as for SentencePiece
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.train_vocab_size,
        special_tokens=["<|endoftext|>", "<|begin_of_text|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(sample, trainer)
    if (size := library.get_vocab_size()) != settings.train_vocab_size:
        raise ValueError(_does_not_fit(sample, settings, f"it gives {size} ids"))
    return str(library.to_str(pretty=True)).encode()


def _does_not_fit(sample: List[str], settings: schema.Tokenizer, why: str) -> str:
    size, text = settings.train_vocab_size, sum(map(len, sample))
    return f"data.tokenizer.train_vocab_size={size} does not fit {text} characters of text: {why}"


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
