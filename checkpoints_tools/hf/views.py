"""A checkpoint of one format seen as the other's tensors: read in turn, either view is a conversion.

    AsHuggingFace(torch_dist reader)   offers model.layers.0.self_attn.q_proj.weight, ...
    AsOurs(Hugging Face reader)        offers decoder.layers.self_attention.linear_qkv.weight, ...

Building a view checks that every name of the source is used, every name needed is there, and all shapes agree.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from checkpoints_tools.certificate import dtype_name
from checkpoints_tools.formats import huggingface, torch_dist
from checkpoints_tools.formats.tensors import Damaged, Shape, Spec, part
from checkpoints_tools.hf import llama
from checkpoints_tools.hf.rules import LAYER, Rule
from megatron_ext.config.schema import Model

ARCHITECTURES = {llama.MODEL_TYPE: llama}


def architecture(config: Dict[str, Any]) -> Any:
    """The module for this config.json. Raises ValueError for a model that we have no table for."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise ValueError(f"config.json model_type={kind!r}: only {', '.join(ARCHITECTURES)} can be converted")
    return ARCHITECTURES[kind]


class AsHuggingFace:
    def __init__(self, reader: torch_dist.Reader, family: Any = llama) -> None:
        model = reader.run.model
        weights = {n: spec for n, spec in reader.tensors.items() if not n.startswith(torch_dist.OPTIMIZER)}
        self.reader, self.dtype = reader, _one_dtype(weights)
        self.config = family.to_config(model, self.dtype)
        self.left_out = sum(spec.nbytes for n, spec in reader.tensors.items() if n not in weights)
        self.padding: List[str] = []  # of ours, tensors whose padding rows, which theirs have not, are not zero
        table = family.rules(model)
        expected = {rule.ours: _stacked(rule, model) for rule in table}
        _compare(expected, {name: spec.shape for name, spec in weights.items()}, str(reader.folder))
        self._places: Dict[str, Tuple[Rule, Optional[int], int]] = {}
        self.tensors: Dict[str, Spec] = {}
        for rule, layer in _in_order(table, model.num_layers):
            for number, (name, shape) in enumerate(rule.theirs.items()):
                self.tensors[_named(name, layer)] = Spec(shape, weights[rule.ours].dtype)
                self._places[_named(name, layer)] = (rule, layer, number)
        self._last: Tuple[Any, List[torch.Tensor]] = (None, [])

    def read(self, name: str, offset: Shape, shape: Shape) -> torch.Tensor:
        rule, layer, number = self._places[name]
        if self._last[0] != (rule.ours, layer):  # q, k and v, say, come from one reading
            self._last = (None, [])
            self._last = ((rule.ours, layer), self._split(rule, layer))
        return part(self._last[1][number], offset, shape).contiguous()

    def sources(self, name: str) -> List[str]:
        rule, layer, _ = self._places[name]
        return [rule.ours if layer is None else f"{rule.ours}[{layer}]"]

    def _split(self, rule: Rule, layer: Optional[int]) -> List[torch.Tensor]:
        index = () if layer is None else (layer,)
        data = self.reader.read(rule.ours, (*index, *[0] * len(rule.shape)), (*[1] * len(index), *rule.shape))
        data = data.view(rule.shape)
        if rule.padding and bool(data[-rule.padding :].any()) and rule.ours not in self.padding:
            self.padding.append(rule.ours)
        return rule.split(data)


class AsOurs:
    def __init__(self, reader: huggingface.Reader) -> None:
        family = architecture(reader.config)
        self.reader, self.model = reader, family.from_config(reader.config)
        self.left_out = [name for name in reader.tensors if any(re.fullmatch(p, name) for p in family.DERIVED)]
        if self.model.tie_embeddings and "lm_head.weight" in reader.tensors:
            _check_tied(reader)
            self.left_out.append("lm_head.weight")
        given = {name: spec for name, spec in reader.tensors.items() if name not in self.left_out}
        self.dtype = _one_dtype(given)
        self._rules = {rule.ours: rule for rule in family.rules(self.model)}
        order = list(_in_order(list(self._rules.values()), self.model.num_layers))
        expected = {_named(name, layer): shape for rule, layer in order for name, shape in rule.theirs.items()}
        _compare(expected, {name: spec.shape for name, spec in given.items()}, str(reader.folder))
        shapes = {name: _stacked(rule, self.model) for name, rule in self._rules.items()}
        self.tensors = {name: Spec(shape, self.dtype) for name, shape in shapes.items()}

    def read(self, name: str, offset: Shape, shape: Shape) -> torch.Tensor:
        rule = self._rules[name]
        layers = range(offset[0], offset[0] + shape[0]) if rule.is_layered else [None]
        tensors = [part(self._join(rule, layer), *self._within(rule, offset, shape)) for layer in layers]
        return (tensors[0] if len(tensors) == 1 else torch.cat(tensors)).contiguous().view(shape)

    def sources(self, name: str) -> List[str]:
        return [_named(theirs, "*") for theirs in self._rules[name].theirs]

    def _join(self, rule: Rule, layer: Optional[int]) -> torch.Tensor:
        whole = [(_named(name, layer), shape) for name, shape in rule.theirs.items()]
        return rule.join([self.reader.read(name, (0,) * len(shape), shape) for name, shape in whole])

    @staticmethod
    def _within(rule: Rule, offset: Shape, shape: Shape) -> Tuple[Shape, Shape]:
        return (offset[1:], shape[1:]) if rule.is_layered else (offset, shape)


def _in_order(table: Sequence[Rule], layers: int) -> Iterator[Tuple[Rule, Optional[int]]]:
    """Every rule with every layer it has: the rules before the layers, then layer by layer, then the rest."""
    layered = [rule for rule in table if rule.is_layered]
    first = table.index(layered[0])
    yield from ((rule, None) for rule in table[:first])
    yield from ((rule, layer) for layer in range(layers) for rule in layered)
    yield from ((rule, None) for rule in table[first:] if not rule.is_layered)


def _named(name: str, layer: Any) -> str:
    return name if layer is None else name.replace(LAYER, str(layer))


def _stacked(rule: Rule, model: Model) -> Shape:
    return (model.num_layers, *rule.shape) if rule.is_layered else rule.shape


def _compare(expected: Dict[str, Shape], given: Dict[str, Shape], where: str) -> None:
    """Raises ValueError that names every tensor missing, left over, or of another shape than the configuration says."""
    faults = [f"{name} is missing" for name in expected if name not in given]
    faults += [
        f"{name} {list(shape)} has no place in this model" for name, shape in given.items() if name not in expected
    ]
    faults += [
        f"{name} is {list(given[name])}, its configuration says {list(shape)}"
        for name, shape in expected.items()
        if name in given and given[name] != shape
    ]
    if faults:
        more = f"; and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise ValueError(f"{where}: {'; '.join(faults[:10])}{more}")


def _one_dtype(specs: Dict[str, Spec]) -> torch.dtype:
    """Of all tensors. Joining tensors of several would promote some without a word."""
    kinds: Dict[torch.dtype, str] = {}
    for name, spec in specs.items():
        kinds.setdefault(spec.dtype, name)
    if len(kinds) > 1:
        raise ValueError(f"one dtype is needed, found {', '.join(f'{dtype_name(k)} ({n})' for k, n in kinds.items())}")
    if not kinds:
        raise Damaged("there are no tensors")
    return next(iter(kinds))


def _check_tied(reader: huggingface.Reader) -> None:
    from checkpoints_tools.verify import same_content

    names = "model.embed_tokens.weight", "lm_head.weight"
    if any(name not in reader.tensors for name in names) or not same_content(reader, names[0], reader, names[1]):
        raise ValueError(
            f"{reader.folder}: config.json says tie_word_embeddings, but lm_head.weight differs from "
            f"model.embed_tokens.weight; set tie_word_embeddings to false there, or delete lm_head.weight"
        )
