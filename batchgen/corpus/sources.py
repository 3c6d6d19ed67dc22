"""The three ways in which a row becomes text: a template, templated messages, or a ready column.

Each works block by block and puts a row's error beside the texts of the others. The values of a
row are judged before anything is rendered: a template would turn null and 123 into text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from unicodedata import category

from batchgen.config.models import PromptConfig
from batchgen.corpus.chat_template import read_chat_template
from batchgen.corpus.templates import (
    RowRefused,
    Template,
    absent,
    binary,
    refusal,
    single_braces_hint,
)
from batchgen.errors import JobFileError
from batchgen.protocols import Tokenizer
from batchgen.records import MISSING, RowBlock, RowError

_SHOWN = 40
_INVISIBLE = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})
"""Unicode categories: separators, control and format characters."""


@dataclass(slots=True)
class Texts:
    """What a block's rows became, by offset in the block."""

    by_offset: dict[int, str] = field(default_factory=dict)
    chats: set[int] = field(default_factory=set)
    """Rows whose text the chat template made; it holds the special tokens already."""
    errors: dict[int, RowError] = field(default_factory=dict)


class Source(Protocol):
    """How rows become texts."""

    columns: tuple[str, ...]

    def render(self, block: RowBlock, offsets: Sequence[int]) -> Texts:
        """Text or error of each of these rows."""
        ...

    def fields(self, block: RowBlock, offset: int) -> dict[str, str]:
        """The row's own texts, each of which can be cut; never the template's words."""
        ...

    def render_with(self, block: RowBlock, offset: int, fields: Mapping[str, str]) -> str:
        """The row's text with these in place of its own. Raises RowRefused."""
        ...


def is_blank(text: str) -> bool:
    """Whether nothing of a text can be seen: blanks, control and format characters only.

    >>> is_blank(" \\u200b\\n"), is_blank(" a")
    (True, False)
    """
    return all(category(char) in _INVISIBLE for char in text)


def _judge_text(text: str, allow_blank: bool) -> RowError | None:
    if text[:1] > " " and text[:1].isprintable():
        return None
    if is_blank(text) and not (allow_blank and text):
        return RowError("empty_prompt", "the prompt has no visible character")
    return None


class TemplateSource:
    """`prompt.template`: a raw prompt."""

    def __init__(self, config: PromptConfig, where: Callable[[str], str]) -> None:
        text = config.template or ""
        place = where("prompt.template")
        self._template = Template(text, place)
        self._allow_blank = config.allow_blank
        self.columns = self._template.columns
        if not self.columns:
            raise JobFileError(f"{place}: the template uses no column{single_braces_hint([text])}")

    def render(self, block: RowBlock, offsets: Sequence[int]) -> Texts:
        """As Source."""
        texts = Texts()
        texts.by_offset = _render_all(self._template, block, offsets, texts.errors)
        for offset, text in texts.by_offset.items():
            error = _judge_text(text, self._allow_blank)
            if error is not None:
                texts.errors[offset] = error
        return texts

    def fields(self, block: RowBlock, offset: int) -> dict[str, str]:
        """As Source."""
        return _text_fields(_values(block, self.columns, offset))

    def render_with(self, block: RowBlock, offset: int, fields: Mapping[str, str]) -> str:
        """As Source."""
        return self._template.render({**_values(block, self.columns, offset), **fields})


class MessagesSource:
    """`prompt.messages`: each content is a template, then comes the model's chat template."""

    def __init__(
        self,
        config: PromptConfig,
        where: Callable[[str], str],
        chat: Callable[[Sequence[dict[str, Any]]], str],
    ) -> None:
        messages = config.messages or []
        self._chat = chat
        self._allow_blank = config.allow_blank
        self._templates = [
            (message.role, Template(message.content, where(f"prompt.messages.{index}.content")))
            for index, message in enumerate(messages)
        ]
        self.columns = tuple(
            dict.fromkeys(name for _, template in self._templates for name in template.columns)
        )
        if not self.columns:
            hint = single_braces_hint([message.content for message in messages])
            raise JobFileError(f"{where('prompt.messages')}: the messages use no column{hint}")

    def render(self, block: RowBlock, offsets: Sequence[int]) -> Texts:
        """As Source."""
        texts = Texts()
        contents = [
            (role, _render_all(template, block, offsets, texts.errors))
            for role, template in self._templates
        ]
        for offset in offsets:
            if offset in texts.errors:
                continue
            messages = [
                {"role": role, "content": by_offset[offset]} for role, by_offset in contents
            ]
            try:
                texts.by_offset[offset] = _render_chat(messages, self._chat, self._allow_blank)
            except RowRefused as refused:
                texts.errors[offset] = refused.error
        texts.chats.update(texts.by_offset)
        return texts

    def fields(self, block: RowBlock, offset: int) -> dict[str, str]:
        """As Source."""
        return _text_fields(_values(block, self.columns, offset))

    def render_with(self, block: RowBlock, offset: int, fields: Mapping[str, str]) -> str:
        """As Source."""
        values = {**_values(block, self.columns, offset), **fields}
        messages = [
            {
                "role": role,
                "content": template.render({name: values[name] for name in template.columns}),
            }
            for role, template in self._templates
        ]
        return _render_chat(messages, self._chat, self._allow_blank)


class ColumnSource:
    """`prompt.column`: text as it is, or a conversation, row by row.

    An empty list is a conversation without messages, unless the column holds texts.
    """

    def __init__(
        self, config: PromptConfig, chat: Callable[[Sequence[dict[str, Any]]], str]
    ) -> None:
        self._column = config.column or ""
        self._chat = chat
        self._allow_blank = config.allow_blank
        self.columns = (self._column,)

    def render(self, block: RowBlock, offsets: Sequence[int]) -> Texts:
        """As Source."""
        texts = Texts()
        values = block.columns.get(self._column)
        if values is None:
            error = absent(self._column, MISSING)
            texts.errors = dict.fromkeys(offsets, error)
            return texts
        for offset in offsets:
            value = values[offset]
            if type(value) is str:
                refusal = _judge_text(value, self._allow_blank)
                if refusal is None:
                    texts.by_offset[offset] = value
                else:
                    texts.errors[offset] = refusal
                continue
            try:
                texts.by_offset[offset] = self._render_conversation(value, values)
            except RowRefused as refused:
                texts.errors[offset] = refused.error
            else:
                texts.chats.add(offset)
        return texts

    def fields(self, block: RowBlock, offset: int) -> dict[str, str]:
        """As Source; the contents of a conversation go by their number."""
        value = block.columns[self._column][offset]
        if isinstance(value, str):
            return {self._column: value}
        messages = _as_messages(value, self._column)
        return {str(index): message["content"] for index, message in enumerate(messages)}

    def render_with(self, block: RowBlock, offset: int, fields: Mapping[str, str]) -> str:
        """As Source."""
        value = block.columns[self._column][offset]
        if isinstance(value, str):
            return fields[self._column]
        messages = _as_messages(value, self._column)
        for index, content in fields.items():
            messages[int(index)]["content"] = content
        return _render_chat(messages, self._chat, self._allow_blank)

    def _render_conversation(self, value: Any, values: Sequence[Any]) -> str:
        if value is None or value is MISSING or value != value:
            raise RowRefused(absent(self._column, value))
        if isinstance(value, bytes):
            raise RowRefused(binary(self._column))
        if not isinstance(value, list) or (
            not value and any(isinstance(other, str) for other in values)
        ):
            raise RowRefused(
                RowError(
                    "bad_type",
                    f"column '{self._column}' is neither text nor a list of messages:"
                    f" {_shown(value)}",
                )
            )
        messages = _as_messages(value, self._column)
        return _render_chat(messages, self._chat, self._allow_blank)


def make_source(
    config: PromptConfig, where: Callable[[str], str], tokenizer: Tokenizer
) -> TemplateSource | MessagesSource | ColumnSource:
    """The source that a job asks for. Raises JobFileError for templates that cannot be used, the
    chat template among them."""
    read_chat_template(config.chat_template, where("prompt.chat_template"))

    def chat(messages: Sequence[dict[str, Any]]) -> str:
        return tokenizer.render_chat(messages, **config.chat_template_kwargs)

    if config.template is not None:
        return TemplateSource(config, where)
    if config.messages is not None:
        return MessagesSource(config, where, chat)
    return ColumnSource(config, chat)


def _render_all(
    template: Template, block: RowBlock, offsets: Sequence[int], errors: dict[int, RowError]
) -> dict[int, str]:
    """A template's text for each of these rows; a row that has an error gets no text."""
    rendered: dict[int, str] = {}
    format = template.format
    if format is None or any(slot not in block.columns for slot in template.slots):
        for offset in offsets:
            try:
                rendered[offset] = template.render(_values(block, template.columns, offset))
            except RowRefused as refused:
                errors.setdefault(offset, refused.error)
        return rendered
    slots = [block.columns[slot] for slot in template.slots]
    for offset in offsets:
        values = tuple([slot[offset] for slot in slots])
        for index, value in enumerate(values):
            if type(value) is str:
                continue
            error = refusal(template.slots[index], value)
            if error is not None:
                errors.setdefault(offset, error)
                break
        else:
            try:
                rendered[offset] = format % values
            except RecursionError:
                error = RowError("template_error", "a value is nested too deeply to be written")
                errors.setdefault(offset, error)
    return rendered


def _values(block: RowBlock, columns: Sequence[str], offset: int) -> dict[str, Any]:
    present = block.columns
    return {column: present[column][offset] if column in present else MISSING for column in columns}


def _text_fields(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in values.items() if isinstance(value, str)}


def _render_chat(
    messages: Sequence[dict[str, Any]],
    chat: Callable[[Sequence[dict[str, Any]]], str],
    allow_blank: bool,
) -> str:
    contents = "".join(message["content"] for message in messages)
    error = _judge_text(contents, allow_blank)
    if error is not None:
        raise RowRefused(error)
    try:
        return chat(messages)
    except ValueError as exc:
        error = RowError("template_error", f"the chat template refuses the messages: {exc}")
        raise RowRefused(error) from exc


def _as_messages(value: Sequence[Any], column: str) -> list[dict[str, Any]]:
    """Messages of a row, checked; contents in several text parts become one text."""
    if not value:
        raise RowRefused(RowError("no_messages", f"column '{column}' is a list without messages"))
    return [_as_message(message, f"message {n} in '{column}'") for n, message in enumerate(value)]


def _as_message(message: Any, place: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RowRefused(RowError("bad_type", f"{place} is no object: {_shown(message)}"))
    # Parquet gives every message all fields of the column's type, most of them null.
    given = {key: value for key, value in message.items() if value is not None}
    role, content = given.get("role"), given.get("content", "" if "tool_calls" in given else None)
    if not isinstance(role, str) or not role:
        raise RowRefused(RowError("bad_type", f"{place} has no role"))
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        content = "\n".join(part["text"] for part in content)
    if not isinstance(content, str):
        reason = "has no content" if content is None else f"has no text: {_shown(content)}"
        raise RowRefused(RowError("bad_type", f"{place} {reason}"))
    return {**given, "content": content}


def _is_text_part(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return "deeply nested lists"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
