"""A variant of a document by translating it to another language and back (Sennrich et al. 2016, Edunov et al. 2018)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Callable, List, Optional, Union

from preprocess.augment import checks, share
from preprocess.augment.endpoint import Endpoint
from preprocess.augment.local import Local
from preprocess.augment.share import Refused, Variants
from preprocess.document import Document
from preprocess.pipeline import Apply

Translator = Callable[[List[str]], List[Optional[str]]]

_ASK = "Translate the following text from {source} to {target}. Answer with the translation only.\n\n{text}"


@dataclass(frozen=True)
class BackTranslation:
    """forward, backward: each a folder of a sequence-to-sequence model of transformers, or an endpoint's address.

    source, target: the languages, as the models name them (NLLB: eng_Latn; a chat model: English). prompt: what is said
    to the model, with {text} and perhaps {source} and {target}; nothing: the text alone to a folder, a request in
    English to an endpoint. A variant is refused when it is empty, not of a length (characters) between min_length_ratio
    and max_length_ratio of the original's, has the same words, has less than min_overlap of them (F1), or is not told
    to be of the same language. An endpoint need not say the same twice: what a run has written it keeps.
    """

    forward: str = ""
    backward: str = ""
    max_share: float = 0.1
    seed: int = 0
    source: str = ""
    target: str = ""
    prompt: str = ""
    model: str = ""  # of the endpoints
    key_variable: str = ""  # environment variable with the endpoints' key
    timeout_seconds: float = 120.0
    retries: int = 5
    wait_seconds: float = 1.0  # before the first retry, twice as long before each further one
    at_a_time: int = 8  # requests of one worker
    min_length_ratio: float = 0.5
    max_length_ratio: float = 2.0
    min_overlap: float = 0.3
    check_language: bool = True

    def open(self) -> Apply:
        share.check("back_translation", self.max_share)
        for name in ("forward", "backward"):
            if not getattr(self, name):
                raise ValueError(
                    f"step back_translation: {name} is empty; give a model's folder or an endpoint's address"
                )
        if self.prompt and "{text}" not in self.prompt:
            raise ValueError(f"step back_translation: prompt={self.prompt!r} has no {{text}}, where the text is put")
        forward = self._translator(self.forward, self.source, self.target)
        backward = self._translator(self.backward, self.target, self.source)
        language = checks.open_language("back_translation") if self.check_language else None

        def make(documents: List[Document]) -> Variants:
            there = forward([document.text for document in documents])
            back = iter(backward([text for text in there if text is not None]))
            again = [None if text is None else next(back) for text in there]
            return [self._checked(document.text, text, language) for document, text in zip(documents, again)]

        return share.augment("back_translation", self.max_share, self.seed, make)

    def _translator(self, place: str, source: str, target: str) -> Translator:
        is_endpoint = place.startswith(("http://", "https://"))
        prompt = self.prompt or (_ASK if is_endpoint else "{text}")
        if not is_endpoint:
            return Local(place, source, target, prompt.replace("{source}", source).replace("{target}", target))
        if not self.model:
            raise ValueError(f"step back_translation: model is empty; name the model that {place} is to use")
        if not (source and target) and "{source}" in prompt:
            raise ValueError(
                "step back_translation: source or target is empty; name both languages, as English, German"
            )
        if self.key_variable and self.key_variable not in os.environ:
            raise ValueError(f"step back_translation: the environment has no {self.key_variable} (key_variable)")
        for name, least in (("timeout_seconds", 0.001), ("retries", 0), ("wait_seconds", 0), ("at_a_time", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"step back_translation: {name}={getattr(self, name)}; it must be at least {least}")
        return Endpoint(
            url=place,
            model=self.model,
            prompt=prompt.replace("{source}", source).replace("{target}", target),
            key_variable=self.key_variable,
            timeout_seconds=self.timeout_seconds,
            retries=self.retries,
            wait_seconds=self.wait_seconds,
            at_a_time=self.at_a_time,
        )

    def _checked(self, text: str, again: Optional[str], language: Optional[checks.Language]) -> Union[str, Refused]:
        if again is None:
            return Refused("not translated whole")
        if not again.strip():
            return Refused("empty")
        if not self.min_length_ratio <= len(again) / len(text) <= self.max_length_ratio:
            return Refused("length")
        if checks.words(again) == checks.words(text):
            return Refused("nothing changed")
        if checks.f1(text, again) < self.min_overlap:
            return Refused("too much changed")
        if language and language(again) != language(text):
            return Refused("language changed")
        return again
