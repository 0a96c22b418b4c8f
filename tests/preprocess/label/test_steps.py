"""Steps see a conversation as a text, and what they change in it reaches the messages."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_ext.config.schema import Label
from preprocess.document import Document, Dropped
from preprocess.label.turns import conversation, with_text
from preprocess.pipeline import Tally
from tests.preprocess.label.conftest import chat

LABEL = Label(template="x")
CALL = {"function": {"name": "mail", "arguments": {"to": ["a@b.com", 3], "name": "Ann"}}}
RECORD = {
    "messages": [
        {"role": "user", "content": "write to a@b.com", "name": "a@b.com"},
        {"role": "assistant", "content": "", "reasoning_content": "is a@b.com right?", "tool_calls": [CALL]},
    ],
}


def read(record):
    (document,) = with_text([Document("", "1", record, "f", 1)], LABEL, Tally())
    return document


def test_all_that_is_said_thought_or_handed_to_tools_is_in_the_text():
    document = read(RECORD)
    assert document.text.count("a@b.com") == 4 and "Ann" in document.text  # `thinking` is a second name of the thought
    assert "mail" not in document.text and "user" not in document.text


def test_what_a_step_changes_in_the_text_is_changed_in_the_messages_and_nothing_else_is():
    document = read(RECORD)
    scrubbed = dataclasses.replace(document, text=document.text.replace("a@b.com", "<mail>"))
    messages, _ = conversation(scrubbed, LABEL)
    assert messages[0] == {"role": "user", "content": "write to <mail>", "name": "a@b.com"}
    assert messages[1]["reasoning_content"] == messages[1]["thinking"] == "is <mail> right?"
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"to": ["<mail>", 3], "name": "Ann"}


def test_a_conversation_of_which_a_step_removed_a_line_is_dropped():
    document = read(chat("one", "two"))
    cut = dataclasses.replace(document, text=document.text.splitlines()[0])
    outcome = conversation(cut, LABEL)
    assert isinstance(outcome, Dropped) and outcome.reason == "a step removed part of a conversation"


@given(st.lists(st.text(), min_size=1, max_size=6))
def test_unchanged_text_gives_the_messages_back_whatever_they_say(texts):
    record = chat(*[text for text in texts for _ in range(2)][:-1], "end")
    document = read(record)
    assert conversation(document, LABEL)[0] == record["messages"]


@pytest.mark.parametrize("keep", [True, False])
def test_a_dropped_record_is_kept_aside_when_that_is_wanted(keep):
    tally = Tally(keep_dropped=keep)
    assert with_text([Document("", "7", {"messages": []}, "f", 1)], LABEL, tally) == []
    assert [(document.id, why.reason) for document, why in tally.aside] == [("7", "empty conversation")] * keep
