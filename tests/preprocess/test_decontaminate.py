"""Evaluation items in training text: found where they stand, whatever their spelling, and nothing else."""

from __future__ import annotations

import json
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess import decontaminate
from preprocess.document import Document
from preprocess.pipeline import Tally
from tests.preprocess.clean.conftest import PROSE, through
from tests.preprocess.conftest import write_jsonl

ITEM = (
    "A farmer has seventeen sheep, and all but nine of them run away; how many does the poor farmer now still have left"
)


@pytest.fixture
def sets(tmp_path):
    write_jsonl(
        tmp_path / "riddles.jsonl", [{"question": "Short one?", "answer": "9"}, {"question": ITEM, "answer": "nine"}]
    )
    return [str(tmp_path / "riddles.jsonl")]


def dressed() -> str:
    """The item with other case, punctuation, width and a line break inside."""
    words = ITEM.upper().replace(",", " —").replace(";", "…").split()
    return " ".join(words[:7]) + "\n  " + " ".join(words[7:]).replace("FARMER", "ＦＡＲＭＥＲ")


@pytest.mark.parametrize("action", ["drop", "flag", "cut"])
def test_an_item_is_found_with_its_place(sets, action):
    """D23: elsewhere nothing was ever flagged."""
    text = PROSE + dressed() + "\n" + PROSE
    found, changed = through({"decontaminate": {"sets": sets, "action": action}}, text, k=1)
    assert changed == {"overlaps riddles": 1}
    if action == "drop":
        assert found == "contaminated"
        return
    (hit,) = found.metadata["contaminated"]
    assert (
        (hit["benchmark"], hit["item"]) == ("riddles", 2)
        and text[hit["start"] : hit["end"]] == dressed()
        and found.metadata["k"] == 1
    )
    assert found.text == (text if action == "flag" else PROSE + "\n\n" + PROSE)


@pytest.mark.parametrize("words, is_found", [(12, False), (13, True), (20, True)])
def test_less_than_a_run_is_no_contamination(sets, words, is_found):
    text = PROSE + " ".join(ITEM.split()[:words]) + " the end."
    found, _ = through({"decontaminate": {"sets": sets}}, text)
    assert (found == "contaminated") == is_found


def test_twice_gives_the_same(sets):
    for action in ("flag", "cut"):
        step = {"decontaminate": {"sets": sets, "action": action}}
        once, _ = through(step, PROSE + dressed() + PROSE)
        again, changed = through(step, once.text)
        assert again.text == once.text and bool(changed) == (action == "flag")


def test_short_items_whole_or_not_at_all(tmp_path):
    write_jsonl(
        tmp_path / "names.jsonl",
        [{"a": "Only six words are in here"}, {"a": "but exactly eight words are in this one"}],
    )
    step = {"decontaminate": {"sets": [str(tmp_path / "names.jsonl")]}}
    assert through(step, "x " + "Only six words are in here")[0].text
    assert through(step, "So, but exactly eight words are in this one.")[0] == "contaminated"
    assert through(step, "exactly eight words are in this one.")[0].text


def test_chinese_without_spaces(tmp_path):
    write_jsonl(tmp_path / "zh.jsonl", [{"q": "小明有十七只羊，跑了八只，还剩几只？"}])
    step = {"decontaminate": {"sets": [str(tmp_path / "zh.jsonl")]}}
    assert through(step, "题目：小明有十七只羊、跑了八只。还剩几只？答")[0] == "contaminated"
    assert through(step, "小明有十七只羊。")[0].text


def test_fields_are_chosen(tmp_path):
    write_jsonl(tmp_path / "q.jsonl", [{"question": ITEM, "context": PROSE}])
    step = {"sets": [str(tmp_path / "*.jsonl")]}
    assert through({"decontaminate": step}, PROSE)[0] == "contaminated"
    assert through({"decontaminate": {**step, "fields": ["question"]}}, PROSE)[0].text


def test_equal_hashes_of_other_words_do_not_flag(sets, monkeypatch):
    """All words with one hash: only equal words count."""
    monkeypatch.setattr(decontaminate, "_hash", lambda word: 5)
    step = {"decontaminate": {"sets": sets}}
    assert through(step, PROSE)[0].text == PROSE and through(step, ITEM)[0] == "contaminated"


@given(
    before=st.lists(st.sampled_from("alpha beta gamma delta".split()), max_size=30),
    start=st.integers(0, 20),
    length=st.integers(0, 25),
)
def test_found_exactly_when_a_run_of_the_item_is_there(tmp_path_factory, before, start, length):
    folder = tmp_path_factory.mktemp("sets")
    write_jsonl(folder / "r.jsonl", [{"q": ITEM}])
    part = ITEM.split()[start : start + length]
    text = " ".join([*before, *part, *before])
    found, _ = through({"decontaminate": {"sets": [str(folder / "r.jsonl")], "action": "flag"}}, text)
    hits = found.metadata.get("contaminated", [])
    assert bool(hits) == (len(part) >= 13)
    if hits:
        assert text[hits[0]["start"] : hits[0]["end"]].strip(",;") == " ".join(part).strip(",;")


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"sets": []}, "sets is empty"),
        ({"sets": ["gone.jsonl"]}, "gone.jsonl"),
        ({}, "'sets'"),
        ({"action": "ignore"}, "drop, cut or flag"),
        ({"ngram": 1}, "ngram=1"),
    ],
)
def test_wrong_settings(sets, settings, said):
    settings = settings if settings == {} or "sets" in settings else {"sets": sets, **settings}
    with pytest.raises(ValueError, match=said):
        through({"decontaminate": settings}, "a")


@pytest.mark.parametrize("content, said", [("", "has no items"), ("{broken\n", "item 1")])
def test_empty_and_broken_sets_are_refused(tmp_path, content, said):
    (tmp_path / "e.jsonl").write_text(content)
    with pytest.raises(ValueError, match=f"e.jsonl.*{said}"):
        through({"decontaminate": {"sets": [str(tmp_path / "e.jsonl")]}}, "a")


def test_files_of_the_sets_are_part_of_the_stamp(sets):
    step = decontaminate.Decontaminate(sets)
    before = step.state()
    with open(sets[0], "a") as file:
        file.write(json.dumps({"q": "more"}) + "\n")
    assert step.state() != before


def test_what_comes_together_by_a_cut_is_cut_too(tmp_path):
    """One item inside another: without the inner one the halves of the outer stand together."""
    outer, inner = ([f"{name}{number}" for number in range(20)] for name in ("outer", "inner"))
    write_jsonl(tmp_path / "two.jsonl", [{"q": " ".join(outer)}, {"q": " ".join(inner)}])
    step = {"decontaminate": {"sets": [str(tmp_path / "two.jsonl")], "action": "cut"}}
    text = " ".join(["Before", *outer[:10], *inner, *outer[10:], "after"])
    once, _ = through(step, text)
    again, changed = through(step, once.text)
    assert once.text.split() == ["Before", "after"] and again.text == once.text and changed == {}
    found = [text[hit["start"] : hit["end"]].split() for hit in once.metadata["contaminated"]]
    assert found == [outer[:10], inner, outer[10:]]
    assert through(step, " ".join(inner))[0] == "contaminated"  # nothing is left


def test_benchmarks_of_the_same_file_name_are_told_apart(tmp_path):
    for name, words in (("sums", "one"), ("facts", "two")):
        (tmp_path / name).mkdir()
        write_jsonl(tmp_path / name / "test.jsonl", [{"q": " ".join(f"{words}{number}" for number in range(20))}])
    step = {"decontaminate": {"sets": [str(tmp_path / "*/test.jsonl")]}}
    assert through(step, " ".join(f"two{number}" for number in range(20)))[1] == {"overlaps facts/test": 1}


def test_a_line_of_text_is_an_item(tmp_path):
    first, second = (" ".join(f"{name}{number}" for number in range(8)) for name in ("a", "b"))
    (tmp_path / "lines.txt").write_text(f"{first}\n\n{second}\n")
    step = {"decontaminate": {"sets": [str(tmp_path / "lines.txt")], "action": "flag"}}
    (hit,) = through(step, f"x {second} x")[0].metadata["contaminated"]
    assert hit == {"benchmark": "lines", "item": 2, "start": 2, "end": 2 + len(second)}


def test_accents_apart_from_their_letters_are_the_same(tmp_path):
    text = "Le caf\u00e9 d\u00e9j\u00e0 ferm\u00e9 \u00e9tait tr\u00e8s agr\u00e9able \u00e0 midi"
    write_jsonl(tmp_path / "fr.jsonl", [{"q": unicodedata.normalize("NFD", text)}])
    assert through({"decontaminate": {"sets": [str(tmp_path / "fr.jsonl")]}}, text)[0] == "contaminated"


def test_fields_that_no_item_has_are_refused(sets):
    with pytest.raises(ValueError, match=r"riddles.jsonl has 2 items, none with 8 words in fields \['qestion'\]"):
        through({"decontaminate": {"sets": sets, "fields": ["qestion"]}}, "a")


def test_large_sets_do_not_slow_each_document(tmp_path):
    """A search that sorts the runs of the sets for every document takes minutes here."""
    rows = [{"q": " ".join(f"w{number * 40 + place}" for place in range(40))} for number in range(3000)]
    write_jsonl(tmp_path / "big.jsonl", rows)
    apply = decontaminate.Decontaminate([str(tmp_path / "big.jsonl")]).open()
    documents = [Document(PROSE, "id", {}, "f", 1)] * 1000
    began = time.process_time()
    assert len(apply(documents, Tally())) == 1000 and time.process_time() - began < 3
