"""A record of chat or instruction data -> its messages, and the text of them that the steps see.

Steps work on a text, so a conversation has one: all that was said and handed to tools, a message after the other. What
the steps changed in it (scrubbed, normalised) goes back into the messages. Roles, names and the list of tools are not
part of it.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Callable, Dict, List, Sequence, Tuple, Union

from megatron_ext.config import schema
from preprocess.document import Document, Dropped
from preprocess.pipeline import Tally

Message = Dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # names that templates have for the same thing
_TEXTS = ("content", *_THOUGHTS)
_BETWEEN = "\n\u241e"  # the symbol for a record separator: no step takes it for a control, a bullet or a repeated line


def with_text(documents: List[Document], label: schema.Label, tally: Tally) -> List[Document]:
    """Documents as they were read, their text empty -> with text, and with messages in one form in their metadata.

    Dropped, in `tally`: what is no conversation that ends with a turn to learn.
    """
    kept = []
    for document in documents:
        outcome = _read(document.metadata, label)
        if isinstance(outcome, Dropped):
            tally.drop(document, outcome)
            continue
        messages, tools = outcome
        taken = (label.messages_key, label.prompt_key, label.completion_key, label.tools_key)
        metadata = {key: value for key, value in document.metadata.items() if key not in taken}
        metadata[label.messages_key] = messages
        if tools:
            metadata[label.tools_key] = tools
        text = _BETWEEN.join(_texts(messages))
        kept.append(dataclasses.replace(document, text=text, metadata=metadata))
    return kept


def conversation(document: Document, label: schema.Label) -> Union[Tuple[List[Message], List[Any]], Dropped]:
    """-> (messages, tools) of what `with_text` made, with the text as the steps left it."""
    messages, tools = document.metadata[label.messages_key], document.metadata.get(label.tools_key, [])
    texts = _texts(messages)
    if document.text == _BETWEEN.join(texts):
        return messages, tools
    changed = document.text.split(_BETWEEN)
    if len(changed) != len(texts):
        return Dropped("a step removed part of a conversation", f"{len(changed)} of {len(texts)} texts are left")
    rest = iter(changed)
    return [_rewrite(message, lambda text: next(rest)) for message in messages], tools


def without_turns(document: Document, label: schema.Label, rendered: str) -> Document:
    """What the table describes: the text that was tokenised, and no second copy of it."""
    taken = (label.messages_key, label.tools_key)
    metadata = {key: value for key, value in document.metadata.items() if key not in taken}
    return dataclasses.replace(document, text=rendered, metadata=metadata)


def strings(value: Any) -> List[str]:
    """Every string in messages or tools, keys too."""
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (str(key), *strings(item))]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def _texts(messages: Sequence[Message]) -> List[str]:
    found: List[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    for message in messages:
        _rewrite(message, note)
    return found


def _rewrite(message: Message, change: Callable[[str], str]) -> Message:
    """The message with each of its texts changed, in a fixed order."""

    def deep(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: deep(item) for key, item in value.items()}
        if isinstance(value, list):
            return [deep(item) for item in value]
        return change(value) if isinstance(value, str) else value

    made = {key: deep(value) if key in _TEXTS else value for key, value in message.items()}
    if "tool_calls" in message:
        made["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": deep(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return made


def _read(record: Dict[str, Any], label: schema.Label) -> Union[Tuple[List[Message], List[Any]], Dropped]:
    raw = record.get(label.messages_key)
    if raw is None and record.get(label.prompt_key) is not None:
        completion = record.get(label.completion_key)
        if completion is None:
            return Dropped("prompt without completion")
        raw = [*_turns(record[label.prompt_key], "user"), *_turns(completion, "assistant")]
    if raw is None:
        return Dropped("no messages", f"fields: {', '.join(map(str, record))}")
    if not isinstance(raw, list) or not raw:
        return Dropped("messages are not a list" if raw else "empty conversation", repr(raw)[:80])
    messages: List[Message] = []
    for item in raw:
        message = _message(item)
        if isinstance(message, Dropped):
            return message
        messages.append(message)
    last = messages[-1]
    if last["role"] not in label.train_on:
        return Dropped("the last turn is not to be learned", last["role"])
    if not last.get("content", "").strip() and "tool_calls" not in last:
        return Dropped("empty answer")
    tools = _tools(record.get(label.tools_key))
    return tools if isinstance(tools, Dropped) else (messages, tools)


def _turns(value: Any, role: str) -> List[Any]:
    return value if isinstance(value, list) else [{"role": role, "content": value}]


def _message(raw: Any) -> Union[Message, Dropped]:
    """Fields that are null are left out: a Parquet file has every field in every message."""
    if not isinstance(raw, dict):
        return Dropped("a message is no object", type(raw).__name__)
    message = {key: value for key, value in raw.items() if value is not None}
    if message.get("role") not in ROLES:
        return Dropped("unknown role", repr(message.get("role")))
    if "tool_calls" in message:
        calls = _calls(message.pop("tool_calls"))
        if isinstance(calls, Dropped):
            return calls
        if calls:
            message["tool_calls"] = calls
    if "content" in message:
        content = _content(message["content"])
        if content is None:
            return Dropped("content is not text", repr(message["content"])[:80])
        message["content"] = content
    elif "tool_calls" not in message:
        return Dropped("a message without content", message["role"])
    thoughts = next((message[name] for name in _THOUGHTS if name in message), None)
    return message if thoughts is None else {"thinking": thoughts, **message, "reasoning_content": thoughts}


def _content(raw: Any) -> Union[str, None]:
    if isinstance(raw, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in raw):
        texts = [part.get("text") for part in raw]
        return "".join(texts) if all(isinstance(text, str) for text in texts) else None
    return raw if isinstance(raw, str) else None


def _calls(raw: Any) -> Union[List[Any], Dropped]:
    """Arguments given as JSON text become the object: templates write an object as JSON, and text as a string of it."""
    calls = []
    for call in raw if isinstance(raw, list) else [raw]:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return Dropped("bad tool call", repr(call)[:80])
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = _json(arguments)
        if not isinstance(arguments, dict):
            return Dropped("bad tool call", f"arguments: {function['arguments']!r}"[:80])
        outer = {key: value for key, value in call.items() if value is not None} if function is not call else {}
        calls.append({"type": "function", **outer, "function": {"name": function["name"], "arguments": arguments}})
    return calls


def _tools(raw: Any) -> Union[List[Any], Dropped]:
    tools = (_json(raw) if raw.strip() else []) if isinstance(raw, str) else raw
    if tools is None and not isinstance(raw, str):
        return []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return Dropped("tools are not a list of objects", repr(raw)[:80])
    return tools


def _json(text: str) -> Any:
    """None for what is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
