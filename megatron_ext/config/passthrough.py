"""`model.megatron`: fields of Megatron's TransformerConfig that we have no field of our own for, by Megatron's names.

Their names are read from megatron-core's source, without importing it: a login node must refuse a typo at once, and
importing megatron-core imports torch, which takes seconds.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
from pathlib import Path
from typing import FrozenSet, Iterator

from megatron_ext.config.load import ConfigError
from megatron_ext.config.schema import Run

_CLASSES = {
    "core/transformer/transformer_config.py": "TransformerConfig",
    "core/model_parallel_config.py": "ModelParallelConfig",  # its base class
}


def complaints(run: Run) -> Iterator[str]:
    """A rule of `validate.py`."""
    if not run.model.megatron:
        return
    known = field_names()
    for name in run.model.megatron:
        if name not in known:
            near = " or ".join(difflib.get_close_matches(name, known))
            hint = f"; did you mean {near}?" if near else ""
            yield f"model.megatron.{name}: Megatron's TransformerConfig has no such field{hint}"


@functools.lru_cache(maxsize=1)
def field_names() -> FrozenSet[str]:
    """Names of the fields of the installed TransformerConfig. Raises ConfigError when there is none."""
    spec = importlib.util.find_spec("megatron")  # a namespace package: nothing is executed
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the names in model.megatron cannot be checked: megatron-core is not installed here")
    roots = [Path(place) for place in spec.submodule_search_locations]
    names: set[str] = set()
    for relative, name in _CLASSES.items():
        source = next(root / relative for root in roots if (root / relative).is_file())
        tree = ast.parse(source.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == name:
                fields = (item.target for item in node.body if isinstance(item, ast.AnnAssign))
                names |= {target.id for target in fields if isinstance(target, ast.Name)}
    return frozenset(names)
