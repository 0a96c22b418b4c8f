"""Report and dataset card: the figures are those of the table, and no document can make the page do anything."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess import report
from preprocess.prepare import prepare
from preprocess.report import card, counters, facts, samples
from preprocess.report.bars import bars, columns
from preprocess.report.counters import Groups, Lengths, Scores, Years
from tests.preprocess.test_verify import chat

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&lt;b \x00\x1b[2J \u202e </style></title></svg>"


def records(number=40):
    for n in range(number):
        yield {
            "id": f"id-{n}",
            "text": f"the lazy dog {'fox ' * n}",
            "source": ("wiki", "web", "books")[n % 3],
            "license": None if n % 4 == 0 else "CC0-1.0",
            "language": ("en", "de")[n % 2],
            "date": f"{2001 + n % 5}-02-03",
            "scores": {"good": n / 10, "odd": "no number"},
        }


@pytest.fixture
def made(tmp_path, make_data):
    manifest = prepare(make_data([*records(), {"text": ""}, {"text": " "}], keep_dropped=True, shard_tokens=400))
    assert len(manifest.shards) > 1
    return manifest, str(tmp_path / "out")


# --- the figures --------------------------------------------------------------------------------------------------


def test_figures_are_those_of_manifest_and_table(made):
    manifest, prefix = made
    found = facts(prefix)
    table = pa.concat_tables([pq.read_table(f"{one}.parquet") for one in manifest.prefixes(prefix)]).to_pylist()
    for name in ("fingerprint", "documents", "tokens", "text_bytes", "read", "kept", "dropped", "dtype"):
        assert found[name] == getattr(manifest, name)
    for column in ("source", "licence", "language", "file"):
        group = found["by"][column]
        expected = Counter(row[column] for row in table)
        assert {one["value"]: one["documents"] for one in group["top"]} == expected and group["exact"]
        assert sum(one["tokens"] for one in group["top"]) == manifest.tokens
    assert found["by"]["licence"]["missing"] == 10
    assert [(one["year"], one["documents"]) for one in found["time"]["years"]] == [(2001 + n, 8) for n in range(5)]
    assert found["scores"]["left_out"] == 40 and sum(found["scores"]["names"]["good"]["counts"]) == 40
    assert found["dropped_samples"] == {"empty: empty": [found["dropped_samples"]["empty: empty"][n] for n in (0, 1)]}
    assert [one["line"] for one in found["dropped_samples"]["empty: empty"]] == [41, 42]


def test_samples_are_documents_of_the_set(made):
    _, prefix = made
    texts = {record["id"]: record["text"] for record in records()}
    found = facts(prefix)["samples"]
    assert len(found) == 10 and len({one["document"] for one in found}) == 10
    for one in found:
        assert one["text"] == texts[one["id"]][: len(one["text"])] and one["document"] == int(one["id"][3:])


def test_reports_of_equal_sets_are_equal_and_nothing_else_is_touched(made, tmp_path):
    _, prefix = made
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    paths = report.write(prefix)
    first = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in report.write(prefix)] == first
    assert [path.name for path in paths] == ["out.report.json", "out.card.html"]
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file() and path not in paths} == before
    assert json.loads(first[0])["documents"] == 40


def test_without_its_tokenizer_a_set_still_has_a_report(tmp_path, make_data, sentencepiece_model):
    here = tmp_path / "here.model"
    shutil.copy(sentencepiece_model, here)
    prepare(make_data([{"text": "fox"}], tokenizer=str(here)))
    here.unlink()
    found = facts(str(tmp_path / "out"))
    assert found["samples"] == [] and "here.model does not exist" in found["samples_missing"]
    assert "here.model does not exist" in card(found)


def test_conversations_have_a_report_too(tmp_path, make_data, tokenizer_json):
    chat(tmp_path, make_data, tokenizer_json)
    found = facts(str(tmp_path / "out"))
    assert "lazy" in found["samples"][0]["text"]
    check_page(card(found))


def test_steps_duplicates_and_made_documents_are_told(made):
    manifest, prefix = made
    told = json.loads(Path(f"{prefix}.json").read_text())
    told["steps"].append(
        {"name": "near_duplicates", "settings": {"similarity": 0.75}, "changed": {}, "dropped": {"duplicate": 5}}
    )
    told["steps"].append({"name": "normalise", "settings": {}, "changed": {"line ends": 3}, "dropped": {}})
    told.update(created=8, unreadable=2)
    told["dropped"]["near_duplicates: duplicate"] = 5
    Path(f"{prefix}.json").write_text(json.dumps(told))
    found = facts(prefix)
    assert (found["duplicates_removed"], found["augmented_share"], found["unreadable"]) == (5, 8 / 40, 2)
    page = card(found)
    for said in ("near_duplicates: duplicate", "similarity=0.75", "normalise: line ends", "20.0 %", "unreadable"):
        assert said in page


def test_the_command(made, capsys, tmp_path):
    command = [sys.executable, "-m", "preprocess.report"]
    ran = subprocess.run([*command, made[1]], capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.split() == [f"{made[1]}.report.json", f"{made[1]}.card.html"]
    ran = subprocess.run([*command, str(tmp_path / "gone")], capture_output=True, text=True)
    assert ran.returncode == 2 and "is not complete" in ran.stderr and "Traceback" not in ran.stderr


# --- counters: exact where they say so, bounded always ------------------------------------------------------------


@given(rows=st.lists(st.tuples(st.sampled_from([None, "", *"abcdefgh"]), st.integers(1, 9)), min_size=1, max_size=60))
def test_groups_lose_nothing(rows):
    """Held are at most 4, told apart 2: the sums stay, and what is shown is no more than there is."""
    groups = Groups()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counters, "LIMIT", 4)
        patch.setattr(counters, "TOP", 2)
        for start in range(0, len(rows), 7):
            part = rows[start : start + 7]
            groups.add(pa.array([value for value, _ in part], pa.string()), pa.array([tokens for _, tokens in part]))
        found = groups.result()
    documents, tokens = Counter(value for value, _ in rows), Counter()
    for value, number in rows:
        tokens[value] += number
    assert sum(one["documents"] for one in found["top"]) + found["other"]["documents"] == len(rows)
    assert sum(one["tokens"] for one in found["top"]) + found["other"]["tokens"] == sum(tokens.values())
    assert found["missing"] == documents[None]
    for one in found["top"]:
        assert one["documents"] <= documents[one["value"]] and one["tokens"] <= tokens[one["value"]]
        assert not found["exact"] or (one["documents"], one["tokens"]) == (
            documents[one["value"]],
            tokens[one["value"]],
        )
    if found["exact"]:
        assert [one["tokens"] for one in found["top"]] == sorted(tokens.values(), reverse=True)[:2]


def test_as_many_sources_as_documents_are_held_in_bounds():
    groups = Groups()
    for start in range(0, 200_000, 50_000):
        groups.add(
            pa.array([f"{n:06}{'x' * 300}" for n in range(start, start + 50_000)]), pa.array(np.ones(50_000, np.int64))
        )
        assert len(groups._found) <= counters.LIMIT
    found = groups.result()
    assert not found["exact"] and len(found["top"]) == counters.TOP
    assert sum(one["documents"] for one in found["top"]) + found["other"]["documents"] == 200_000
    assert max(len(one["value"]) for one in found["top"]) == 200


@given(
    parts=st.lists(
        st.lists(st.one_of(st.integers(1, 40), st.integers(1, 2**31 - 1)), min_size=1), min_size=1, max_size=4
    )
)
def test_lengths_are_exact_up_to_a_million_tokens(parts):
    lengths = Lengths()
    for part in parts:
        lengths.add(np.asarray(part, np.int64))
    found, values = lengths.result(), np.sort(np.concatenate([np.asarray(part, np.int64) for part in parts]))
    assert (found["least"], found["greatest"], found["mean"]) == (values[0], values[-1], values.sum() / len(values))
    for q, value in found["quantiles"].items():
        exact = np.quantile(values, float(q), method="inverted_cdf")
        assert value == exact if exact < 1 << 20 else value == values[-1]
    for one in found["bins"]:
        inside = values[(values >= one["from"]) & (values <= one["to"])]
        assert (one["documents"], one["tokens"]) == (len(inside), inside.sum())
    assert sum(one["documents"] for one in found["bins"]) == len(values)


@pytest.mark.parametrize(
    "time, year",
    [
        ("2023-09-05", 2023),
        ("2023-09-05T12:00:00Z", 2023),
        ("1999/12/31 23:59", 1999),
        ("20230905", 2023),
        ("20230905120000", 2023),
        ("2023", 2023),
        ("Tue, 05 Sep 2023 12:00:00 GMT", 2023),
        ("05.09.2023", 2023),
        ("1693915200", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_the_year_is_read_from_what_corpora_have(time, year):
    years = Years()
    years.add(pa.array([time, None]))
    found = years.result()
    assert [one["year"] for one in found["years"]] == ([year] if year else [])
    assert (found["missing"], found["unread"]) == (1, int(year is None))


def test_scores_of_any_shape_are_counted_or_told_to_be_left_out():
    scores = Scores()
    texts = ['{"a": 1, "b": null}', '{"a": NaN}', '{"a": 2.5, "c": "x"}', "[1]", "3", None, '{"a": Infinity}']
    scores.add(pa.array([*texts, json.dumps({f"n{n}": n for n in range(40)})]))
    found = scores.result()
    assert found["documents"] == 8 and len(found["names"]) == counters._NAMES
    assert (found["names"]["a"]["least"], found["names"]["a"]["greatest"]) == (1, 2.5)
    assert found["names"][""]["counts"] == [1]


def test_three_dropped_documents_of_each_reason_are_shown(tmp_path, make_data):
    manifest = prepare(
        make_data([{"text": " ", "id": str(n)} for n in range(9)] + [{"text": "fox"}], keep_dropped=True)
    )
    found = samples.dropped(str(tmp_path / "out"), manifest.dropped)
    assert [one["id"] for one in found["empty: empty"]] == ["0", "1", "2"]


def test_dropped_documents_are_looked_for_in_bounds(made, monkeypatch):
    manifest, prefix = made
    monkeypatch.setattr(samples, "_ASIDE_BYTES", 1)
    assert len(samples.dropped(prefix, manifest.dropped)["empty: empty"]) == 1
    assert samples.dropped(prefix, {"other: reason": 4}) == {}
    assert samples.dropped("gone", manifest.dropped) == {}


# --- the card -----------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would see: elements in order, whether they are closed as they were opened."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.addresses, self.handlers, self.text = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in ("meta", "rect", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("rect", "line"):
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def check_page(text):
    page = Page(text)
    assert not {"script", "img", "link", "iframe", "object"} & set(page.tags)
    assert page.addresses == [] and page.handlers == []
    assert "http:" not in text and "https:" not in text and "url(" not in text and "@import" not in text
    assert all(one.isprintable() or one in "\n\t" for one in text) and len(text.encode()) < 1_000_000
    return page


def test_no_document_makes_the_page_do_anything(tmp_path, make_data):
    """Every field that a corpus fills holds markup, among it what ends the elements that it stands in."""
    names = ("source", "license", "language", "url")
    evil = dict.fromkeys(names, EVIL)
    lines = [{"id": EVIL, "text": EVIL + " fox", **evil, "scores": {EVIL: n}, "date": "2020"} for n in range(3)]
    prepare(make_data([*lines, {"text": " ", "id": EVIL}], keep_dropped=True))
    path = tmp_path / "out.json"
    told = json.loads(path.read_text())
    told["steps"].append({"name": EVIL, "settings": {EVIL: EVIL}, "changed": {EVIL: 1}, "dropped": {EVIL: 1}})
    told["dropped"][EVIL] = 1
    told["tokenizer"]["how"] = told["created_by"]["version"] = EVIL
    path.write_text(json.dumps(told))
    page = check_page(card(facts(str(tmp_path / "out"))))
    assert sum("<script>alert(1)</script>" in text for text in page.text) > 10  # it is shown, as text


def test_each_drawing_has_a_title_and_a_table_beside_it(made):
    page = check_page(card(facts(made[1])))
    places = [place for place, tag in enumerate(page.tags) if tag == "svg"]
    assert len(places) == 7
    for place, following in zip(places, [*places[1:], len(page.tags)]):
        assert page.tags[place + 1] == "title" and "table" in page.tags[place:following]
    assert page.tags.count("h1") == 1


def test_the_card_of_a_wild_corpus_stays_small(tmp_path, make_data):
    """Sources, reasons and scores without number, all of them long."""
    lines = [
        {"text": "fox " * 400, "source": f"{n}" * 400, "id": "x" * 5000, "date": str(1900 + n)} for n in range(120)
    ]
    lines = [{**line, "scores": {f"{n}" * 300: n for n in range(30)}} for line in lines]
    prepare(make_data(lines))
    path = tmp_path / "out.json"
    told = json.loads(path.read_text())
    told["dropped"] = {f"step{n}: {'why ' * 200}": n for n in range(9000)}
    told["steps"] = [{"name": "x" * 500, "settings": {"words": ["w" * 100] * 9999}, "changed": {}, "dropped": {}}] * 30
    path.write_text(json.dumps(told))
    check_page(card(facts(str(tmp_path / "out"))))


@pytest.mark.parametrize("draw", [bars, columns])
@pytest.mark.parametrize("rows", [[], [("a", 0, "0")], [("a" * 500, 1, "1"), ("b", 10**15, "10**15")]])
def test_drawings_of_nothing_and_of_extremes(draw, rows):
    Page(draw("title", rows))


@pytest.mark.parametrize("label, said", [("a" * 20, "a" * 20), ("b" + "a" * 20, "…" + "a" * 19), ("字" * 10, "字" * 10),
                                         ("字" * 11, "…" + "字" * 9)])  # fmt: skip
def test_long_names_are_cut_to_the_room_that_they_have(label, said):
    assert f">{said}</text>" in bars("title", [(label, 1, "1")])
