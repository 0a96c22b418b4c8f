"""Command line and YAML -> a typed, frozen `Run`, and back to the `run.yaml` that ranks read.

Hydra is used here only, and only its `compose`: `@hydra.main` on every rank would make several processes write the same
folder. Ranks read the frozen file with OmegaConf alone.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import re
import typing
from pathlib import Path
from typing import Any, Iterable, Iterator, List

from megatron_ext.config import schema
from megatron_ext.config.rundir import write_atomically

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
GROUPS = ("model", "data", "parallel", "optim", "train", "cluster")
_DICTIONARIES = ("model.megatron.", "cluster.env.")  # below these any key is legal
_END = "# end of the frozen configuration\n"
_HELP = "(llm-launch --help lists groups and fields)"


class ConfigError(ValueError):
    """What the user typed does not make a run; the message is one they can act on."""


def compose(overrides: List[str], configs: Path = CONFIGS) -> schema.Run:
    """`["model=llama_tiny", "optim.lr=1e-3"]` -> Run. Raises ConfigError, with near names for a typo."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    overrides = [_checked(override, configs) for override in overrides]
    _register_schema()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(configs)):
            return _to_run(hydra_compose("config", overrides=overrides))
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(_explain(error)) from None


def read(path: Path) -> schema.Run:
    """A frozen run.yaml -> Run. Raises ConfigError when it is missing, damaged, or of another version of the schema."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if not path.is_file():
        raise ConfigError(f"no frozen configuration at {path}; llm-launch writes it")
    try:
        text = path.read_text(encoding="utf-8")
        run = _to_run(OmegaConf.merge(_open_schema(), OmegaConf.create(text)))
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError, OSError, ValueError) as error:
        raise ConfigError(f"{path}: {_explain(error)}") from None
    # A file cut short is often valid YAML; defaults must not fill what is gone. (They do fill what an older version of
    # this program did not know.)
    if not text.endswith(_END):
        raise ConfigError(f"{path} is cut short: its last line is not {_END.strip()!r}; launch the run again")
    return run


def freeze(run: schema.Run, path: Path) -> None:
    """Write the whole resolved configuration; `read(path) == run`."""
    write_atomically(path, to_yaml(run))


def to_yaml(run: schema.Run) -> str:
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(_plain(run))) + _END


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


def _plain(value: Any) -> Any:
    """Dictionaries, lists and scalars. "${" is escaped: values are resolved by now, none is a reference to another."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", str(value))
    return value


def _checked(text: str, configs: Path) -> str:
    """One override, as Hydra wants it.

    Names are looked up here, before Hydra: it would take some wrong ones for its own, drop a group for a "~" in front
    of it, and speak of its tree rather than of our fields.
    """
    name, equals, value = text.partition("=")
    name = name.lstrip("+")
    if not equals or not name:
        raise ConfigError(f"{text!r} is neither group=choice nor field=value {_HELP}")
    if name in GROUPS:
        if value not in (choices := _choices(configs, name)):
            near = _hint(f"{name}={choice}" for choice in difflib.get_close_matches(value, choices))
            raise ConfigError(f"no {name} preset named {value!r}{near or '; there are: ' + ' '.join(choices)}")
    elif name.startswith(_DICTIONARIES):
        name = f"++{name}"
    elif inner := [field for field in flatten(schema.Run()) if field.startswith(f"{name}.")]:
        if not value.startswith("{"):
            raise ConfigError(f"{name} holds several fields; set one, as {inner[0]}=...")
    elif name not in flatten(schema.Run()):
        raise ConfigError(_unknown(name))
    _refuse_unreadable(text, name, value)
    return f"{name}={value}"


def _refuse_unreadable(text: str, name: str, value: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    name = name.lstrip("+")
    texts = value[1:-1].split(",") if value[:1] == "[" and value[-1:] == "]" else None
    inner = [f"'{text.strip(chr(39) + chr(34) + ' ')}'" for text in texts or [value]]
    quoted = f'{name}="{inner[0]}"' if texts is None else f'{name}="[{",".join(inner)}]"'
    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException:
        raise ConfigError(
            f"the value of {text!r} cannot be read; quote it for the shell and within: {quoted}"
        ) from None
    if parsed.is_sweep_override():
        raise ConfigError(f"{text!r} gives several values where one is wanted; a list is [a,b], a text {quoted}")


def _explain(error: Exception) -> str:
    """One line: the preset, if it is to blame, the field, and what is wrong with its value."""
    cause = _reason(error)
    where = f"{preset[1]}.yaml: " if (preset := re.match(r"In '([^']+)'", str(error))) else ""
    key = re.sub(r"\[\d+\]$", "", str(getattr(cause, "full_key", None) or ""))
    text = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    if mark := getattr(cause, "problem_mark", None):  # of YAML
        return f"{where or f'{mark.name}: '}{getattr(cause, 'problem', text)} in line {mark.line + 1}"
    if key and key not in flatten(schema.Run()) and "not in" in text:
        return f"{where}{_unknown(key)}"
    if "is not a ListConfig" in text:
        text = f"a list is wanted, as {key}=[a,b]"
    elif "is not Optional" in text:
        text = "null is not allowed here"
    elif wrong := re.match(r"Invalid value '(.*)', expected one of \[(.*)\]", text):
        text += _hint(difflib.get_close_matches(wrong[1].lower(), wrong[2].split(", ")))
    return f"{where}{key}: {text}" if key else f"{where}{text}"


def _reason(error: BaseException) -> BaseException:
    """What began it: the first of OmegaConf's errors, which names the field. Those of a preset are in __context__.

    Not the last cause: under a debugger or coverage OmegaConf adds its inner workings to the chain.
    """
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, OmegaConfBaseException):
        return error
    inner = error.__cause__
    if isinstance(error.__context__, OmegaConfBaseException):
        inner = error.__context__
    return error if inner is None else _reason(inner)


def _unknown(name: str) -> str:
    names = [*flatten(schema.Run()), *GROUPS]
    last = {field.rsplit(".", 1)[-1]: field for field in names}
    near = difflib.get_close_matches(name, names) or [
        last[match] for match in difflib.get_close_matches(name.rsplit(".", 1)[-1], last)
    ]
    return f"no group or field {name!r}{_hint(near)} {_HELP}"


def _hint(near: Iterable[str]) -> str:
    names = " or ".join(near)
    return f"; did you mean {names}?" if names else ""
