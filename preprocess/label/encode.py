"""Conversations -> tokens, a mask of those that are learned, and packs; opened once in each worker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, List, Tuple, Union

import numpy as np

from megatron_ext.config import schema
from preprocess.document import Document, Dropped
from preprocess.label.packing import pack
from preprocess.label.spans import Speaker
from preprocess.label.template import Refused, Spans, Template
from preprocess.label.turns import ROLES, conversation, strings, without_turns
from preprocess.pipeline import Tally


@dataclass(frozen=True)
class _Rendered:
    document: Document
    spans: Spans


class Labelling:
    """documents of `turns.with_text` -> (documents, ids, lengths, mask, packs), in the order of the packs.

    ids int32, mask uint8 [sum of lengths]: 1 where the token is learned, that is predicted from those before it.
    packs int32: how many of the documents, in order, share each pack. A document's text is what was tokenised.
    """

    def __init__(self, label: schema.Label, blob: bytes, template: str) -> None:
        """blob: a tokenizer.json. template: what `template.read` gave. Raises ValueError for what cannot work."""
        self._label = label
        _check(label)
        self._tokenizer, specials, added = _open(blob)
        self._speaker = Speaker(label, Template(template, label.date), specials, added)
        self._normalise = self._tokenizer.normalizer.normalize_str if self._tokenizer.normalizer else None

    def __call__(
        self, documents: List[Document], tally: Tally
    ) -> Tuple[List[Document], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        rendered = []
        for document in documents:
            outcome = self._render(document)
            if isinstance(outcome, Dropped):
                tally.drop(document, outcome)
            else:
                rendered.append(outcome)
        encodings = self._tokenizer.encode_batch([one.document.text for one in rendered], add_special_tokens=False)
        kept, ids, masks = [], [], []
        for one, encoding in zip(rendered, encodings):
            tokens = self._fit(np.asarray(encoding.ids, np.int32), _mask(encoding.offsets, one.spans), tally)
            if isinstance(tokens, Dropped):
                tally.drop(one.document, tokens)
                continue
            kept.append(one.document)
            ids.append(tokens[0])
            masks.append(tokens[1])
        return self._packed(kept, ids, masks)

    def _render(self, document: Document) -> Union[_Rendered, Dropped]:
        label = self._label
        turns = conversation(document, label)
        if isinstance(turns, Dropped):
            return turns
        messages, tools = turns
        said = [(message["role"], text) for message in messages for text in strings(message)]
        for role, text in [*said, *(("system", text) for text in strings(tools))]:
            if token := self._control_token(role, text):
                return Dropped("control token in a message", token)
        try:
            text, spans = self._speaker.learned(messages, tools)
        except Refused as error:
            return Dropped("refused by the chat template", str(error))
        except ValueError as error:
            raise ValueError(f"{document.file}:{document.line}: {error}") from None
        return _Rendered(without_turns(document, label, text), spans)

    def _control_token(self, role: str, text: str) -> str:
        """Some tokenizers look for their tokens in the normalised text."""
        found = self._speaker.control_token(role, text)
        return found or (self._speaker.control_token(role, self._normalise(text)) if self._normalise else "")

    def _fit(self, ids: np.ndarray, mask: np.ndarray, tally: Tally) -> Union[Tuple[np.ndarray, np.ndarray], Dropped]:
        label = self._label
        if label.pack_length and len(ids) > label.pack_length:
            if label.long == schema.Long.drop:
                return Dropped("longer than a pack", f"{len(ids)} tokens")
            ids, mask = ids[: label.pack_length], mask[: label.pack_length]
            tally.change("cut to the length of a pack")
        if not mask[1:].any():  # nothing stands before the first token that could predict it
            return Dropped("nothing to learn")
        return ids, mask

    def _packed(
        self, documents: List[Document], ids: List[np.ndarray], masks: List[np.ndarray]
    ) -> Tuple[List[Document], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        label = self._label
        packs = pack(np.asarray([len(one) for one in ids], np.int64), label.pack_length)
        order = [int(number) for one in packs for number in one]
        return (
            [documents[number] for number in order],
            np.concatenate([np.zeros(0, np.int32), *(ids[number] for number in order)]),
            np.asarray([len(ids[number]) for number in order], np.int32),
            np.concatenate([np.zeros(0, np.uint8), *(masks[number] for number in order)]),
            np.asarray([len(one) for one in packs], np.int32),
        )


def _mask(offsets: List[Tuple[int, int]], spans: Spans) -> np.ndarray:
    """1 for each token that has a character of a span, and those between. offsets: characters of the text, in order."""
    mask = np.zeros(len(offsets), np.uint8)
    if not offsets:
        return mask
    starts, ends = np.asarray(offsets, np.int64).T
    for begin, end in spans:
        inside = np.flatnonzero((starts < end) & (ends > begin))
        if len(inside):
            mask[inside[0] : inside[-1] + 1] = 1
    return mask


def _check(label: schema.Label) -> None:
    if unknown := [role for role in label.train_on if role not in ROLES]:
        raise ValueError(f"data.source.label.train_on names {unknown[0]!r}; the roles are {', '.join(ROLES)}")
    if not label.train_on:
        raise ValueError("data.source.label.train_on is empty, so nothing is learned; name a role, as [assistant]")
    if label.pack_length < 0 or label.pack_length == 1:
        raise ValueError(f"data.source.label.pack_length={label.pack_length}; give the tokens of a pack, or 0")


def _open(blob: bytes) -> Tuple[Any, List[str], List[str]]:
    """-> tokenizer without what it adds, cuts or pads; its special tokens; its other added tokens.

    Without a post-processor offsets are those of whole tokens: that of byte-level BPE leaves out their spaces.
    """
    from tokenizers import Tokenizer

    if not blob.lstrip().startswith(b"{"):
        raise ValueError(
            "data.source.label.template needs data.tokenizer.kind=huggingface: only a tokenizer.json says which of its "
            "tokens are control tokens, as the chat template writes them"
        )
    content = json.loads(blob)
    for added_to_text in ("post_processor", "truncation", "padding"):
        content[added_to_text] = None
    added = content.get("added_tokens") or []
    specials = [token["content"] for token in added if token["special"]]
    return Tokenizer.from_str(json.dumps(content)), specials, [t["content"] for t in added if not t["special"]]
