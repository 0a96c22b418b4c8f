"""llm-convert: checkpoints from layout to layout, to and from Hugging Face, and compared. On CPU, as a stream."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

from megatron_ext.config.rundir import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED

_CONVERT_HELP = """examples:
  llm-convert runs/a runs/b/checkpoints/iter_0000100 --tensor 1 --pipeline 1   another layout, optimizer included;
                                              then llm-launch name=b ... resumes from it
  llm-convert runs/a exported --to hf                       for transformers, vLLM and the like
  llm-convert Llama-3.1-8B start --from hf                  then llm-launch ... train.init_from=start
  llm-convert verify runs/a exported                        the same weights, bit for bit?

SRC is a run folder, a folder of checkpoints (of both the newest whole checkpoint is taken) or one checkpoint.
DST must not exist, or be empty; it appears when all of it is on disk, with conversion.json: every tensor, where it
came from and the SHA-256 of its content. Sizes of the layout that are not given stay as they are in SRC.
Exit code: 0 done, 1 the work failed, 2 the input is wrong."""

_VERIFY_HELP = """examples:
  llm-convert verify runs/a runs/b             tensor by tensor, whatever the two layouts
  llm-convert verify runs/a exported           a checkpoint and a Hugging Face folder: the weights
  llm-convert verify exported                  against the hashes in its own conversion.json

Exit code: 0 the same, 1 they differ (the tensors are named), 2 the input is wrong or damaged."""


def main(arguments: Optional[List[str]] = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    logging.basicConfig(format="llm-convert: %(message)s")
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        if arguments[:1] == ["verify"]:
            return _verify(_verify_parser().parse_args(arguments[1:]))
        return _convert(_convert_parser().parse_args(arguments))
    except ValueError as error:
        print(f"llm-convert: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except (OSError, MemoryError) as error:
        print(f"llm-convert: {type(error).__name__}: {error}; nothing was written", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt as error:
        print(f"llm-convert: {error or 'interrupted'}; nothing was written", file=sys.stderr)
        return EXIT_FAILED
    finally:
        signal.signal(signal.SIGTERM, before)


def _convert(options: argparse.Namespace) -> int:
    """Torch is imported below this line, so that --help answers at once."""
    from checkpoints_tools import reshard, staging
    from checkpoints_tools.certificate import Certificate
    from checkpoints_tools.formats import huggingface
    from checkpoints_tools.hf import convert
    from checkpoints_tools.hf.views import AsHuggingFace, AsOurs
    from checkpoints_tools.locate import open_torch_dist

    started = time.perf_counter()
    changes = {name: getattr(options, name) for name in reshard.LAYOUT_FIELDS}
    if options.target == "hf" and (given := [name for name, size in changes.items() if size is not None]):
        raise ValueError(f"--{given[0].replace('_', '-')} has no meaning with --to hf: that format has no layout")
    shard_bytes = huggingface.parse_size(options.shard_size)
    with staging.staged(options.dst) as folder:
        if options.source == "hf":
            view: Any = AsOurs(huggingface.Reader(options.src))
            report = Certificate(options.src, "hf", "torch_dist")
            run = convert.new_run(view, changes)
            with _progress(view.tensors, "converting") as step:
                convert.from_huggingface(view, run, folder, options.dst, report, step)
        elif options.target == "hf":
            reader = open_torch_dist(options.src)
            view = AsHuggingFace(reader)
            report = Certificate(reader.folder, "torch_dist", "hf")
            with _progress(view.tensors, "converting") as step:
                convert.to_huggingface(view, folder, shard_bytes, report, step)
        else:
            reader = open_torch_dist(options.src)
            parallel = reshard.target_layout(reader.run.model, reader.run.parallel, changes)
            report = Certificate(reader.folder, "torch_dist", "torch_dist")
            with _progress(reader.tensors, "converting") as step:
                reshard.reshard(reader, parallel, folder, report, step)
    _say_done(options, report.content(), time.perf_counter() - started)
    return EXIT_DONE


def _say_done(options: argparse.Namespace, content: Dict[str, Any], seconds: float) -> None:
    for note in content["notes"]:
        print(f"llm-convert: {note}", file=sys.stderr)
    total = content["total"]
    if options.json:
        facts = {name: value for name, value in content.items() if name != "tensors"}
        print(json.dumps({"output": str(options.dst), "seconds": round(seconds, 3), **facts}))
        return
    sizes = ", ".join(f"{name} {size}" for name, size in content.get("layout", {}).items() if size != 1)
    layout = f", layout: {sizes or 'one rank'}" if "layout" in content else ""
    print(f"{options.dst}: {total['tensors']} tensors, {total['bytes']:,} bytes in {seconds:.1f} s{layout}")


def _verify(options: argparse.Namespace) -> int:
    from checkpoints_tools import verify
    from checkpoints_tools.locate import open_any

    a = open_any(options.a)
    with _progress(a.tensors, "comparing") as step:
        if options.b is None:
            verdict = verify.recheck(a, step)
        else:
            verdict = verify.compare(a, open_any(options.b), options.weights, step)
    for note in verdict.notes:
        print(f"llm-convert: {note}", file=sys.stderr)
    if options.json:
        facts = {"same": not verdict.different, "compared": verdict.compared, "bytes": verdict.nbytes}
        print(json.dumps({**facts, "different": verdict.different, "notes": verdict.notes}))
    else:
        print("\n".join(verdict.different)) if verdict.different else None
        count = f"{len(verdict.different)} differences" if verdict.different else "the same"
        print(f"{count}; {verdict.compared} compared, {verdict.nbytes:,} bytes")
    return EXIT_FAILED if verdict.different else EXIT_DONE


@contextmanager
def _progress(tensors: Dict[str, Any], what: str) -> Iterator[Any]:
    """A bar on a terminal, nothing in a log file."""
    from tqdm import tqdm

    total = sum(spec.nbytes for spec in tensors.values())
    with tqdm(total=total, desc=what, unit="B", unit_scale=True, disable=not sys.stderr.isatty(), leave=False) as bar:
        yield bar.update


def _convert_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("llm-convert", description=__doc__, epilog=_CONVERT_HELP, formatter_class=raw)
    parser.add_argument("src", type=Path, metavar="SRC")
    parser.add_argument("dst", type=Path, metavar="DST")
    parser.add_argument(
        "--from", dest="source", choices=["torch_dist", "hf"], default="torch_dist", help="format of SRC"
    )
    parser.add_argument("--to", dest="target", choices=["torch_dist", "hf"], default="torch_dist", help="format of DST")
    layout = parser.add_argument_group("layout of DST, as in the configuration group `parallel`")
    for name in ("data", "tensor", "pipeline", "virtual-pipeline", "context", "expert", "expert-tensor"):
        layout.add_argument(f"--{name}", type=int, metavar="N")
    parser.add_argument("--shard-size", default="5GB", metavar="SIZE", help="of a safetensors file (default: 5GB)")
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    return parser


def _verify_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "llm-convert verify", description="Compare checkpoints bit by bit.", epilog=_VERIFY_HELP, formatter_class=raw
    )
    parser.add_argument("a", type=Path, metavar="A")
    parser.add_argument("b", type=Path, metavar="B", nargs="?")
    parser.add_argument("--weights", action="store_true", help="leave optimizer state out of the comparison")
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    return parser


def _stop(number: int, frame: Any) -> None:
    raise KeyboardInterrupt("stopped by SIGTERM")


if __name__ == "__main__":
    sys.exit(main())
