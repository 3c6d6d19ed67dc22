"""`model.extra`: checked against what the engine knows, before any engine is imported.

vLLM's engine arguments stand in a committed table (`tables/engine_args.json`), because importing
vllm to look them up takes some 16 seconds.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from batchgen.config.section import Problem, Section
from batchgen.config.simulated import SimulatedOptions
from batchgen.config.wording import in_words, nearest, shown

ELSEWHERE: Mapping[str, str] = {
    "model": "is set by batchgen; write model.name",
    "tokenizer": "is set by batchgen; write model.tokenizer",
    "revision": "is set by batchgen; write model.revision",
    "max_model_len": "is set by batchgen; write model.max_model_len",
    "max_num_seqs": "is set by batchgen; write model.max_num_seqs",
    "reasoning_parser": "is set by batchgen; write model.reasoning_parser",
    "chat_template": "is set by batchgen; write prompt.chat_template",
    "disable_log_stats": "is set by batchgen, which needs the statistics",
    "skip_tokenizer_init": "is set by batchgen; leave it out",
    "runner": "is set by batchgen, which only generates; leave it out",
    "convert": "is set by batchgen, which only generates; leave it out",
}
"""Engine arguments that batchgen sets itself, and the key to use instead."""

_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
_WORDS: Mapping[str, str] = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "null": "null",
    "array": "a list",
    "object": "a mapping",
}


@cache
def engine_args() -> dict[str, dict[str, Any]]:
    """vLLM's engine arguments: name to `types` (of JSON; absent: any) and `choices`."""
    text = resources.files("batchgen.config").joinpath("tables/engine_args.json").read_text("utf-8")
    table: dict[str, dict[str, Any]] = json.loads(text)["arguments"]
    return table


def extra_problems(engine: str, extra: Mapping[Any, Any]) -> Iterator[Problem]:
    """What is wrong with `model.extra` for this engine.

    With `simulated`, arguments of vLLM may stand beside its options: a job for vLLM is rehearsed as
    it is, with the engine's name changed.
    """
    if engine == "simulated":
        arguments = {key: extra[key] for key in extra if key in engine_args()}
        yield from extra_problems("vllm", arguments)
        options = {key: extra[key] for key in extra if key not in arguments}
        yield from section_problems(SimulatedOptions, options)
        yield from _script_problems(options.get("script"))
    elif engine == "vllm":
        for key, value in extra.items():
            yield from _argument_problems(str(key), value)


def _script_problems(script: Any) -> Iterator[Problem]:
    if isinstance(script, str) and not Path(script).is_file():
        yield (
            ("script",),
            f"cannot read the file {shown(script)}: no such file; paths are relative to the"
            " working directory",
        )


def section_problems(section: type[Section], values: Any) -> Iterator[Problem]:
    """What is wrong with raw values of a section, in the user's words."""
    try:
        section.model_validate(values)
    except ValidationError as exc:
        yield from in_words(exc, section)


def _argument_problems(key: str, value: Any) -> Iterator[Problem]:
    if key in ELSEWHERE:
        yield (key,), ELSEWHERE[key]
    elif key not in engine_args():
        yield (key,), f"vLLM has no such engine argument{nearest(key, engine_args())}"
    elif problem := _value_problem(engine_args()[key], value):
        yield (key,), problem


def _value_problem(argument: Mapping[str, Any], value: Any) -> str | None:
    types = argument.get("types")
    if types is None or any(_is_a(value, name) for name in types):
        choices = argument.get("choices")
        if choices is None or value is None or value in choices:
            return None
        listed = ", ".join(repr(choice) for choice in choices)
        return f"must be one of {listed}, is {shown(value)}{nearest(str(value), choices)}"
    return f"must be {' or '.join(_WORDS[name] for name in types)}, is {shown(value)}"


def _is_a(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _PYTHON_TYPES[name])
