"""The published rules: on each side of every threshold."""

from __future__ import annotations

import random

import pytest

from preprocess.clean.words import words
from tests.preprocess.clean.conftest import PROSE, through

FILTERS = ["gopher_quality", "gopher_repetition", "c4", "fineweb"]
WORDS = [f"{a}{b}" for a in "bcdfghjklm" for b in ("anter", "olden", "irish", "under", "ekton", "amble")]


def text_of(count: int, seed: int = 0, ending: str = ".") -> str:
    """Different words, lines of ten, each a sentence; with the words that English has."""
    found = [f"{random.Random(seed + n).choice(WORDS)}{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}" for n in range(count)]
    found[::7] = ["the"] * len(found[::7])
    found[1::9] = ["and"] * len(found[1::9])
    return "\n".join(" ".join(found[n : n + 10]) + ending for n in range(0, count, 10))


@pytest.mark.parametrize("step", FILTERS)
def test_prose_passes(step):
    document, changed = through(step, PROSE)
    assert document.text == PROSE and changed == {}


@pytest.mark.parametrize(
    "text, left",
    [
        ("the and of word. " * 12, "few words"),
        (text_of(60), None),
        ("a of " * 60, "short words"),
        (" ".join(["the", "and"] + ["extraordinarily"] * 60), "long words"),
        (text_of(60) + " # # # # # # # #", "hash signs"),
        (text_of(60) + " #", None),
        ("\n".join(f"- the {word} and that" for word in WORDS), "bullet lines"),
        (text_of(100, ending="..."), "ellipsis lines"),
        (text_of(200).replace(".", "…", 8), "ellipsis lines"),
        (text_of(60) + " 1234" * 30, "words without letters"),
        (" ".join(WORDS), None),
    ],
)
def test_gopher_quality(text, left):
    found, _ = through("gopher_quality", text)
    assert found == left or (left is None and found.text == text)


def test_stop_words_are_asked_of_english_only():
    text = " ".join(WORDS)
    assert through("gopher_quality", text, language="de")[0].text == text
    assert through("gopher_quality", text, language="eng_Latn")[0] == "few stop words"
    assert (
        through({"gopher_quality": {"stop_words": ["der", "und"], "stop_words_for": ["deu"]}}, text, language="de")[0]
        == "few stop words"
    )
    assert through({"gopher_quality": {"max_words": 50}}, text)[0] == "many words"


def test_texts_without_spaces_have_words():
    """Chinese and Thai: a page is not one word, nor too few of them."""
    chinese = "今天天气很好，我们去公园散步，看见很多人在湖边钓鱼。" * 12
    assert 100 < len(words(chinese)) < len(chinese)
    assert through("gopher_quality", chinese, language="zh")[0].text == chinese
    assert words("Die Katze, 猫が好き") == ("Die", "Katze", "猫", "が", "好き")
    assert words("ภาษาไทยไม่มีช่องว่าง") == ("ภาษา", "ไทย", "ไม่มี", "ช่อง", "ว่าง")


@pytest.mark.parametrize(
    "text, left",
    [
        ("\n\n\n".join(line for line in text_of(300).split("\n")), None),  # D22: blank lines are no duplicates
        ("\n".join(["same"] * 6 + [f"line {word} {word}er" for word in WORDS[:9]]), "duplicate lines"),
        (text_of(160) + ("\n" + "x" * 90) * 6, "characters in duplicate lines"),
        ("\n\n".join(["one two"] * 4 + [f"part {word}\nnext" for word in WORDS[:8]]), "duplicate lines"),
        (" ".join(f"{word} buy now" for word in WORDS), "most frequent 2 words"),
        (" ".join([*WORDS[:40], *(f"w{n}" for n in range(30)), *WORDS[:40]]), "duplicate 5 words"),
        (" ".join(f"w{n}" for n in range(500)), None),
    ],
)
def test_gopher_repetition(text, left):
    found, _ = through("gopher_repetition", text)
    assert found == left or (left is None and found.text == text)


def test_repetition_counts_as_the_paper_says():
    """A word that several duplicates cover counts once: 12 words again among 100 cover 12 %, the limit for 8."""
    base = [f"word{n:03}" for n in range(88)]
    again = " ".join(base + base[:12])
    assert through("gopher_repetition", again)[0] == "duplicate 9 words"  # 0.12 > 0.11; for 8 words 0.12 is the limit
    assert through("gopher_repetition", " ".join(base + base[:9]))[0].text
    paragraphs = "\n\n".join(["a paragraph that comes again"] * 2 + [f"only {word} once" for word in WORDS[:2]])
    assert through("gopher_repetition", paragraphs)[0] != PROSE


@pytest.mark.parametrize(
    "line, gone",
    [
        ("Too short", "too few words"),
        ("Please enable Javascript in your browser to see it.", "javascript"),
        ("This site uses cookies to make things better for you.", "policy"),
        ("A line without an end", None),
        ("Three words here", None),
    ],
)
def test_c4_removes_lines(line, gone):
    document, changed = through("c4", PROSE + line)
    assert document.text.rstrip("\n") == (PROSE.rstrip("\n") if gone else PROSE + line)
    assert changed == ({f"lines removed: {gone}": 1} if gone else {})


@pytest.mark.parametrize(
    "text, left",
    [
        (PROSE + "Lorem Ipsum dolor.", "lorem ipsum"),
        (PROSE + "if (x) { y; }", "curly bracket"),
        ("One sentence here only. And a second one here", "few sentences"),
        ("one\ntwo\nthree", "no line left"),
    ],
)
def test_c4_drops_pages(text, left):
    assert through("c4", text)[0] == left


@pytest.mark.parametrize("end", "。 ؟ । ။ ። ។ ։".split())
def test_the_sentence_marks_of_all_scripts_end_lines(end):
    """Burmese, Ethiopic, Khmer and Armenian too, for the rules that ask for punctuation."""
    text = text_of(200, ending=end)
    assert through("fineweb", text)[0].text == text
    settings = {"terminal_punctuation": True, "min_sentences": 0}
    document, changed = through({"c4": settings}, text)
    assert document.text == text and changed == {}


def test_c4_settings(tmp_path):
    document, changed = through("c4", PROSE.replace("winter", "winter [12][citation needed]"))
    assert document.text == PROSE and changed == {"lines without citation marks": 1}
    assert through("c4", "Too short\n{" + PROSE) == ("curly bracket", {})
    assert through("c4", "Too short\nThis is the only sentence.") == ("few sentences", {})  # no change: it is dropped
    document, changed = through(
        {"c4": {"terminal_punctuation": True}}, PROSE + "\nA line without an end\nOr ends so..."
    )
    assert document.text.rstrip("\n") == PROSE.rstrip("\n")
    assert changed == {"lines removed: no punctuation at the end": 2}
    (tmp_path / "bad.txt").write_text("Surveyor\n\nold man\n")
    assert through({"c4": {"bad_words": str(tmp_path / "bad.txt")}}, PROSE)[0] == "bad word"
    assert through({"c4": {"bad_words": str(tmp_path / "bad.txt")}}, PROSE.replace("surveyor", "surveyors"))[0].text


@pytest.mark.parametrize(
    "text, left",
    [
        (text_of(200, ending=""), "too few lines with punctuation"),
        ("\n".join(f"short line {word}." for word in WORDS[:10]) + "\n" + PROSE[:300], "too many short lines"),
        (PROSE + PROSE.split("\n")[0], "characters in duplicate lines"),
        ("\n".join(f"{word}extraordinarilylongwordwithoutspaces." for word in WORDS[:9]), "too many line ends"),
        ("\n\n".join(PROSE.split("\n")), None),
        ("\n \n", "no lines"),
    ],
)
def test_fineweb(text, left):
    found, _ = through("fineweb", text)
    assert found == left or (left is None and found.text == text)
