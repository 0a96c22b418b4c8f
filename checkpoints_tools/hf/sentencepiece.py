"""A SentencePiece model rebuilt as a tokenizer.json, which transformers loads without converting anything itself.

transformers' own Llama tokenizer reads a .model file too, but drops its normalizer and takes every model for BPE: for
models trained with SentencePiece's defaults it gives other ids. What is built here is tried on probes before it is
used; where one id differs from SentencePiece's, it is not used.

One difference is the convention of Hugging Face and stays: `</s>` written out in a text becomes the end-of-sequence id.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # piece types of sentencepiece_model.proto
_UNIGRAM, _BPE = 1, 2  # model types
_SPACE = "\u2581"

_PROBES = [
    "Hello world",
    "The quick brown fox jumps over the lazy dog, doesn't it? 3.14159 = pi; (x + y)**2!",
    "  leading, double  spaces and a trailing one ",
    "lines\nand\ttabs\r\n\n    indented",
    "na\u00efve caf\u00e9, e\u0301 composed, \ufb01ne ligature, \u2460 \uff46\uff55\uff4c\uff4c width",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
    "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0639\u0631\u0628\u064a \ud55c\uad6d\uc5b4",
    "\U0001f600 emoji \U0001f468\u200d\U0001f469\u200d\U0001f467, zero\u200bwidth, no\u00a0break",
    "snake_case CamelCase http://example.org/a?b=c&d=%20 <tag/> {\"json\": [1, 2]}",
    "a" * 50 + " " + "ab" * 40,
    "",
]  # fmt: skip


def build(path: Path) -> Tuple[Any, Dict[str, Optional[str]], Dict[str, Optional[int]]]:
    """-> tokenizers.Tokenizer, {bos,eos,unk: piece}, {bos,eos: id}. Raises ValueError when the ids would differ."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as messages
    from tokenizers import AddedToken, Tokenizer, decoders

    reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
    proto = messages.ModelProto.FromString(path.read_bytes())  # type: ignore[attr-defined]
    if proto.trainer_spec.treat_whitespace_as_suffix or not proto.normalizer_spec.escape_whitespaces:
        raise ValueError("it treats spaces in a way that Hugging Face tokenizers do not")
    tokenizer = Tokenizer(_model(proto, reference))
    if any(piece.type == _USER_DEFINED for piece in proto.pieces) and proto.normalizer_spec.add_dummy_prefix:
        # tokenizers splits a text at such symbols and would put the leading space before every part.
        raise ValueError("it has user-defined symbols and puts a space before a text, which cannot be rebuilt together")
    tokenizer.normalizer = _normalizer(proto.normalizer_spec)
    steps: List[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    steps += [decoders.Strip(content=" ", left=1)] if proto.normalizer_spec.add_dummy_prefix else []
    tokenizer.decoder = decoders.Sequence(steps)
    for piece in proto.pieces:
        if piece.type in (_UNKNOWN, _CONTROL):
            tokenizer.add_special_tokens([AddedToken(piece.piece, special=True, normalized=False)])
        elif piece.type == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(piece.piece, normalized=False)])
    _try(tokenizer, reference)
    ids = {role: getattr(reference, f"{role}_id")() for role in ("bos", "eos", "unk")}
    pieces = {role: reference.id_to_piece(number) if number >= 0 else None for role, number in ids.items()}
    return tokenizer, pieces, {role: ids[role] if ids[role] >= 0 else None for role in ("bos", "eos")}


def _model(proto: Any, reference: Any) -> Any:
    from tokenizers import models

    fallback = proto.trainer_spec.byte_fallback
    if proto.trainer_spec.model_type == _UNIGRAM:
        scored = [(piece.piece, piece.score) for piece in proto.pieces]
        return models.Unigram(scored, unk_id=reference.unk_id(), byte_fallback=fallback)
    if proto.trainer_spec.model_type == _BPE:
        vocabulary = {piece.piece: number for number, piece in enumerate(proto.pieces)}
        merges = list(_merges(proto, vocabulary))
        unknown = reference.id_to_piece(reference.unk_id())
        return models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=fallback)
    raise ValueError("it is neither a unigram nor a BPE model")


def _merges(proto: Any, vocabulary: Dict[str, int]) -> Iterator[Tuple[str, str]]:
    """SentencePiece stores no merges: any two pieces merge whose union is a piece, the best score first."""
    normal = [piece for piece in proto.pieces if piece.type == 1]
    for piece in sorted(normal, key=lambda piece: -piece.score):
        splits = [(piece.piece[:i], piece.piece[i:]) for i in range(1, len(piece.piece))]
        known = [pair for pair in splits if pair[0] in vocabulary and pair[1] in vocabulary]
        yield from sorted(known, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))


def _normalizer(spec: Any) -> Any:
    from tokenizers import Regex, normalizers

    steps: List[Any] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(left=True, right=True), normalizers.Replace(Regex(" {2,}"), " ")]
    # Not tokenizers' Metaspace: it forgets the space where leading ones were stripped, or where there is one.
    steps += [normalizers.Prepend(_SPACE)] if spec.add_dummy_prefix else []
    return normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])


def _try(tokenizer: Any, reference: Any) -> None:
    number = reference.vocab_size()
    pieces = [reference.id_to_piece(i).replace(_SPACE, " ") for i in range(0, number, max(number // 500, 1))]
    plain = [piece for i, piece in enumerate(pieces) if not piece.startswith("<")]
    for probe in [*_PROBES, *plain, "".join(plain)]:
        ours, theirs = tokenizer.encode(probe, add_special_tokens=False).ids, reference.encode(probe)
        if ours != theirs:
            raise ValueError(
                f"rebuilt for Hugging Face it gives {ours[:20]} for {probe[:80]!r}, SentencePiece {theirs[:20]}"
            )
