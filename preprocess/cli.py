"""llm-preprocess: raw text to a tokenised Megatron shard with a table of its documents."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from types import FrameType, TracebackType
from typing import List, Optional, Type

from tqdm import tqdm

from megatron_ext.config import load
from megatron_ext.config.rundir import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from megatron_ext.config.schema import Run
from preprocess.prepare import prepare
from preprocess.shards import Sidecar

_EXAMPLE = """examples:
  llm-preprocess data=demo
  llm-preprocess data=demo data.source.inputs='[text/*.jsonl.zst]' data.source.output=runs/data/mine/part0
  python -m preprocess.verify runs/data/demo/python_docs

Writes <output>.bin and .idx (Megatron's format), .parquet (a row a document: where it came from, where its tokens are)
and, last, .json (what was read, kept and dropped, and by which tokenizer). A shard without .json is not complete.
Exit codes: 0 done, 1 failed, 2 wrong input. The same command again replaces the shard.
"""


def main(arguments: Optional[List[str]] = None) -> int:
    options = _parser().parse_intermixed_args(arguments)
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        data = load.compose(options.overrides).data
        with _Progress() as progress:
            sidecar = prepare(data, progress)
        said = sys.stderr if options.json else sys.stdout
        print(_summary(sidecar, data.source.output, progress.seconds), file=said)
        if options.json:
            print(sidecar.to_json(), end="")
        return EXIT_DONE
    except ValueError as error:
        print(f"llm-preprocess: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except (OSError, MemoryError, KeyboardInterrupt) as error:
        reason = str(error) or type(error).__name__
        print(f"llm-preprocess: {reason}; no shard was written", file=sys.stderr)
        return EXIT_FAILED
    finally:
        signal.signal(signal.SIGTERM, before)


class _Progress:
    """A bar on a terminal, nothing in a log file; and the time since the first document was looked at."""

    def __init__(self) -> None:
        hidden = not sys.stderr.isatty()
        self._bar = tqdm(desc="reading", unit="B", unit_scale=True, disable=hidden, leave=False)
        self._started: Optional[float] = None

    def __enter__(self) -> _Progress:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._bar.close()

    def __call__(self, consumed: int, total: int, tokens: int) -> None:
        if self._started is None:  # called once before any work: training a tokenizer does not count as tokenising
            self._started = time.perf_counter()
        self._bar.total = total
        self._bar.set_postfix_str(f"{tokens:,} tokens", refresh=False)
        self._bar.update(consumed - self._bar.n)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started if self._started is not None else 0.0


def _summary(sidecar: Sidecar, prefix: str, seconds: float) -> str:
    lines = [
        f"{prefix}: {sidecar.documents:,} documents, {sidecar.tokens:,} tokens of {sidecar.vocab_size:,} ids, "
        f"{sidecar.text_bytes / 1e6:,.1f} MB of text in {seconds:.1f} s "
        f"({sidecar.tokens / seconds:,.0f} tokens/s, {sidecar.text_bytes / 1e6 / seconds:.1f} MB/s)"
    ]
    lines += [f"dropped {number:,} of {sidecar.read:,} records: {why}" for why, number in sidecar.dropped.items()]
    if sidecar.unknown_tokens:
        lines.append(f"{sidecar.unknown_tokens:,} tokens are <unk>: text that the shard does not hold")
    return "\n".join(lines)


def _stop(number: int, frame: Optional[FrameType]) -> None:
    raise KeyboardInterrupt("stopped by a signal")


def _parser() -> argparse.ArgumentParser:
    fields = [name for name in load.flatten(Run()) if name.startswith(("data.tokenizer.", "data.source."))]
    parser = argparse.ArgumentParser(
        prog="llm-preprocess",
        description=__doc__,
        epilog=f"{_EXAMPLE}\nFields (types and defaults: llm-launch --help):\n  " + "\n  ".join(fields),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="data=choice or data.field=value")
    parser.add_argument("--json", action="store_true", help="print the sidecar on stdout, the summary on stderr")
    return parser


if __name__ == "__main__":
    sys.exit(main())
