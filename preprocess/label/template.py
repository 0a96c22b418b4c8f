"""Chat templates of Hugging Face tokenizers, without transformers: jinja in a sandbox, with the names they expect.

The same environment as transformers' `apply_chat_template` (version 5): blocks trimmed, `raise_exception`,
`strftime_now`, `tojson` that leaves characters alone, `{% break %}`, and `{% generation %}` around what is learned.
"""

from __future__ import annotations

import datetime
import functools
import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

Spans = List[Tuple[int, int]]

BEGIN, END = "\ufdd0", "\ufdd1"  # around a {% generation %} block while it is rendered: code points of no character


class Refused(Exception):
    """A template's own word, or its failure, about a conversation."""


def read(path: str) -> str:
    """A tokenizer_config.json or a .jinja file, with the other beside it -> JSON text: templates and tokens by name.

    Raises ValueError when the file is not there or has no template.
    """
    given = Path(path)
    beside = given.with_name("tokenizer_config.json")
    if not given.is_file():
        raise ValueError(
            f"data.source.label.template={path} does not exist; give a tokenizer_config.json or .jinja file"
        )
    if given.suffix == ".jinja":
        templates: Any = given.read_text(encoding="utf-8")
        config = _config(beside) if beside.is_file() else None
    else:
        config = _config(given)
        jinja = given.with_name("chat_template.jinja")  # where transformers 4.52 and later write it
        templates = jinja.read_text(encoding="utf-8") if jinja.is_file() else config.get("chat_template")
    if isinstance(templates, list):
        templates = {one["name"]: one["template"] for one in templates}
    elif isinstance(templates, str):
        templates = {"default": templates}
    if not isinstance(templates, dict) or "default" not in templates:
        raise ValueError(f"data.source.label.template={path} has no chat_template; give a .jinja file")
    return json.dumps({"templates": templates, "tokens": None if config is None else _tokens(config)})


def _config(path: Path) -> Dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); give a tokenizer_config.json or a .jinja file") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a tokenizer's configuration; give a tokenizer_config.json or a .jinja file")
    return config


def _tokens(config: Dict[str, Any]) -> Dict[str, str]:
    """bos_token and the like, as text."""
    extra = config.get("extra_special_tokens")
    named = {**config, **(extra if isinstance(extra, dict) else {})}
    texts = {name: value["content"] if isinstance(value, dict) else value for name, value in named.items() if value}
    return {name: text for name, text in texts.items() if name.endswith("_token") and isinstance(text, str)}


class Template:
    def __init__(self, read: str, date: str) -> None:
        """What `read` gave, and label.date. Raises ValueError for a template that is broken or lacks what it needs."""
        import jinja2
        import jinja2.meta

        content = json.loads(read)
        environment = _environment(date)
        self._templates, self._tokens = {}, content["tokens"] or {}
        for name, source in content["templates"].items():
            try:
                names = jinja2.meta.find_undeclared_variables(environment.parse(source))
                self._templates[name] = environment.from_string(source)
            except jinja2.TemplateSyntaxError as error:
                raise ValueError(f"data.source.label.template: line {error.lineno}: {error.message}") from None
            _check(names, content["tokens"], date)
        self.source = "".join(content["templates"].values())

    def render(self, messages: List[Any], tools: List[Any], prompt: bool = False) -> Tuple[str, Spans]:
        """-> text, and the characters of it inside {% generation %}; `prompt`: end where the assistant is to speak.

        Raises Refused.
        """
        import jinja2

        which = "tool_use" if tools and "tool_use" in self._templates else "default"
        try:
            marked = self._templates[which].render(
                messages=messages, tools=tools or None, documents=None, add_generation_prompt=prompt, **self._tokens
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise Refused(str(error)) from error
        return _unmark(marked)


def _check(names: Any, tokens: Optional[Dict[str, str]], date: str) -> None:
    missing = sorted(name for name in names if name.endswith("_token"))
    if tokens is None and missing:
        raise ValueError(
            f"data.source.label.template uses {', '.join(missing)}; put the tokenizer_config.json that says what it is "
            f"beside it"
        )
    if "strftime_now" in names and not date:
        raise ValueError(
            "data.source.label.template prints today's date, so every day would give other tokens; set "
            "data.source.label.date, as 2025-12-31"
        )


def _unmark(marked: str) -> Tuple[str, Spans]:
    pieces, spans, size = [], [], 0
    for number, part in enumerate(marked.split(BEGIN)):
        inside, end, after = part.partition(END)
        if number and end:
            spans.append((size, size + len(inside)))
        pieces += [inside, after]
        size += len(inside) + len(after)
    return "".join(pieces), spans


@functools.lru_cache(maxsize=1)
def _environment(date: str) -> Any:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)

            def mark(text: str) -> Any:
                return nodes.Output([nodes.TemplateData(text)], lineno=line)

            return nodes.Scope([mark(BEGIN), *body, mark(END)], lineno=line)

    def to_json(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    try:
        day = datetime.datetime.fromisoformat(date) if date else None
    except ValueError:
        raise ValueError(f"data.source.label.date={date}; write it as 2025-12-31") from None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    if day is not None:
        environment.globals["strftime_now"] = day.strftime
    return environment
