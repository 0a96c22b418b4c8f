"""Facts -> dataset card: one HTML file without scripts or links to anything. Every word of the data is escaped."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from preprocess.report.bars import bars, columns, escaped

_SHOWN = 10  # rows beside a drawing; the others can be opened
_MOST = 200  # rows of a table; the report has all
_TITLES = {"source": "Sources", "licence": "Licences", "language": "Languages", "file": "Files"}
_LETTERS = 120  # of a name in a table
_NUMBER, _WIDE = ' class="number"', ' class="wide"'

Row = Tuple[str, ...]


def card(facts: Dict[str, Any]) -> str:
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=_text(facts["name"]),
        verdict=_verdict(facts),
        sections="\n".join(_sections(facts)),
        footer=_footer(facts),
    )


def _verdict(facts: Dict[str, Any]) -> str:
    dropped = sum(facts["dropped"].values())
    says = [
        f"<b>{facts['documents']:,}</b> documents with <b>{facts['tokens']:,}</b> tokens of "
        f"{facts['text_bytes'] / 1e6:,.1f} MB of text."
    ]
    what = f"{dropped:,} were dropped, each with a reason" if dropped else "none was dropped"
    says.append(f"Of {facts['read']:,} records read, {what}.")
    if missing := facts["by"]["licence"]["missing"]:
        says.append(f"The licence of {missing:,} documents is not known.")
    return " ".join(says)


def _sections(facts: Dict[str, Any]) -> Iterator[str]:
    yield _figures(facts)
    for name, title in _TITLES.items():
        if len(facts["by"][name]["top"]) > 1:
            yield _group(title, facts["by"][name], facts["tokens"])
    yield _lengths(facts["lengths"])
    if facts["time"]["years"]:
        yield _years(facts["time"])
    yield from _steps(facts)
    for name, score in facts["scores"]["names"].items():
        yield _score(name, score)
    yield _samples(facts)
    if facts["dropped_samples"]:
        yield _dropped_samples(facts)


def _figures(facts: Dict[str, Any]) -> str:
    tokenizer, tested = facts["tokenizer"], facts["tokenizer"]["self_test"]
    held = [
        ("Documents", f"{facts['documents']:,}"),
        ("Tokens", f"{facts['tokens']:,}"),
        ("Bytes of text a token", f"{facts['text_bytes'] / facts['tokens']:.2f}"),
        ("Vocabulary", f"{tokenizer['vocab_size']:,}"),
        ("Unknown tokens", f"{facts['unknown_tokens']:,}"),
        ("Texts that the tokenizer restores, of those tried", f"{tested['restored']} of {tested['tried']}"),
        ("Shards, of " + facts["dtype"], f"{facts['shards']:,}"),
    ]
    alone = [(name, facts["by"][name]["top"]) for name in ("source", "licence", "language")]
    held += [(name.capitalize(), _name(top[0]["value"])) for name, top in alone if len(top) == 1]
    came = [
        ("Input files", f"{facts['inputs']['files']:,}"),
        ("Stored size of the input", f"{facts['inputs']['bytes'] / 1e6:,.1f} MB"),
        ("Records read", f"{facts['read']:,}"),
        ("Dropped", f"{sum(facts['dropped'].values()):,}"),
        ("of them duplicates", f"{facts['duplicates_removed']:,}"),
        ("Unreadable", f"{facts['unreadable']:,}"),
        ("Made from other documents", f"{facts['created']:,} ({_share(facts['augmented_share'])})"),
    ]
    tables = _table("What it holds", (), held) + _table("What became of the input", (), came)
    return f'<h2>Figures</h2>\n<div class="pair">{tables}</div>'


def _group(title: str, group: Dict[str, Any], tokens: int) -> str:
    named = [(_name(one["value"]), one) for one in group["top"]]
    if group["other"]["documents"]:
        named.append((f"{group['other']['values']:,} others", group["other"]))
    rows = [
        (name, f"{one['documents']:,}", f"{one['tokens']:,}", _share(one["tokens"] / tokens)) for name, one in named
    ]
    drawn = [(name, one["tokens"], _share(one["tokens"] / tokens)) for name, one in named[:_SHOWN]]
    note = "" if group["exact"] else "There are too many to count each: those shown have at least these documents."
    head = (title, "documents", "tokens", "share")
    return _pair(title, bars(f"Tokens by {title.lower()}", drawn), _table("", head, rows), note)


def _lengths(lengths: Dict[str, Any]) -> str:
    drawn = [(_short(one["from"]), one["documents"], f"{one['documents']:,} documents") for one in lengths["bins"]]
    rows = [("shortest", f"{lengths['least']:,}")]
    rows += [(f"{100 * float(q):g} % are at most", f"{value:,}") for q, value in lengths["quantiles"].items()]
    rows += [("longest", f"{lengths['greatest']:,}"), ("mean", f"{lengths['mean']:,.1f}")]
    bins = [
        (f"{one['from']:,} to {one['to']:,}", f"{one['documents']:,}", f"{one['tokens']:,}") for one in lengths["bins"]
    ]
    table = _table("", ("document", "tokens"), rows) + _details(
        "by length", _table("", ("tokens", "documents", "tokens in all"), bins)
    )
    note = "Columns: documents by their number of tokens, each column from the number below it to twice that."
    return _pair("Lengths", columns("Documents by number of tokens", drawn), table, note)


def _years(time: Dict[str, Any]) -> str:
    drawn = [(str(one["year"]), one["documents"], f"{one['documents']:,} documents") for one in time["years"]]
    rows = [(str(one["year"]), f"{one['documents']:,}") for one in time["years"]]
    note = f"{time['missing']:,} documents have no time; of {time['unread']:,} the year cannot be read."
    return _pair("Years", columns("Documents by year", drawn), _table("", ("year", "documents"), rows), note)


def _steps(facts: Dict[str, Any]) -> Iterator[str]:
    reasons = sorted(facts["dropped"].items(), key=lambda item: (-item[1], item[0]))
    if facts["unreadable"]:
        reasons.append(("unreadable", facts["unreadable"]))
    if reasons:
        read = facts["read"] + facts["created"]
        drawn = [(name, number, f"{number:,}") for name, number in reasons[:_SHOWN]]
        rows = [(name, f"{number:,}", _share(number / read)) for name, number in reasons]
        table = _table("", ("step: reason", "documents", "of all"), rows)
        pair = _pair("Dropped, by reason", bars("Dropped documents by reason", drawn), table, "")
        yield f'<div class="drops">{pair}</div>'
    changes = [(f"{one['name']}: {what}", f"{n:,}") for one in facts["steps"] for what, n in one["changed"].items()]
    if changes:
        yield f"<h2>Changed</h2>\n{_table('', ('step: what', 'documents'), changes)}"
    settings = [
        (one["name"], ", ".join(f"{key}={value}" for key, value in one["settings"].items())) for one in facts["steps"]
    ]
    told = [(name, said) for name, said in settings if said]
    if told:
        yield _details("settings of the steps", _table("", ("step", "settings"), told, wide=True))


def _score(name: str, score: Dict[str, Any]) -> str:
    edges = score["edges"]
    drawn = [
        (f"{low:.3g}", count, f"to {high:.3g}: {count:,} documents")
        for low, high, count in zip(edges, edges[1:], score["counts"])
    ]
    rows = [(what, f"{score[what]:.4g}") for what in ("least", "median", "greatest")]
    rows.insert(0, ("documents looked at", f"{score['documents']:,}"))
    return _pair(f"Score: {name}", columns(f"Documents by score {name}", drawn), _table("", ("", name), rows), "")


def _samples(facts: Dict[str, Any]) -> str:
    if facts["samples_missing"]:
        return f'<h2>Samples</h2>\n<p class="note">None: {_text(facts["samples_missing"])}</p>'
    return "\n".join(["<h2>Samples, decoded from the shard</h2>", *map(_quote, facts["samples"])])


def _dropped_samples(facts: Dict[str, Any]) -> str:
    parts = ["<h2>Samples of what was dropped</h2>"]
    for reason, some in facts["dropped_samples"].items():
        parts += [_details(f"{reason} ({facts['dropped'][reason]:,})", "\n".join(map(_quote, some)))]
    return "\n".join(parts)


def _quote(one: Dict[str, Any]) -> str:
    told = ", ".join(f"{name} {value}" for name, value in one.items() if name != "text" and value not in ("", None))
    return f'<blockquote><span class="origin">{_text(told)}</span><p dir="auto">{_text(one["text"])}</p></blockquote>'


def _footer(facts: Dict[str, Any]) -> str:
    made, tokenizer = facts["created_by"], facts["tokenizer"]
    libraries = ", ".join(f"{name} {version}" for name, version in made.get("libraries", {}).items())
    return _text(
        f"Fingerprint {facts['fingerprint']}. Tokenizer {tokenizer['path']} (SHA-256 {tokenizer['sha256']}), "
        f"{tokenizer['how']}. megatron-ext {made.get('version', '')}; {libraries}."
    )


def _pair(title: str, drawing: str, table: str, note: str) -> str:
    said = f'<p class="note">{_text(note)}</p>' if note else ""
    return f'<h2>{_text(title)}</h2>\n<div class="pair"><figure>{drawing}</figure><div>{table}</div></div>{said}'


def _table(caption: str, head: Row, rows: Sequence[Row], wide: bool = False) -> str:
    """The rows beyond some follow where they can be opened. All is escaped here."""
    top = f"<caption>{_text(caption)}</caption>" if caption else ""
    if head:
        cells = [
            f'<th scope="col"{_NUMBER if number and not wide else ""}>{_text(name)}</th>'
            for number, name in enumerate(head)
        ]
        top += f"<thead><tr>{''.join(cells)}</tr></thead>"
    shown, others = rows[: _SHOWN + 1], rows[_SHOWN + 1 : _MOST]
    what = f"{len(rows) - len(shown):,} more" + (f", {len(others):,} of them here" if len(rows) > _MOST else "")
    more = _details(what, _plain(top, others, wide)) if others else ""
    return _plain(top, shown, wide) + more


def _plain(top: str, rows: Sequence[Row], wide: bool) -> str:
    lines: List[str] = []
    for name, *values in rows:
        cells = "".join(
            f"<td{_WIDE if wide else ''}>{_text(value, 1000 if wide else _LETTERS)}</td>" for value in values
        )
        lines.append(f'<tr><th scope="row">{_text(name, _LETTERS)}</th>{cells}</tr>')
    body = "\n".join(lines)
    return f"<table>{top}<tbody>\n{body}\n</tbody></table>"


def _details(summary: str, inside: str) -> str:
    return f"<details><summary>{_text(summary)}</summary>{inside}</details>"


def _text(value: str, most: int = 2000) -> str:
    """Escaped and shortened."""
    cut = value if len(value) <= most else value[: most - 1] + "\u2026"
    return escaped(cut)


def _name(value: Any) -> str:
    return "not given" if value is None else value or "(empty)"


def _share(part: float) -> str:
    return f"{100 * part:.1f} %" if part >= 0.001 or not part else "< 0.1 %"


def _short(number: int) -> str:
    """A power of two."""
    for power, letter in ((30, "G"), (20, "M"), (10, "k")):
        if number >= 1 << power:
            return f"{number >> power}{letter}"
    return str(number)
