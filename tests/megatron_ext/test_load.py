"""Command line and YAML -> Run, and back; what the user gets to read when they mistype."""

from __future__ import annotations

import dataclasses
import enum
import shlex
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_ext.config import load, schema
from megatron_ext.config.load import CONFIGS, GROUPS, ConfigError, compose, flatten, freeze, read

REPOSITORY = Path(__file__).resolve().parents[2]


def message(*overrides, configs=CONFIGS):
    with pytest.raises(ConfigError) as caught:
        compose(list(overrides), configs)
    return str(caught.value)


def test_groups_then_fields_then_order():
    run = compose(["optim.lr=1e-3", "model=mixtral_tiny", "model.moe.top_k=3", "train.steps=7", "train.steps=8"])
    assert (run.optim.lr, run.model.moe.num_experts, run.model.moe.top_k, run.train.steps) == (1e-3, 8, 3, 8)
    assert isinstance(run.model.norm, schema.Norm) and isinstance(run, schema.Run)


def test_a_run_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        compose([]).seed = 2


def test_values_that_need_care():
    run = compose(
        [
            "data.split='90,5,5'",
            "data.blend=[/a/b, 'c d']",
            "data.weights=[1, 0.5]",
            "model.num_kv_heads=null",
            "cluster.gpus_per_node=8",
            "parallel.bucket_size=null",
            "name='é😀'",
            "model.moe={num_experts: 4, top_k: 1}",
        ]
    )
    assert run.data.split == "90,5,5" and run.data.blend == ["/a/b", "c d"] and run.data.weights == [1.0, 0.5]
    assert run.model.num_kv_heads is None and run.cluster.gpus_per_node == "8" and run.name == "é😀"
    assert (run.model.moe.num_experts, run.model.moe.top_k) == (4, 1)


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_new_keys_are_legal_only_in_dictionaries(plus):
    run = compose([f"{plus}model.megatron.attention_softmax_in_fp32=true", f"{plus}cluster.env.NCCL_DEBUG=WARN"])
    assert run.model.megatron == {"attention_softmax_in_fp32": True} and run.cluster.env == {"NCCL_DEBUG": "WARN"}
    assert "no group or field 'x'" in message(f"{plus}x=1")


@pytest.mark.parametrize(
    "override, near",
    [
        ("optim.lrr=1", "optim.lr"),
        ("train.step=3", "train.steps"),
        ("lr=1", "optim.lr"),
        ("modle.num_layers=2", "model.num_layers"),
        ("mdel=llama_tiny", "model"),
        ("model=lama_tiny", "model=llama_tiny"),
        ("model=gpt_tiny.yaml", "model=gpt_tiny"),
        ("parallel=tp4", "parallel=tp2"),
        ("model.norm=rmsnrm", "rmsnorm"),
        ("train.precision=BF16", "bf16"),
        ("cluster.kind=Slurm", "slurm"),
        ("train.steps =3", "train.steps"),
        ("model.moe.topk=1", "model.moe.top_k"),
    ],
)
def test_a_typo_is_answered_with_the_near_name(override, near):
    answer = message(override)
    name, _, value = override.partition("=")
    assert "did you mean" in answer and near in answer.split("did you mean")[1]
    assert name.strip() in answer and (value in answer or "no group or field" in answer)


@pytest.mark.parametrize(
    "override, parts",
    [
        ("optim.lr=", ["optim.lr", "''", "Float"]),
        ("optim.lr=abc", ["optim.lr", "'abc'", "Float"]),
        ("optim.lr=null", ["optim.lr", "null is not allowed"]),
        ("model=", ["no model preset named ''", "llama_tiny", "mixtral_8x7b"]),
        ("model=null", ["no model preset named 'null'"]),
        ("model=llama_tiny,gpt_tiny", ["no model preset", "llama_tiny,gpt_tiny"]),
        ("model=../model/gpt_tiny", ["no model preset"]),
        ("train=3", ["no train preset named '3'", "default"]),
        ("model.moe.top_k=two", ["model.moe.top_k", "'two'", "Integer"]),
        ("model.moe=3", ["model.moe holds several fields", "model.moe.num_experts"]),
        ("data.tokenizer=x", ["data.tokenizer holds several fields"]),
        ("train.steps=1e3", ["train.steps", "1000.0", "Integer"]),
        ("train.steps=true", ["train.steps", "True", "Integer"]),
        ("train.steps=1,2", ["'train.steps=1,2'", "several values"]),
        ("train.steps=range(1,3)", ["train.steps=range", "several values"]),
        ("data.split=98,2,0", ["several values", "data.split=\"'98,2,0'\""]),
        ("train.steps=${oops}", ["train.steps", "oops"]),
        ("train.steps=???", ["train.steps", "missing"]),
        ("root=${oc.env:NOT_SET_ANYWHERE}", ["root", "NOT_SET_ANYWHERE"]),
        ("data.blend=a", ["data.blend", "a list is wanted", "data.blend=[a,b]"]),
        ("data.blend=[a", ["data.blend=[a", "quote"]),
        ("data.weights=[1,x]", ["data.weights", "'x'", "Float"]),
        ("parallel.sequence=maybe", ["parallel.sequence", "'maybe'", "bool"]),
        ("optim.lr==3", ["optim.lr==3", "quote"]),
        ("name=😀", ["name=😀", "name=\"'😀'\""]),
        ("naïve=1", ["naïve"]),
        ("foo.bar=1", ["foo.bar", "--help"]),
        ("hydra.run.dir=x", ["hydra.run.dir"]),
        ("model@other=llama_tiny", ["model@other"]),
        ("~model", ["'~model'", "neither"]),
        ("~optim.lr=1", ["~optim.lr"]),
        ("train.steps", ["'train.steps'", "field=value"]),
        ("", ["''", "field=value"]),
        ("=1", ["'=1'"]),
        ("--foo", ["'--foo'"]),
        ("model.megatron=[1]", ["model.megatron"]),
    ],
)
def test_bad_input_is_one_clear_line(override, parts):
    answer = message(override)
    assert all(part in answer for part in parts), answer
    assert "\n" not in answer and "Exception" not in answer and "hydra.cc" not in answer


def test_the_first_wrong_override_of_several_is_named():
    assert "tp4" in message("parallel=tp2", "parallel=tp4")


@pytest.mark.parametrize(
    "text, part",
    [
        ("num_layer: 2\n", "model/mine.yaml: no group or field 'model.num_layer'; did you mean model.num_layers"),
        ("num_layers: two\n", "model/mine.yaml: model.num_layers: Value 'two'"),
        ("norm: batchnorm\n", "model/mine.yaml: model.norm: Invalid value 'batchnorm', expected one of [rmsnorm"),
        ("num_layers: 2\nnorm: [2\n", "model/mine.yaml"),
    ],
)
def test_a_mistake_in_a_preset_is_named_like_one_on_the_command_line(tmp_path, text, part):
    for group in GROUPS:
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(text if group == "model" else "{}\n")
    defaults = "".join(f"  - {group}: mine\n" for group in GROUPS)
    (tmp_path / "config.yaml").write_text(f"defaults:\n  - schema\n{defaults}  - _self_\n")
    answer = message(configs=tmp_path)
    assert part in answer and "\n" not in answer and "raised while" not in answer, answer


# --- run.yaml ----------------------------------------------------------------------------------------------------

TEXT = st.one_of(
    # Not the line breaks that only Unicode knows: YAML folds them.
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x85\u2028\u2029"), max_size=20),
    st.sampled_from(["1e3", "null", "true", "~", "1_000", "0x10", "2024-01-01", "${x}", "\\${x}", "\\\\${a}$", "${",
                     "a: b", "- a", "'", '"', "#", "???", " ", "\n", "\t", "=", "<<", "0o7", "1:30"]),
)  # fmt: skip
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT.filter(lambda s: s != "???")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1), inner, max_size=3),
    max_leaves=5,
)
FLOATS = st.floats(allow_nan=False)


def values_of(kind):
    """Hypothesis strategy for any value of a schema type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{field.name: values_of(hints[field.name]) for field in dataclasses.fields(kind)})
    if origin is typing.Union:
        return st.none() | values_of(arguments[0])
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(st.text("aB_1", min_size=1).filter(lambda s: not s.isdigit()),
                               values_of(arguments[1]), max_size=3)  # fmt: skip
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    simple = {str: TEXT.filter(lambda s: s != "???"), int: st.integers(), float: FLOATS, bool: st.booleans()}
    return ANYTHING if kind is typing.Any else simple[kind]


@settings(max_examples=30)
@given(run=values_of(schema.Run))
def test_any_run_survives_freezing(tmp_path_factory, run):
    path = tmp_path_factory.getbasetemp() / "frozen.yaml"
    freeze(run, path)
    assert read(path) == run


def test_composed_runs_survive_freezing_and_enums_and_numbers_keep_their_types(tmp_path):
    for model in ("llama_tiny", "gpt_tiny", "qwen3_30b_a3b"):
        run = compose([f"model={model}", "optim.lr=3", "optim.eps=1e-30", "data.weights=[1]"])
        freeze(run, tmp_path / "run.yaml")
        again = read(tmp_path / "run.yaml")
        assert again == run
        for name, value in flatten(run).items():
            assert type(flatten(again)[name]) is type(value), name
        assert isinstance(again.optim.lr, float) and isinstance(again.model.norm, schema.Norm)


@pytest.mark.parametrize(
    "damage, part",
    [
        (lambda text: "", "cut short"),
        (lambda text: text[: len(text) // 2], "run.yaml"),
        (lambda text: text.rsplit("\n", 2)[0] + "\n", "cut short"),
        (lambda text: text.replace("  lr:", "  lrr:"), "did you mean optim.lr"),
        (lambda text: text.replace("  steps: 100", "  steps: many"), "train.steps: Value 'many'"),
        (lambda text: text.replace("  steps: 100", "  steps: [1"), "run.yaml"),
        (lambda text: "- a\n- b\n", "run.yaml"),
        (lambda text: "just words", "run.yaml"),
        (lambda text: text + "surprise: 1\n", "'surprise'"),
        (lambda text: text + "\x00", "run.yaml"),
        (lambda text: text + "model: {}\n", "duplicate"),
    ],
)
def test_a_damaged_run_yaml_is_refused_by_name(tmp_path, damage, part):
    path = tmp_path / "run.yaml"
    path.write_text(damage(load.to_yaml(schema.Run())))
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert part in str(caught.value) and "run.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_cut_of_a_run_yaml_is_taken_for_a_whole_one(tmp_path):
    """YAML cut at the end of a line is mostly valid; defaults must not fill what is gone."""
    text = load.to_yaml(compose(["model=qwen3_30b_a3b", "train.steps=77"]))
    path = tmp_path / "run.yaml"
    for end in range(0, len(text) - 1, 37):
        path.write_text(text[:end])
        with pytest.raises(ConfigError):
            read(path)


def test_a_run_yaml_that_is_no_text_or_no_file(tmp_path):
    path = tmp_path / "run.yaml"
    with pytest.raises(ConfigError, match="no frozen configuration"):
        read(path)
    path.write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(ConfigError, match="run.yaml"):
        read(path)


# --- help, imports -----------------------------------------------------------------------------------------------


def test_usage_lists_every_group_choice_and_field_with_its_default():
    text = load.usage()
    for group in GROUPS:
        line = next(line for line in text.splitlines() if line.split()[:1] == [group])
        assert line.split()[1:] == sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))
    for name, value in flatten(schema.Run()).items():
        assert f"  {name}={'null' if value is None else value}" in text, name
    assert "model.norm=rmsnorm  (one of: rmsnorm layernorm)" in text


def test_help_of_the_launcher_exits_with_0():
    answer = subprocess.run([sys.executable, "-m", "slurm.launch", "--help"], cwd=REPOSITORY, capture_output=True,
                            text=True)  # fmt: skip
    assert answer.returncode == 0 and "optim.lr=0.0003" in answer.stdout and "example" in answer.stdout


def loaded_after(code):
    """Names of modules that a fresh interpreter has loaded after running the code."""
    code += "; import sys; print('|'.join(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return set(answer.stdout.strip().split("|"))


@pytest.mark.parametrize("module", ["schema", "load", "validate", "rundir"])
def test_configuration_is_imported_without_torch(module):
    loaded = loaded_after(f"import megatron_ext.config.{module}")
    assert not loaded & {"torch", "numpy", "hydra", "omegaconf", "megatron"}


def test_composing_and_checking_needs_no_torch():
    code = "from megatron_ext.config import load, validate; validate.check_config(load.compose(['model=llama3_8b']))"
    assert not loaded_after(code) & {"torch", "megatron"}


def test_ranks_read_without_hydra(tmp_path):
    freeze(schema.Run(), tmp_path / "run.yaml")
    loaded = loaded_after(
        f"import pathlib; from megatron_ext.config import load; load.read(pathlib.Path({str(tmp_path / 'run.yaml')!r}))"
    )
    assert "omegaconf" in loaded and not any(name.split(".")[0] == "hydra" for name in loaded)


@pytest.mark.parametrize("override", ["data.source.inputs=[/tmp/ünï*.jsonl, b c.jsonl]", "data.source.output=/tmp/ü"])
def test_the_quoting_that_a_refusal_names_is_accepted(override):
    """As a shell hands it on; in a list each text is quoted by itself."""
    with pytest.raises(ConfigError, match="quote it for the shell and within: ") as caught:
        load.compose([override])
    (remedy,) = shlex.split(str(caught.value).split("within: ")[1])
    source = load.compose([remedy]).data.source
    assert source.inputs == ["/tmp/ünï*.jsonl", "b c.jsonl"] or source.output == "/tmp/ü"
