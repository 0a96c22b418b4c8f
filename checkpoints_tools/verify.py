"""Are two checkpoints the same, tensor by tensor and bit by bit? And is one still what its certificate says?"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Tuple, Union

import torch

from checkpoints_tools import certificate
from checkpoints_tools.formats import huggingface, torch_dist
from checkpoints_tools.formats.tensors import Damaged, Shape, Source, Spec, blocks
from checkpoints_tools.hf.views import ARCHITECTURES, AsHuggingFace, architecture
from checkpoints_tools.reshard import Progress
from megatron_ext.config import load as config
from megatron_ext.config.schema import Run

# What does not change the numbers that a model computes from its weights.
_NOT_COMPUTED_WITH = (
    *("model.seq_length", "model.hidden_dropout", "model.attention_dropout", "model.init", "model.init_std"),
    *("model.implementation", "model.moe.dispatcher", "model.moe.aux_loss_coeff", "model.moe.z_loss_coeff"),
)
_NOT_COMPUTED_WITH_HF = ("max_position_embeddings", "initializer_range", "attention_dropout")

Reader = Union[torch_dist.Reader, huggingface.Reader]


@dataclass
class Verdict:
    compared: int = 0
    nbytes: int = 0
    different: List[str] = field(default_factory=list)  # one line a tensor or setting: its name and what differs
    notes: List[str] = field(default_factory=list)  # what was not compared


def compare(a: Reader, b: Reader, weights_only: bool, progress: Progress) -> Verdict:
    """Names, shapes, dtypes and content. A torch_dist checkpoint beside a Hugging Face one is seen as that one is."""
    verdict = Verdict()
    one, other = _as_alike(a, b, verdict)
    names = [set(source.tensors) for source in (one, other)]
    if weights_only:
        names = [{name for name in found if not name.startswith(torch_dist.OPTIMIZER)} for found in names]
    for name in sorted(names[0] ^ names[1]):
        verdict.different.append(f"{name}: only in the {'first' if name in names[0] else 'second'}")
    for name in (name for name in one.tensors if name in names[0] & names[1]):
        spec, theirs = one.tensors[name], other.tensors[name]
        verdict.compared += 1
        verdict.nbytes += spec.nbytes
        if spec != theirs:
            verdict.different.append(f"{name}: {_describe(spec)} and {_describe(theirs)}")
        elif place := first_difference(one, name, other, name, progress):
            verdict.different.append(f"{name}: values differ at {list(place)}")
    return verdict


def recheck(source: Reader, progress: Progress) -> Verdict:
    """Compare the content with the hashes in the folder's own conversion.json. Raises ValueError when it has none."""
    path = source.folder / certificate.FILE
    if not path.is_file():
        raise ValueError(f"{source.folder} has no {certificate.FILE} to be checked against; give a second checkpoint")
    try:
        known = {entry["target"]: entry["sha256"] for entry in json.loads(path.read_text())["tensors"]}
    except (json.JSONDecodeError, KeyError, TypeError):
        raise Damaged(f"{path} is damaged") from None
    verdict = Verdict()
    for name in sorted(set(known) ^ set(source.tensors)):
        verdict.different.append(f"{name}: only in the {'certificate' if name in known else 'checkpoint'}")
    for name in (name for name in source.tensors if name in known):
        verdict.compared += 1
        verdict.nbytes += source.tensors[name].nbytes
        if certificate.content_hash(source, name) != known[name]:
            verdict.different.append(f"{name}: content is not what was written")
        progress(source.tensors[name].nbytes)
    return verdict


def same_content(a: Source, name_a: str, b: Source, name_b: str) -> bool:
    same = a.tensors[name_a] == b.tensors[name_b]
    return same and first_difference(a, name_a, b, name_b, lambda nbytes: None) is None


def first_difference(a: Source, name_a: str, b: Source, name_b: str, progress: Progress) -> Union[None, Shape]:
    """Index of the first element whose bits differ; both tensors have the same spec."""
    for offset, shape in blocks(a.tensors[name_a]):
        x, y = (_bits(source.read(name, offset, shape)) for source, name in ((a, name_a), (b, name_b)))
        if not torch.equal(x, y):
            place = (x != y).nonzero()[0].tolist()
            return tuple(start + index for start, index in zip(offset, place))
        progress(x.nbytes)
    return None


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Integers of the same width: NaN equals itself, and -0.0 is not 0.0."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(kinds[tensor.element_size()])


def _as_alike(a: Reader, b: Reader, verdict: Verdict) -> Tuple[Any, Any]:
    """Two sources of the same names. Unequal settings count: another epsilon makes another model."""
    if isinstance(a, torch_dist.Reader) and isinstance(b, torch_dist.Reader):
        models = [config.flatten(Run(model=reader.run.model)) for reader in (a, b)]
        verdict.different += _unequal(models, _NOT_COMPUTED_WITH)
        return a, b
    theirs = [reader.config for reader in (a, b) if isinstance(reader, huggingface.Reader)]
    if len(theirs) == 2 and theirs[0].get("model_type") not in ARCHITECTURES:
        verdict.notes.append(f"config.json not compared: model_type {theirs[0].get('model_type')!r} is unknown here")
        return a, b
    family = architecture(theirs[0])
    one, other = (AsHuggingFace(r, family) if isinstance(r, torch_dist.Reader) else r for r in (a, b))
    plain = [family.to_config(family.from_config(source.config), torch.float32) for source in (one, other)]
    verdict.different += _unequal(plain, _NOT_COMPUTED_WITH_HF)
    for source in (one, other):
        if isinstance(source, AsHuggingFace) and source.left_out:
            where = f"only in {source.reader.folder}: not compared"
            verdict.notes.append(f"{source.left_out:,} bytes of optimizer state are {where}")
    return one, other


def _unequal(facts: List[Dict[str, Any]], free: Tuple[str, ...]) -> List[str]:
    names = [name for name in facts[0] if name not in free and facts[0][name] != facts[1].get(name)]
    return [f"configuration, {name}: {facts[0][name]} and {facts[1].get(name)}" for name in names]


def _describe(spec: Spec) -> str:
    return f"{certificate.dtype_name(spec.dtype)} {list(spec.shape)}"
