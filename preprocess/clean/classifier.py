"""Step `classifier`: keep what a model of yours gives a high score; the score is kept with the document."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, List, Tuple, Union

from preprocess.document import Document, Dropped, with_score
from preprocess.pipeline import Apply, Tally, each


@dataclass(frozen=True)
class Classifier:
    """path: "package.module:function", a function of a text that gives a number; or a fastText model (.bin, .ftz),
    whose probability of `label` it is. threshold: the least score that is kept. name: of the score in the metadata."""

    path: str
    threshold: float
    label: str = ""
    name: str = "quality"

    def state(self) -> List[Tuple[str, int, int]]:
        """Of the model's file, or of the function's: they decide, and are no setting."""
        path = self.path
        if not path.endswith((".bin", ".ftz")):
            path = importlib.import_module(path.partition(":")[0]).__file__ or ""
        return [(path, Path(path).stat().st_size, Path(path).stat().st_mtime_ns)]

    def open(self) -> Apply:
        score = _model(self.path, self.label) if self.path.endswith((".bin", ".ftz")) else _function(self.path)

        def one(document: Document, tally: Tally) -> Union[Document, Dropped]:
            value = float(score(document.text))
            if not value >= self.threshold:  # a NaN is not kept
                return Dropped("low score", f"{value:.4g}")
            return with_score(document, self.name, round(value, 6))

        return each(one)


def _function(path: str) -> Callable[[str], float]:
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"step classifier: path={path!r} is no function ({error}); give package.module:function, or a .bin file"
        ) from None
    if not callable(function):
        raise ValueError(f"step classifier: {path} is {type(function).__name__}, not a function of a text")
    return function  # type: ignore[no-any-return]


def _model(path: str, label: str) -> Callable[[str], float]:
    import fasttext

    if not Path(path).is_file():
        raise ValueError(f"step classifier: {path} does not exist; give a fastText model")
    model, wanted = fasttext.load_model(path), f"__label__{label.removeprefix('__label__')}"
    labels, _ = model.predict("a", k=1000, threshold=-1.0)
    if wanted not in labels:
        names = ", ".join(sorted(one.removeprefix("__label__") for one in labels))
        raise ValueError(f"step classifier: {path} has no label {label!r}; it has {names}")

    def score(text: str) -> float:
        found, scores = model.predict(" ".join(text.split()), k=len(labels), threshold=-1.0)
        return float(dict(zip(found, scores)).get(wanted, 0.0))

    return score
