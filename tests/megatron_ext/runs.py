"""Runs made field by field, and what validate says about them."""

from __future__ import annotations

import dataclasses

import pytest

from megatron_ext.config import validate
from megatron_ext.config.load import ConfigError
from megatron_ext.config.schema import Choice, Run


def run_with(**values):
    """Run() with dotted fields set: run_with(**{"model.num_layers": 3})."""
    run = Run()
    for name, value in values.items():
        run = _replaced(run, name.split("."), value)
    return run


def _replaced(node, path, value):
    inner = value if len(path) == 1 else _replaced(getattr(node, path[0]), path[1:], value)
    current = getattr(node, path[0])
    if isinstance(current, Choice) and isinstance(inner, str):
        inner = type(current)(inner)
    return dataclasses.replace(node, **{path[0]: inner})


def complaint(check=validate.check_config, **values):
    with pytest.raises(ConfigError) as caught:
        check(run_with(**values))
    lines = str(caught.value).splitlines()
    assert lines[0] == "this run cannot work:" and all(line.startswith("  - ") for line in lines[1:])
    return "\n".join(lines[1:])
