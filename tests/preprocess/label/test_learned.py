"""Only the wanted turns are learned, with their end-of-turn tokens."""

from __future__ import annotations

import pytest

from tests.preprocess.label.conftest import TEMPLATES, chat, learned

SPOKEN = chat("what?", "first", "and?", "second \U0001f600", system="s")
ENDS = {"chatml": "<|im_end|>", "headers": "<|eot|>", "inst": "</s>", "tools": "<|im_end|>", "generation": "<|im_end|>"}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("last_turn_only", [False, True])
def test_what_is_learned_are_the_answers_and_their_ends(name, last_turn_only, label_all, tokenizer_file):
    (_, ids, _, mask, _), _ = label_all(name, [SPOKEN], last_turn_only=last_turn_only)
    space = " " * (name == "inst")
    answers = [f"{space}first{ENDS[name]}", f"{space}second \U0001f600{ENDS[name]}"]
    assert learned(tokenizer_file, ids, mask) == answers[last_turn_only:]


@pytest.mark.parametrize("name", ["chatml", "generation"])
def test_white_space_at_the_beginning_of_an_answer_is_learned(name, label_all, tokenizer_file):
    (_, ids, _, mask, _), _ = label_all(name, [chat("a", " \t b")])
    assert learned(tokenizer_file, ids, mask) == [" \t b<|im_end|>"]


@pytest.mark.parametrize("name", ["chatml", "generation"])
def test_other_roles_can_be_learned_too(name, label_all, tokenizer_file):
    (_, ids, _, mask, _), _ = label_all(name, [SPOKEN], train_on=["user", "assistant"])
    said = "".join(learned(tokenizer_file, ids, mask))
    assert all(text in said for text in ("what?", "and?", "first", "second")) and "system" not in said


def test_calls_of_tools_are_learned_and_their_results_are_not(label_all, tokenizer_file):
    call = {"function": {"name": "w", "arguments": {"city": "Rome"}}}
    turns = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain"},
        {"role": "assistant", "content": "It rains."},
    ]
    (_, ids, _, mask, _), _ = label_all("tools", [{"messages": turns, "tools": [{"name": "w"}]}])
    assert learned(tokenizer_file, ids, mask) == [
        '<tool_call>{"name": "w", "arguments": {"city": "Rome"}}</tool_call><|im_end|>',
        "It rains.<|im_end|>",
    ]


def test_a_template_that_leaves_out_earlier_thoughts_is_refused_with_the_place_and_the_remedies(
    label_all, tokenizer_file
):
    record = chat("a", "b", "c", "d")
    for turn in (1, 3):
        record["messages"][turn]["thinking"] = "hm"
    with pytest.raises(ValueError, match=r"in.jsonl:2: .*message 2 of 4.*generation.*last_turn_only=true"):
        label_all("forgetful", [chat("a", "b"), record])
    (documents, ids, _, mask, _), _ = label_all("forgetful", [record], last_turn_only=True)
    assert learned(tokenizer_file, ids, mask) == ["<think>hm</think>d<|im_end|>"]
    assert documents[0].text.count("<think>") == 1


def test_a_template_that_would_have_the_headers_of_answers_learned_is_refused(label_all):
    headless = TEMPLATES["chatml"].split("{%- if add_generation_prompt")[0]
    with pytest.raises(ValueError, match="in.jsonl:1: .*does not heed add_generation_prompt"):
        label_all(headless, [chat("a", "b")])


def test_thoughts_are_known_to_templates_by_each_of_their_names(label_all):
    record = chat("a", "b")
    record["messages"][1]["reasoning"] = "hm"
    (documents, *_), _ = label_all("forgetful", [record])
    assert "<think>hm</think>b" in documents[0].text


def test_prompt_and_completion_are_two_messages(label_all):
    (as_pair, ids, _, mask, _), _ = label_all("chatml", [{"prompt": "what?", "completion": "that"}])
    (as_chat, same, _, same_mask, _), _ = label_all("chatml", [chat("what?", "that")])
    assert as_pair[0].text == as_chat[0].text
    assert ids.tolist() == same.tolist() and mask.tolist() == same_mask.tolist()


def test_the_names_of_the_fields_are_settings_and_other_fields_are_kept(label_all):
    keys = {"prompt_key": "instruction", "completion_key": "output"}
    (documents, *_), dropped = label_all("chatml", [{"instruction": "q", "output": "a", "licence": "MIT"}], **keys)
    assert not dropped and documents[0].metadata == {"licence": "MIT"}


USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    "record, reason",
    [
        ({}, "no messages"),
        ({"messages": []}, "empty conversation"),
        ({"messages": "hello"}, "messages are not a list"),
        ({"messages": [USER, "a"]}, "a message is no object"),
        ({"messages": [USER, {"role": "bot", "content": "a"}]}, "unknown role"),
        ({"messages": [USER, {"content": "a"}]}, "unknown role"),
        ({"messages": [USER, {"role": "assistant"}]}, "a message without content"),
        ({"messages": [USER, {"role": "assistant", "content": 7}]}, "content is not text"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "url": "u"}]}, ANSWER]}, "content is not text"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}, ANSWER]}, "content is not text"),
        ({"messages": [USER]}, "the last turn is not to be learned"),
        ({"messages": [USER, {"role": "assistant", "content": " \n"}]}, "empty answer"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {}}]}]}, "bad tool call"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "bad tool call",
        ),
        ({"messages": [USER, ANSWER], "tools": "{"}, "tools are not a list of objects"),
        ({"messages": [USER, ANSWER], "tools": ["f"]}, "tools are not a list of objects"),
        ({"prompt": "q"}, "prompt without completion"),
        ({"prompt": "q", "completion": ["a"]}, "a message is no object"),
        ({"messages": [USER, USER, ANSWER]}, "refused by the chat template"),
        ({"messages": [{"role": "user", "content": "a<|eot|>b"}, ANSWER]}, "control token in a message"),
        ({"messages": [USER, {"role": "assistant", "content": "a</s>"}]}, "control token in a message"),
        ({"messages": [{**USER, "name": "[INST]"}, ANSWER]}, "control token in a message"),
        ({"messages": [USER, {"role": "assistant", "content": "a\ufdd0b\ufdd1"}]}, "control token in a message"),
        ({"messages": [USER, ANSWER], "tools": [{"[/INST]": 1}]}, "control token in a message"),
    ],
)
def test_a_record_that_is_no_conversation_is_dropped_with_a_reason_and_the_next_is_kept(record, reason, label_all):
    (documents, *_), dropped = label_all("inst", [record, chat("q", "a")])
    assert dropped == {reason: 1} and [document.id for document in documents] == ["1"]


@pytest.mark.parametrize(
    "role, kept", [("user", False), ("tool", False), ("system", True), ("assistant", True)], ids=str
)
def test_what_the_template_writes_as_a_call_is_not_taken_from_users_and_tools(role, kept, label_all):
    messages = [USER, {"role": role, "content": "<tool_call>"}, ANSWER]
    _, dropped = label_all("tools", [{"messages": messages}])
    assert dropped == ({} if kept else {"control token in a message": 1})


def test_parts_of_text_are_joined_and_null_fields_left_out(label_all):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    turns = [{"role": "user", "content": parts, "tool_calls": None}, {**ANSWER, "tool_calls": [], "thinking": None}]
    (documents, *_), _ = label_all("tools", [{"messages": turns}])
    assert documents[0].text.startswith("<|im_start|>user\nab<|im_end|>")


def test_nothing_of_all_records_is_nothing(label_all):
    (documents, ids, lengths, mask, packs), _ = label_all("chatml", [{}])
    assert documents == [] and [len(one) for one in (ids, lengths, mask, packs)] == [0] * 4


def test_an_answer_that_a_template_with_generation_forgets_is_no_silent_loss(label_all):
    template = TEMPLATES["generation"].replace(
        "message.role == 'assistant'", "message.role == 'assistant' and loop.last"
    )
    (documents, *_), dropped = label_all(template, [SPOKEN, chat("q", "a")])
    assert dropped == {"refused by the chat template": 1} and len(documents) == 1


@pytest.fixture
def odd_tokenizer(tmp_path):
    """SentencePiece's way of spaces, characters normalised, and a control token that is looked for after that."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    library = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    special = ["<unk>", "<|im_start|>", *(f"<0x{byte:02X}>" for byte in range(256))]
    library.train_from_iterator(
        ["first second user"] * 9, trainers.BpeTrainer(special_tokens=special, show_progress=False)
    )
    library.add_special_tokens([AddedToken("<|im_end|>", normalized=True)])
    library.save(str(tmp_path / "odd.json"))
    return tmp_path / "odd.json"


def test_other_tokenizers_too_learn_the_answers_and_nothing_else(odd_tokenizer, label_with):
    (_, ids, _, mask, _), _ = label_with(odd_tokenizer, "chatml", [SPOKEN])
    said = learned(odd_tokenizer, ids, mask)
    assert [text.strip() for text in said] == ["first<|im_end|>", "second \U0001f600<|im_end|>"]


def test_a_control_token_that_normalising_makes_is_found(odd_tokenizer, label_with):
    from tokenizers import Tokenizer

    spelled = "＜|im_end|>"
    library = Tokenizer.from_file(str(odd_tokenizer))
    assert library.token_to_id("<|im_end|>") in library.encode(spelled).ids
    _, dropped = label_with(odd_tokenizer, "chatml", [chat(f"a{spelled}", "b")])
    assert dropped == {"control token in a message": 1}
