"""Step `language`: which language a text is in, by fastText's model of 176 (Joulin et al. 2016) in a package."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, List, Tuple, Union

from preprocess.clean.language_codes import code, label_code, model, wanted_code
from preprocess.document import Document, Dropped, with_score
from preprocess.pipeline import Apply, Tally, each

_LOOKED_AT = 2000  # characters from the middle: pages begin and end with menus
UNKNOWN = "unknown"
_STEP = "step language"


@dataclass(frozen=True)
class Language:
    """keep: languages, as en, eng or eng_Latn; empty: all, it is only written down. min_score: below it a text of a
    kept language is dropped. trust: a language that the document names already is taken. The language and its score
    (0 to 1) go to the document's metadata.
    """

    keep: List[str] = field(default_factory=list)
    min_score: float = 0.65  # as FineWeb has it (Penedo et al. 2024)
    trust: bool = False

    def open(self) -> Apply:
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"{_STEP}: min_score={self.min_score} is no probability; give 0 to 1")
        identify = identifier()
        kept = {wanted_code(name, _STEP) for name in self.keep}

        def one(document: Document, tally: Tally) -> Union[Document, Dropped]:
            named = document.metadata.get("language") or document.metadata.get("lang")
            language, score = (_given(str(named)), 1.0) if self.trust and named else identify(document.text)
            if kept and language not in kept:
                return Dropped("other language" if language != UNKNOWN else "unknown language", language)
            if kept and score < self.min_score:
                return Dropped("language not sure", f"{language} {score:.2f}")
            return with_score(document, "language", round(score, 4), language=language)

        return each(one)


def identifier() -> Callable[[str], Tuple[str, float]]:
    """-> function of a text: (code, score). A text without letters is ("unknown", 0.0)."""

    def identify(text: str) -> Tuple[str, float]:
        start = max(0, (len(text) - _LOOKED_AT) // 2)
        # The model takes a line, and reads it up to a line end or to the word </s>, which is one to it.
        line = " ".join([word for word in text[start : start + _LOOKED_AT].split() if word != "</s>"])
        if not any(map(str.isalpha, line)):
            return UNKNOWN, 0.0
        labels, scores = model().predict(line)
        if not labels:
            return UNKNOWN, 0.0
        return label_code(labels[0]), min(1.0, float(scores[0]))

    return identify


def _given(name: str) -> str:
    """A language that a document names: in the model's spelling if it knows it, else as it is."""
    try:
        return code(name, _STEP)
    except ValueError:
        return name
