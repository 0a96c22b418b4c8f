"""Which characters of a rendered conversation are learned.

A template with `{% generation %}` says so itself. Of another the turns are found by rendering the conversation up to
before a turn and up to its end: the difference is the turn. That needs a template that writes the beginning of a
conversation in the same way whatever follows.
"""

from __future__ import annotations

import re
from typing import Any, List, Tuple

from megatron_ext.config import schema
from preprocess.label.template import BEGIN, END, Refused, Spans, Template


class Speaker:
    """Renders conversations and says what in them is learned."""

    def __init__(self, label: schema.Label, template: Template, specials: List[str], added: List[str]) -> None:
        """specials: control tokens of the tokenizer. added: its other added tokens, which a template may use so too."""
        self._label, self._template = label, template
        self._has_generation = re.search(r"\{%-?\s*generation\s*-?%\}", template.source) is not None
        written = [token for token in added if token in template.source]
        self._control = _any_of(specials)
        self._anywhere = _any_of([BEGIN, END, *specials])
        self._by_others = _any_of([BEGIN, END, *specials, *written])

    def control_token(self, role: str, text: str) -> str:
        """The first control token that is spelled in `text`, or nothing.

        What a template writes with added tokens that are not special (<tool_call>) is a control token where a user or
        a tool says it; assistants write them, and system prompts speak of them.
        """
        found = (self._by_others if role in ("user", "tool") else self._anywhere).search(text)
        return found.group() if found else ""

    def learned(self, messages: List[Any], tools: List[Any]) -> Tuple[str, Spans]:
        """-> rendered text, the characters in it that are learned; raises Refused, and ValueError for the template."""
        label, template = self._label, self._template
        text, spans = template.render(messages, tools)
        if self._has_generation and label.train_on == ["assistant"]:
            if len(spans) < _answers(messages):
                raise Refused(f"{len(spans)} blocks of {{% generation %}} for {_answers(messages)} answers")
            return text, spans[len(template.render(messages[:-1], tools)[1]) :] if label.last_turn_only else spans
        turns = [place for place, message in enumerate(messages) if message["role"] in label.train_on]
        return text, [self._turn(messages, tools, text, turn) for turn in turns[-1 if label.last_turn_only else 0 :]]

    def _turn(self, messages: List[Any], tools: List[Any], text: str, turn: int) -> Tuple[int, int]:
        render, asked = self._template.render, messages[turn]["role"] == "assistant"
        before = render(messages[:turn], tools, asked)[0]
        until = text if turn + 1 == len(messages) else render(messages[: turn + 1], tools)[0]
        if not until.startswith(before) or not text.startswith(until):
            raise ValueError(
                f"the chat template writes this conversation up to message {turn + 1} of {len(messages)} otherwise if "
                f"it ends there (it may leave out earlier thoughts), so what is to be learned cannot be told by "
                f"comparing; use a template with {{% generation %}}, or data.source.label.last_turn_only=true"
            )
        token = self._control.match(text, len(before), len(until))
        if asked and token and text.startswith("assistant", token.end(), len(until)):
            raise ValueError(
                f"the chat template does not heed add_generation_prompt: {text[len(before) :][:40]!r} begins with what "
                f"is there before an answer, and would be learned; correct it, or use {{% generation %}} in it"
            )
        return len(before), self._end(text, len(before), len(until))

    def _end(self, text: str, start: int, end: int) -> int:
        """Not the white space after the end-of-turn token: nobody asks a model for it."""
        tokens = list(self._control.finditer(text, start, end))
        return tokens[-1].end() if tokens and not text[tokens[-1].end() : end].strip() else end


def _answers(messages: List[Any]) -> int:
    """Those that follow each other count as one."""
    roles = [message["role"] for message in messages]
    return sum(role == "assistant" and before != "assistant" for before, role in zip(["", *roles], roles))


def _any_of(tokens: List[str]) -> re.Pattern[str]:
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
