"""Every field of the schema is typed, and read by something that acts on it: no knob does nothing."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import typing
from pathlib import Path

import pytest

from megatron_ext.config import schema

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("megatron_ext", "preprocess", "slurm", "checkpoints_tools")
CLASSES = [kind for kind in vars(schema).values() if dataclasses.is_dataclass(kind)]
CHOICES = [kind for kind in vars(schema).values() if isinstance(kind, type) and issubclass(kind, schema.Choice)]
NOT_ACTING = ("config/validate.py", "config/load.py")


def source_of_readers():
    for package in PACKAGES:
        for path in (REPOSITORY / package).rglob("*.py"):
            if not str(path).endswith(NOT_ACTING):
                yield path


def reads(tree):
    """(owner, name) of every attribute that is read: `run.model.norm` gives (model, norm) and (run, model)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield ast.unparse(node.value).rsplit(".", 1)[-1], node.attr
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":  # checkpoint.py records the layout so
            yield ast.unparse(node.args[0]).rsplit(".", 1)[-1], ast.unparse(node.args[1])


READ = {pair for path in source_of_readers() for pair in reads(ast.parse(path.read_text(encoding="utf-8")))}


@pytest.mark.parametrize("kind, name", [(kind, field.name) for kind in CLASSES for field in dataclasses.fields(kind)])
def test_every_field_is_read_where_something_is_done(kind, name):
    """From something called as the class is: model.norm, run.model.norm. A long name of its own, from anything."""
    section = kind.__name__.lower()
    is_unmistakable = "_" in name and sum(name in kind.__dataclass_fields__ for kind in CLASSES) == 1
    readers = {owner for owner, read in READ if read == name}
    assert section in readers or (is_unmistakable and readers), f"{section}.{name} is read by nobody: use or remove it"


@pytest.mark.parametrize("kind", CLASSES)
def test_classes_are_frozen_and_every_name_in_them_is_an_annotated_field(kind):
    assert kind.__dataclass_params__.frozen
    body = ast.parse(inspect.getsource(kind)).body[0].body
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    assert not assigned, f"without a type it is silently no field: {ast.unparse(assigned[0])}"
    annotated = [node.target.id for node in body if isinstance(node, ast.AnnAssign)]
    assert annotated == [field.name for field in dataclasses.fields(kind)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_field_has_a_default_of_its_type(kind):
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        value = getattr(kind(), field.name)
        accepted = typing.get_args(hints[field.name]) if typing.get_origin(hints[field.name]) is typing.Union else ()
        wanted = [typing.get_origin(a) or a for a in accepted or (hints[field.name],)]
        assert any(type(value) is kind for kind in wanted), f"{field.name}: {value!r} is none of {wanted}"


@pytest.mark.parametrize("kind", [kind for kind in CHOICES if kind is not schema.Choice])
def test_members_of_choices_equal_their_names(kind):
    """Hydra chooses by name, run.yaml and people write values: they must be the same."""
    assert issubclass(kind, enum.Enum) and len(kind) >= 2
    for member in kind:
        assert member.name == member.value == str(member)


def test_every_choice_is_the_type_of_a_field():
    used = {hint for kind in CLASSES for hint in typing.get_type_hints(kind).values()}
    assert [kind for kind in CHOICES if kind is not schema.Choice and kind not in used] == []
