"""python -m preprocess.show PREFIX: documents of a finished set, decoded from its tokens, with what is known of them.

--token is the way back from training: the document that the token at a position of the .bin is of.
Exit codes: 0 shown, 1 nothing found, 2 wrong input (no such set or document, another tokenizer).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from typing import Any, Dict, Iterable, List, Optional

import pyarrow.compute as pc

from megatron_ext.config.rundir import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from preprocess.dataset import Dataset, named

_EXAMPLE = """examples:
  python -m preprocess.show runs/data/demo/python_docs --document 7
  python -m preprocess.show runs/data/demo/python_docs --find library/json
  python -m preprocess.show runs/data/demo/python_docs --token 123456 --json
"""


def sample(data: Dataset, number: int, seed: int = 0) -> List[int]:
    """Numbers of as many documents, ascending; always the same of a set of this size."""
    return sorted(random.Random(seed).sample(range(len(data)), min(number, len(data))))


def main(arguments: Optional[List[str]] = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        data, found = Dataset(options.prefix, options.tokenizer), False
        for number in _chosen(data, options):
            facts = {**data.row(number), "shard": data.prefixes[data.place(number)[0]], "text": data.text(number)}
            print(json.dumps(facts, ensure_ascii=False) if options.json else _readable(number, facts, len(data)))
            found = True
        sys.stdout.flush()
    except ValueError as error:
        print(f"preprocess.show: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:  # into `head`: it has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    if not found:
        print(f"preprocess.show: none of {len(data):,} documents is like that", file=sys.stderr)
    return EXIT_DONE if found else EXIT_FAILED


def _chosen(data: Dataset, options: argparse.Namespace) -> Iterable[int]:
    if options.sample is not None:
        if options.sample < 1:
            raise ValueError(f"--sample={options.sample}: give 1 or more documents")
        return sample(data, options.sample)
    if options.id is not None:
        return data.find(["id"], lambda column: pc.equal(column, options.id))
    if options.find is not None:
        return data.find(["id", "url"], lambda column: pc.match_substring(column, options.find))
    return [data.at_token(options.token) if options.token is not None else options.document]


def _readable(number: int, facts: Dict[str, Any], documents: int) -> str:
    head = [f"document {number} of {documents}"]
    head += [f"{name}: {_value(value)}" for name, value in facts.items() if name != "text" and value not in (None, {})]
    return "\n".join([*map(_visible, head), "", _visible(facts["text"]), ""])


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _visible(text: str) -> str:
    """Without what a terminal would obey: a document may hold any character."""
    return "".join(one if one.isprintable() or one in "\n\t" else f"\\u{ord(one):04x}" for one in text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m preprocess.show",
        description=__doc__,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prefix", type=named, help="of a set of shards, or of one of them")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--document", type=int, default=0, metavar="N", help="by number, from 0 (default: 0)")
    which.add_argument("--id", help="those of this id")
    which.add_argument("--find", metavar="TEXT", help="those with this text in id or url")
    which.add_argument("--sample", type=int, metavar="K", help="as many, spread at random, each time the same")
    which.add_argument("--token", type=int, metavar="POSITION", help="the one that this token is of, counted from 0")
    parser.add_argument("--tokenizer", default="", metavar="FILE", help="where it is now, if not where it was")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    return parser


if __name__ == "__main__":
    sys.exit(main())
