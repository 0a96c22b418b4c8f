"""Command line and YAML -> a typed, frozen `Run`, and back to the `run.yaml` that ranks read.

Hydra is used here only, and only its `compose`: `@hydra.main` on every rank would make several processes write the same
folder. Ranks read the frozen file with OmegaConf alone.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import typing
from pathlib import Path
from typing import Any, Iterator, List, Optional

from megatron_ext.config import schema
from megatron_ext.config.rundir import write_atomically

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
GROUPS = ("model", "data", "parallel", "optim", "train", "cluster")


class ConfigError(ValueError):
    """What the user typed does not make a run; the message is one they can act on."""


def compose(overrides: List[str], configs: Path = CONFIGS) -> schema.Run:
    """`["model=llama_tiny", "optim.lr=1e-3"]` -> Run. Raises ConfigError, with near names for a typo."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    _register_schema()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(configs)):
            return _to_run(hydra_compose("config", overrides=overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error, configs)) from None


def read(path: Path) -> schema.Run:
    """A frozen run.yaml -> Run. Raises ConfigError when it is missing, damaged, or of another version of the schema."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if not path.is_file():
        raise ConfigError(f"no frozen configuration at {path}; llm-launch writes it")
    try:
        return _to_run(OmegaConf.merge(_open_schema(), OmegaConf.load(path)))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{path}: {_explain(error, CONFIGS)}") from None


def freeze(run: schema.Run, path: Path) -> None:
    """Write the whole resolved configuration; `read(path) == run`."""
    write_atomically(path, to_yaml(run))


def to_yaml(run: schema.Run) -> str:
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.structured(run))


def flatten(run: schema.Run) -> dict[str, Any]:
    """{"optim.lr": 3e-4, ...}: for differences between runs, logging and tables."""

    def walk(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                yield from walk(getattr(value, field.name), f"{prefix}.{field.name}" if prefix else field.name)
        else:
            yield prefix, str(value) if isinstance(value, enum.Enum) else value

    return dict(walk(run, ""))


def usage(configs: Path = CONFIGS) -> str:
    """The groups with their choices, and every field with its type and default: the body of --help."""
    lines = ["Groups, chosen as group=choice:"]
    for group in GROUPS:
        lines.append(f"  {group:<9}{' '.join(_choices(configs, group))}")
    lines.append("\nFields, set as field=value (defaults before any preset):")
    for name, value in flatten(schema.Run()).items():
        lines.append(f"  {name}={'null' if value is None else value}{_alternatives(name)}")
    return "\n".join(lines)


def _register_schema() -> None:
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="schema", node=_open_schema())


def _open_schema() -> Any:
    """The schema as a typed tree. OmegaConf makes frozen dataclasses read-only; composing must write to them."""
    from omegaconf import DictConfig, OmegaConf

    def unlock(node: DictConfig) -> None:
        node._set_flag("readonly", None)
        for key in node:
            child = node._get_node(key)
            if isinstance(child, DictConfig):
                unlock(child)

    tree = OmegaConf.structured(schema.Run)
    unlock(tree)
    return tree


def _to_run(tree: Any) -> schema.Run:
    from omegaconf import OmegaConf

    run = OmegaConf.to_object(tree)
    assert isinstance(run, schema.Run)
    return run


def _choices(configs: Path, group: str) -> List[str]:
    return sorted(path.stem for path in (configs / group).glob("*.yaml"))


def _alternatives(name: str) -> str:
    """' (one of: a b)' for a field whose type is a Choice."""
    kind: Any = schema.Run
    for part in name.split("."):
        if not dataclasses.is_dataclass(kind):
            return ""
        kind = typing.get_type_hints(kind)[part]
    return f"  (one of: {' '.join(kind.__members__)})" if isinstance(kind, type) and issubclass(kind, enum.Enum) else ""


def _explain(error: Exception, configs: Path) -> str:
    """Hydra keeps the real reason in __cause__; to that, add the field and the near names of what was mistyped."""
    if missing := getattr(error, "missing_cfg_file", None):
        group, _, choice = str(missing).partition("/")
        text, near = f"no {group} preset named {choice!r}", _near(str(missing), configs)
    else:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        key = getattr(cause, "full_key", None)
        text = str(cause).split("\n    full_key")[0].strip() or str(error)
        text = f"{key}: {text}" if key and key in flatten(schema.Run()) else text
        near = _near(key or _quoted(str(error)) or "", configs)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{text}{hint} (llm-launch --help lists groups and fields)"


def _quoted(text: str) -> Optional[str]:
    parts = text.split("'")
    return parts[1] if len(parts) > 2 else None


def _near(key: str, configs: Path) -> List[str]:
    if "/" in key:  # a group's choice, as model/lama_tiny
        group, choice = key.split("/", 1)
        return [f"{group}={name}" for name in difflib.get_close_matches(choice, _choices(configs, group))]
    names = list(flatten(schema.Run())) + list(GROUPS)
    if key in names:  # the name is right, its value is not
        return []
    last = {name.rsplit(".", 1)[-1]: name for name in names}
    matches = difflib.get_close_matches(key, names) or [
        last[name] for name in difflib.get_close_matches(key.rsplit(".", 1)[-1], last)
    ]
    return matches[:3]
