"""What a run will do: settings -> input parts, passes over the documents, and the stamp of each result.

A stamp is a hash of all that a result depends on (input files by size and time, settings, tokenizer, code): a result
that lies there with the same stamp is used, any other is made again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, List, Optional, Tuple

from megatron_ext.config import schema
from preprocess import encode, readers, steps, tokenizer
from preprocess.manifest import code_digest, digest, libraries
from preprocess.worker import Pass, Recipe

_SAMPLE_TEXTS = 300  # on which a fast tokenizer is compared with the exact one


@dataclass(frozen=True)
class Plan:
    data: schema.Data
    inputs: Tuple[readers.Input, ...]
    parts: Tuple[readers.Part, ...]
    recipe: Recipe  # without `encode` as long as the tokenizer is to be trained
    code: str

    @property
    def last(self) -> int:
        return len(self.recipe.passes) - 1

    def stamps(self, number: int) -> List[str]:
        """Of each part's result in pass `number`."""
        own = self._settings(number)
        if number == 0:
            content = {one.path: one.stamp for one in self.inputs}
            return [digest(own, content[part.path], part.path, part.start, part.end) for part in self.parts]
        return [digest(own, self.decision_stamp(number - 1))] * len(self.parts)

    def decision_stamp(self, number: int) -> str:
        """Of what the comparison that ends pass `number` decides: it depends on all parts."""
        comparison = self.recipe.passes[number].comparison
        assert comparison is not None
        state = getattr(comparison[1], "state", lambda output: "")(self.data.source.output)
        return digest(self.stamps(number), state)

    def stamp(self) -> str:
        """Of the whole."""
        return digest(self.stamps(self.last), self.data.source.shard_tokens)

    def _settings(self, number: int) -> Any:
        current, recipe = self.recipe.passes[number], self.recipe
        named = list(current.steps) + ([current.comparison] if current.comparison else [])
        listed = [(name, type(step).__name__, dataclasses.asdict(step)) for name, step in named]  # type: ignore[call-overload]
        files = [_files(step) for _, step in current.steps]
        tokens: Any = None
        if current.comparison is None:
            assert recipe.encode is not None, "the stamp of tokens needs the tokenizer"
            without_sample = dataclasses.replace(recipe.encode, sample=(), blob=b"")
            tokens = (dataclasses.asdict(without_sample), tokenizer.fingerprint(recipe.encode.blob))
        reading = (dataclasses.asdict(recipe.keys), recipe.label and dataclasses.asdict(recipe.label))
        return self.code, libraries(), listed, files, reading, recipe.keep_dropped, tokens


def make(data: schema.Data) -> Plan:
    """Raises ValueError for settings that cannot work and inputs that are not there."""
    source = data.source
    _check(source)
    inputs = readers.resolve(source.inputs)
    parts = readers.split(inputs, source.part_bytes)
    label = source.label if source.label.template else None
    keys = readers.Keys("" if label else source.text_key, source.id_key)
    passes = _passes(steps.build(source.steps))
    for one in passes:  # what cannot work is refused before there are workers
        for _, step in one.steps:
            step.open()
        if one.comparison is not None:
            one.comparison[1].open()
    recipe = Recipe(keys, tuple(passes), source.keep_dropped, label)
    plan = Plan(data, tuple(inputs), tuple(parts), recipe, code_digest())
    return plan if must_train(data) else with_tokenizer(plan)


def must_train(data: schema.Data) -> bool:
    settings = data.tokenizer
    return settings.train_vocab_size > 0 and bool(settings.path) and not Path(settings.path).exists()


def with_tokenizer(plan: Plan) -> Plan:
    """Raises ValueError when the tokenizer is not there, damaged, or not what the settings say."""
    settings, source = plan.data.tokenizer, plan.data.source
    blob = tokenizer.read(settings.path)
    opened = tokenizer.open_tokenizer(dataclasses.replace(settings, fast=False), blob)
    if settings.train_vocab_size not in (0, opened.vocab_size):
        raise ValueError(
            f"tokenizer {settings.path} is there already and has {opened.vocab_size} ids, not "
            f"data.tokenizer.train_vocab_size={settings.train_vocab_size}; choose another path, or 0 to use it"
        )
    label = plan.recipe.label
    made = encode.Recipe(
        tokenizer=settings,
        blob=blob,
        sample=_sample(plan),
        bos=tokenizer.beginning(opened, settings.path) if source.prepend_bos and label is None else None,
        eod=tokenizer.end_of_document(opened, settings.path) if source.append_eod and label is None else None,
        split_sentences=source.split_sentences,
        label=label,
        template=_template(label),
    )
    if label is not None:
        from preprocess.label.encode import Labelling

        Labelling(label, blob, made.template)  # what cannot work is refused before there are workers
    return dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, encode=made))


def _check(source: schema.Source) -> None:
    if not source.output:
        raise ValueError("data.source.output is empty; give the prefix of the shard, as runs/data/mine/part0")
    if source.output.endswith("/") or Path(source.output).is_dir():
        raise ValueError(f"data.source.output={source.output} is a folder; give a prefix inside it, as .../part0")
    for name in ("workers", "shard_tokens", "max_bad_records"):
        if (value := getattr(source, name)) < 0:
            raise ValueError(f"data.source.{name}={value}; give 0 or more")
    for name, least in (("tasks", 1), ("part_bytes", 1 << 16), ("memory_bytes", 1 << 20)):
        if (value := getattr(source, name)) < least:
            raise ValueError(f"data.source.{name}={value}; it must be at least {least}")
    if source.shard_tokens and source.label.template:
        raise ValueError(
            "data.source.shard_tokens is for plain text; conversations (data.source.label) go to one shard"
        )
    if source.split_sentences and source.label.template:
        raise ValueError("data.source.split_sentences is for plain text; conversations (data.source.label) stay whole")


def _passes(named: List[Tuple[str, Any]]) -> List[Pass]:
    """Cut after each step that compares documents with all others."""
    passes: List[Pass] = []
    steps_before: List[Tuple[str, Any]] = []
    for name, step in named:
        if hasattr(step, "search"):
            passes.append(Pass(tuple(steps_before), (name, step)))
            steps_before = []
        else:
            steps_before.append((name, step))
    return [*passes, Pass(tuple(steps_before))]


def _sample(plan: Plan) -> Tuple[str, ...]:
    """The texts at the beginning of the first inputs."""
    texts: List[str] = []
    for part in plan.parts[:4]:
        chunk = next(iter(readers.chunks(part)), None)
        for item in readers.parse(chunk, plan.recipe.keys) if chunk else ():
            if isinstance(item, readers.Document) and len(texts) < _SAMPLE_TEXTS:
                texts.append(item.text)
    return tuple(texts)


def _files(step: Any) -> Any:
    """Of a step's settings those that are files or folders, and what it says itself of others: they decide too."""
    if hasattr(step, "state"):
        return step.state()
    values = [value for value in dataclasses.asdict(step).values() if isinstance(value, str) and value]
    found = [path for value in values for path in (Path(value), *sorted(Path(value).glob("*"))) if path.is_file()]
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in found]


def _template(label: Optional[schema.Label]) -> str:
    if label is None:
        return ""
    from preprocess.label.template import read

    return read(label.template)
