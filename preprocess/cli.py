"""llm-preprocess: raw text to tokenised Megatron shards with a table of their documents, here or on Slurm."""

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
from megatron_ext.config.schema import ClusterKind, Run
from preprocess import report
from preprocess.manifest import Manifest
from preprocess.manifest import read as read_manifest
from preprocess.prepare import prepare
from preprocess.steps import STEPS

_EXAMPLE = """examples:
  llm-preprocess data=demo
  llm-preprocess data=clean data.source.inputs='[crawl/*.warc.gz]' data.source.output=runs/data/crawl/clean
  llm-preprocess data=clean cluster=slurm cluster.threads_per_rank=16 data.source.tasks=64
  python -m preprocess.show runs/data/demo/python_docs --sample 3

Writes <output>.bin and .idx (Megatron's format), .parquet (a row a document: where it came from, where its tokens are),
.report.json and .card.html (what is in it) and .json (what was read, kept and dropped, by which settings and
tokenizer); a shard without .json is not complete. Killed, the same command goes on; finished, it has nothing to do
until input, settings or code change. Exit codes: 0 done, 1 failed, 2 wrong input.
"""


def main(arguments: Optional[List[str]] = None) -> int:
    options = _parser().parse_intermixed_args(arguments)
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        return _prepare(options)
    except ValueError as error:
        print(f"llm-preprocess: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except (OSError, MemoryError, KeyboardInterrupt) as error:
        reason = str(error) or type(error).__name__
        print(f"llm-preprocess: {reason}; put right, the same command goes on from what is finished", file=sys.stderr)
        return EXIT_FAILED
    finally:
        signal.signal(signal.SIGTERM, before)


def _prepare(options: argparse.Namespace) -> int:
    overrides = list(options.overrides)
    if options.max_bad_records is not None:
        overrides.append(f"data.source.max_bad_records={options.max_bad_records}")
    run = load.compose(overrides)
    started, before = time.perf_counter(), _stamp(run.data.source.output)
    if run.cluster.kind == ClusterKind.slurm and options.force:
        raise ValueError(f"--force is for runs on this machine; remove {run.data.source.output}.json instead")
    if run.cluster.kind == ClusterKind.slurm:
        from preprocess import cluster

        found = cluster.prepare(run, lambda line: print(line, file=sys.stderr, flush=True), options.detach)
        if found is None:
            return EXIT_DONE
        manifest = found
    else:
        with _Progress() as progress:
            manifest = prepare(run.data, progress, options.force)
    seconds = time.perf_counter() - started
    if not options.no_report:
        report.write(run.data.source.output)
    if before == manifest.stamp and not options.force:
        print("nothing to do: input, settings and code are those it was made of", file=sys.stderr)
    said = sys.stderr if options.json else sys.stdout
    print(_summary(manifest, run.data.source.output, seconds), file=said)
    if not options.no_report:
        print(f"what is in it: {run.data.source.output}.card.html", file=said)
    if options.json:
        print(manifest.to_json(), end="")
    return EXIT_DONE


def _stamp(output: str) -> str:
    """Of what lies there; "" for nothing."""
    try:
        return read_manifest(output).stamp
    except ValueError:
        return ""


class _Progress:
    """A bar on a terminal, nothing in a log file."""

    def __init__(self) -> None:
        hidden = not sys.stderr.isatty()
        self._bar = tqdm(unit="B", unit_scale=True, disable=hidden, leave=False)
        self._what = ""

    def __enter__(self) -> _Progress:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._bar.close()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._what != what:
            self._what = what
            self._bar.reset(total)
            self._bar.set_description(what)
        self._bar.update(done - self._bar.n)


def _summary(manifest: Manifest, prefix: str, seconds: float) -> str:
    lines = [
        f"{prefix}: {manifest.documents:,} documents, {manifest.tokens:,} tokens of "
        f"{manifest.tokenizer.vocab_size:,} ids, {manifest.text_bytes / 1e6:,.1f} MB of text in {seconds:.1f} s "
        f"({manifest.tokens / seconds:,.0f} tokens/s, {manifest.text_bytes / 1e6 / seconds:.1f} MB/s)",
        f"tokenizer: {manifest.tokenizer.how}",
    ]
    for step in manifest.steps:
        lines += [f"{step.name}: changed {number:,} ({what})" for what, number in step.changed.items()]
        lines += [
            f"{step.name}: dropped {number:,} of {manifest.read:,} ({why})" for why, number in step.dropped.items()
        ]
    if manifest.created:
        lines.append(f"{manifest.created:,} documents were made from others")
    if manifest.unreadable:
        lines.append(f"{manifest.unreadable:,} records could not be read, the first: {manifest.unreadable_places[0]}")
    if manifest.unknown_tokens:
        lines.append(f"{manifest.unknown_tokens:,} tokens are <unk>: text that the shard does not hold")
    return "\n".join(lines)


def _stop(number: int, frame: Optional[FrameType]) -> None:
    raise KeyboardInterrupt("stopped by a signal")


def _parser() -> argparse.ArgumentParser:
    fields = [name for name in load.flatten(Run()) if name.startswith(("data.tokenizer.", "data.source."))]
    parser = argparse.ArgumentParser(
        prog="llm-preprocess",
        description=__doc__,
        epilog=f"{_EXAMPLE}\nSteps for data.source.steps: {', '.join(STEPS)}\n\nFields (types and defaults: "
        "llm-launch --help):\n  " + "\n  ".join(fields),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="data=choice or data.field=value")
    parser.add_argument("--max-bad-records", type=int, metavar="N", help="drop up to N records that cannot be read")
    parser.add_argument("--force", action="store_true", help="make it again, although nothing has changed")
    parser.add_argument("--no-report", action="store_true", help="make no dataset card now")
    parser.add_argument("--detach", action="store_true", help="on Slurm: submit and return, do not wait for the end")
    parser.add_argument("--json", action="store_true", help="print the manifest on stdout, the summary on stderr")
    return parser


if __name__ == "__main__":
    sys.exit(main())
