"""Writes batchgen/config/tables/*.json from the installed vLLM.

    python tools/vllm_tables.py            # write
    python tools/vllm_tables.py --check    # exit 1 if the committed tables differ

Engine arguments and sampling fields are checked when a job file is read, where importing vllm
(some 16 seconds) is out of the question. So what there is to know about them is committed; a test
compares it with the installed vLLM.
"""

import builtins
import dataclasses
import enum
import inspect
import json
import sys
import types
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

TABLES = Path(__file__).parent.parent / "batchgen" / "config" / "tables"

_JSON_TYPES: dict[Any, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    Path: "string",
    type(None): "null",
    list: "array",
    tuple: "array",
    set: "array",
    dict: "object",
}


def engine_args() -> dict[str, dict[str, Any]]:
    """Names that `vllm.LLM(...)` accepts, with the JSON types and choices of their values."""
    import vllm.config
    from vllm import LLM
    from vllm.engine import arg_utils

    # Some names are imported by vLLM for type checkers only: any value may be right for these.
    names = defaultdict(lambda: Any, vars(builtins) | vars(vllm.config) | vars(arg_utils))
    hints = get_type_hints(arg_utils.EngineArgs, names, names, include_extras=True)
    for name, parameter in inspect.signature(LLM.__init__).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            hints.setdefault(name, parameter.annotation)
    return {
        name: described(hint) for name, hint in sorted(hints.items()) if not name.startswith("_")
    }


def sampling_params() -> dict[str, dict[str, Any]]:
    """Public fields of vLLM's SamplingParams, with the JSON types of their values."""
    import msgspec
    from vllm import SamplingParams

    hints = get_type_hints(SamplingParams, include_extras=True)
    return {
        field.name: described(hints[field.name])
        for field in sorted(msgspec.structs.fields(SamplingParams), key=lambda field: field.name)
        if not field.name.startswith("_")
    }


def described(hint: Any) -> dict[str, Any]:
    """`types` and `choices` of a type hint; both absent where any value may be right."""
    names: set[str] = set()
    choices: list[Any] = []
    for part in _alternatives(hint):
        if get_origin(part) is Literal:
            choices += [value for value in get_args(part) if value is not None]
            names |= {_JSON_TYPES[type(value)] for value in get_args(part)}
            continue
        name = _json_type(part)
        if name is None:
            return {}
        names.add(name)
    literal_only = choices and not _allows_other_text(hint)
    return {"types": sorted(names)} | ({"choices": choices} if literal_only else {})


def _alternatives(hint: Any) -> list[Any]:
    if get_origin(hint) is Annotated:
        return _alternatives(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return [part for member in get_args(hint) for part in _alternatives(member)]
    return [hint]


def _json_type(part: Any) -> str | None:
    origin = get_origin(part) or part
    if origin in _JSON_TYPES:
        return _JSON_TYPES[origin]
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return "string"
    if dataclasses.is_dataclass(origin):
        return "object"
    return None


def _allows_other_text(hint: Any) -> bool:
    return any(part is str for part in _alternatives(hint))


def tables() -> dict[str, str]:
    """File name to the text that it should have."""
    import vllm

    return {
        f"{name}.json": json.dumps({"vllm": vllm.__version__, key: entries}, indent=1) + "\n"
        for name, key, entries in (
            ("engine_args", "arguments", engine_args()),
            ("sampling_params", "fields", sampling_params()),
        )
    }


def main() -> int:
    """Write the tables, or compare them; the exit code."""
    stale = [
        name
        for name, text in tables().items()
        if not (TABLES / name).exists() or (TABLES / name).read_text("utf-8") != text
    ]
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"{name}: differs; run tools/vllm_tables.py\n" for name in stale)
        return 1 if stale else 0
    TABLES.mkdir(exist_ok=True)
    for name, text in tables().items():
        (TABLES / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
