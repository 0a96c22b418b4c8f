"""Run a script of Megatron-LM, the working folder, under a Python that lacks typing.override (before 3.12)."""

from __future__ import annotations

import runpy
import sys
import typing


def main() -> None:
    if not hasattr(typing, "override"):
        setattr(typing, "override", lambda method: method)  # noqa: B010 - the name is not known to type checkers
    sys.argv = sys.argv[1:]
    sys.path.insert(0, ".")
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
