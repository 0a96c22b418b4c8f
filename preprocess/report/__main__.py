"""python -m preprocess.report PREFIX...: report and dataset card of finished sets, made again.

Exit codes: 0 written, 1 it could not be, 2 there is no such set.
"""

from __future__ import annotations

import argparse
import sys

from megatron_ext.config.rundir import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from preprocess.dataset import named
from preprocess.report import write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m preprocess.report", description=__doc__)
    parser.add_argument("prefix", nargs="+", type=named, help="as runs/data/demo/python_docs")
    try:
        for prefix in parser.parse_args().prefix:
            print(*write(prefix), sep="\n")
    except ValueError as error:
        print(f"preprocess.report: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except OSError as error:
        print(f"preprocess.report: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
