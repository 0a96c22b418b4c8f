"""A byte-level BPE with control tokens, which cuts and pads if it may; chat templates in the styles of models."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest

from megatron_ext.config.schema import Label
from preprocess.document import Document
from preprocess.label.encode import Labelling
from preprocess.label.template import read
from preprocess.label.turns import with_text
from preprocess.pipeline import Tally

SPECIAL = [
    "<|begin|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|header|>",
    "<|end_header|>",
    "<|eot|>",
    "[INST]",
    "[/INST]",
    "</s>",
]
ADDED = ["<tool_call>", "</tool_call>", "<think>", "</think>"]

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

HEADERS = """{{ bos_token }}
{%- for message in messages %}
    {{- '<|header|>' + message['role'] + '<|end_header|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header|>assistant<|end_header|>\\n\\n' }}
{%- endif %}"""

INST = """{%- if messages[0].role == 'system' %}{% set system = messages[0].content + '\\n\\n' %}
{%- set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('user and assistant must take turns') }}
    {%- endif %}
    {%- if message.role == 'user' %}{{- '[INST] ' + (system if loop.first else '') + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}{{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}"""

TOOLS = """{%- if tools %}
{{- '<|im_start|>system\\nTools:\\n' }}
{%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}
{{- 'Call as <tool_call>{...}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
        {%- continue %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content %}{{- message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' }}{{- call.function | tojson }}{{- '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

GENERATION = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

FORGETFUL = """{%- for message in messages %}
    {%- set thought = '<think>' + message.thinking + '</think>' if message.thinking and loop.last else '' %}
    {{- '<|im_start|>' + message.role + '\\n' + thought + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

INDENTED = """{% for message in messages %}
    {% set end = '' %}
    {% if message.role == 'assistant' %}
<|im_start|>assistant
        {% generation %}
        {% set end = 'not seen outside' %}
{{ message.content }}<|im_end|>
        {% endgeneration %}
{{ end }}
    {% else %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
    {% endif %}
{% endfor %}"""

TEMPLATES = {
    "chatml": CHATML,
    "headers": HEADERS,
    "inst": INST,
    "tools": TOOLS,
    "generation": GENERATION,
    "forgetful": FORGETFUL,
    "indented": INDENTED,
}
TOKENS = {"bos_token": "<|begin|>", "eos_token": "</s>"}


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(["what is the capital of France? The capital is Paris.\n\n"] * 9, trainer)
    library.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    library.enable_truncation(4)
    library.enable_padding(length=8)
    path = tmp_path_factory.mktemp("chat") / "tokenizer.json"
    library.save(str(path))
    return path


@pytest.fixture
def template_file(tmp_path: Path) -> Callable[[str], str]:
    def write(name: str) -> str:
        path = tmp_path / "tokenizer_config.json"
        path.write_text(json.dumps({"chat_template": TEMPLATES.get(name, name), **TOKENS}), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def label_with(template_file: Callable[[str], str]) -> Callable[..., Any]:
    """label_with(tokenizer, name of template or its text, records, **settings) -> outcome, dropped by reason."""

    def run(tokenizer: Path, name: str, records: List[Dict[str, Any]], **settings: Any) -> Any:
        label, tally = Label(template=template_file(name), **settings), Tally()
        read_in = [Document("", str(number), record, "in.jsonl", number + 1) for number, record in enumerate(records)]
        labelling = Labelling(label, tokenizer.read_bytes(), read(label.template))
        return labelling(with_text(read_in, label, tally), tally), dict(tally.dropped)

    return run


@pytest.fixture
def label_all(label_with: Callable[..., Any], tokenizer_file: Path) -> Callable[..., Any]:
    """With the tokenizer of these tests."""
    return functools.partial(label_with, tokenizer_file)


def chat(*turns: str, system: str = "") -> Dict[str, Any]:
    """User and assistant in turn."""
    said = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(turns)]
    return {"messages": [{"role": "system", "content": system}] * bool(system) + said}


def learned(tokenizer_file: Path, ids: Any, mask: Any) -> List[str]:
    """The texts of the runs of learned tokens."""
    from tokenizers import Tokenizer

    runs: List[List[int]] = []
    for place, (token, wanted) in enumerate(zip(ids.tolist(), mask.tolist())):
        if wanted and (place == 0 or not mask[place - 1]):
            runs.append([])
        if wanted:
            runs[-1].append(token)
    library = Tokenizer.from_file(str(tokenizer_file))
    return [library.decode(run, skip_special_tokens=False) for run in runs]
