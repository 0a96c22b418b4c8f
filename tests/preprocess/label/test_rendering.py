"""What conversations become: the same text and the same tokens as in transformers, for templates in several styles."""

from __future__ import annotations

import json

import pytest

from megatron_ext.config.schema import Label
from preprocess.label.encode import Labelling
from preprocess.label.template import Refused, Template, read
from tests.preprocess.label.conftest import TEMPLATES, TOKENS, chat

CALLS = {
    "messages": [
        {"role": "user", "content": "weather in Köln & Rome?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "n": 1}}}
            ],
        },
        {"role": "tool", "content": '{"degrees": 7}'},
        {"role": "assistant", "content": "7 degrees."},
    ],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"city": "<string>"}}}],
}
RECORDS = {
    "chatml": [chat("hi", "Hello! \U0001f600 日本", "why?\n", "because"), chat("q", "a", system="be brief")],
    "headers": [chat("  hi ", " Hello.  ", system="s")],
    "inst": [chat("what is 1+1?", "2", "sure?", "yes", system="short"), chat("x", "y")],
    "tools": [CALLS, chat("hi", "there")],
    "generation": [chat("hi", "Hello, world", "more", " and more ")],
    "forgetful": [chat("hi", "there")],
    "indented": [chat("hi", "there", "so", "yes")],
}


@pytest.fixture(scope="module")
def transformers_tokenizer(tokenizer_file):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file), **TOKENS)


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_and_ids_are_those_of_transformers(name, label_all, transformers_tokenizer):
    (documents, ids, lengths, _, _), dropped = label_all(name, RECORDS[name])
    assert not dropped
    for record, document, own in zip(RECORDS[name], documents, _divided(ids, lengths)):
        settings = {"tools": record.get("tools"), "chat_template": TEMPLATES[name]}
        text = transformers_tokenizer.apply_chat_template(record["messages"], tokenize=False, **settings)
        theirs = transformers_tokenizer.apply_chat_template(record["messages"], return_dict=True, **settings)
        assert document.text == text and own.tolist() == theirs["input_ids"]


@pytest.mark.parametrize("name", ["generation", "indented"])
def test_the_mask_of_a_template_with_generation_is_that_of_transformers(name, label_all, transformers_tokenizer):
    (_, _, _, mask, _), _ = label_all(name, RECORDS[name])
    theirs = transformers_tokenizer.apply_chat_template(
        RECORDS[name][0]["messages"],
        chat_template=TEMPLATES[name],
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert mask.tolist() == theirs["assistant_masks"] and 0 < mask.sum() < len(mask)


def _divided(ids, lengths):
    start = 0
    for length in lengths.tolist():
        yield ids[start : start + length]
        start += length


@pytest.mark.parametrize(
    "arguments", [{"city": "Köln"}, '{"city": "Köln"}'], ids=["an object", "JSON text as in OpenAI's format"]
)
def test_arguments_of_tool_calls_are_written_as_an_object(arguments, label_all):
    call = {"id": "1", "type": "function", "function": {"name": "w", "arguments": arguments}}
    record = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}]}
    (documents, *_), _ = label_all("tools", [record])
    assert '<tool_call>{"name": "w", "arguments": {"city": "Köln"}}</tool_call>' in documents[0].text


def test_tools_may_be_json_text_and_choose_the_template_for_tools(tokenizer_file, tmp_path):
    path = tmp_path / "tokenizer_config.json"
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | tojson }}"}]
    path.write_text(json.dumps({"chat_template": templates}))
    template = Template(read(str(path)), "")
    assert template.render([], [])[0] == "plain" and template.render([], [{"a": 1}])[0] == '[{"a": 1}]'


def test_a_jinja_file_takes_its_tokens_from_beside_it(tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text("{{ bos_token }}x")
    with pytest.raises(ValueError, match="bos_token.*tokenizer_config.json"):
        Template(read(str(path)), "")
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": {"content": "<B>"}}')
    assert Template(read(str(path)), "").render([], [])[0] == "<B>x"


def test_today_is_a_setting_or_refused(tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text("{{ strftime_now('%d %b %Y') }}")
    with pytest.raises(ValueError, match="label.date"):
        Template(read(str(path)), "")
    assert Template(read(str(path)), "2024-07-26").render([], [])[0] == "26 Jul 2024"
    with pytest.raises(ValueError, match="yesterday"):
        Template(read(str(path)), "yesterday")


def test_templates_run_in_a_sandbox(tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text("{{ messages.append(1) }}")
    with pytest.raises(Refused):
        Template(read(str(path)), "").render([], [])


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("none.json", None, "does not exist"),
        ("c.json", "[1]", "not a tokenizer's configuration"),
        ("c.json", "{", "not JSON"),
        ("c.json", "{}", "no chat_template"),
        ("c.jinja", "\n{% if %}", "line 2"),
    ],
)
def test_a_template_that_cannot_work_is_refused_before_a_record_is_read(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        Template(read(str(tmp_path / name)), "")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"train_on": ["bot"]}, "train_on names 'bot'"),
        ({"train_on": []}, "train_on is empty"),
        ({"pack_length": -1}, "pack_length=-1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message, tokenizer_file, template_file):
    with pytest.raises(ValueError, match=message):
        Labelling(Label(**settings), tokenizer_file.read_bytes(), read(template_file("chatml")))


def test_a_tokenizer_that_does_not_say_its_control_tokens_is_refused(template_file):
    with pytest.raises(ValueError, match="kind=huggingface"):
        Labelling(Label(), b"\n\x0c\n\x05<unk>", read(template_file("chatml")))
