"""docs/job-file.md, made from the models: every key with its type, default and manual."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from batchgen.config.fingerprint import FREE_MODEL_KEYS
from batchgen.config.manual import field_manuals, section_manual
from batchgen.config.models import JobConfig, MessageConfig
from batchgen.config.sampling import RepetitionDetection, StructuredOutputs
from batchgen.config.schema import section_schema
from batchgen.config.section import Section
from batchgen.config.stop_early import RepetitionStop

_INTRODUCTION = """\
# The job file

A job is one YAML file. `batchgen check job.yaml` says what is wrong with it, all at once and with
line and column; `batchgen schema > batchgen.schema.json` gives editors completion and hover texts.

```yaml
# yaml-language-server: $schema=../batchgen.schema.json
name: summarize-docs
input:
  paths: [data/samples/*.parquet, data/samples/*.jsonl]
prompt:
  messages:
    - {role: system, content: You summarize documents.}
    - {role: user, content: "Summarize in two sentences:\\n\\n{{ text }}"}
model:
  name: models/smollm2-135m
  max_model_len: 2048
sampling: {max_tokens: 96, temperature: 0.0, seed: 0}
output:
  path: runs/summarize-docs
  keep: [id, title, source]
```

- **Scalars** follow YAML 1.2: `no` is a text, `1e-4` a number, only `true` and `false` are truth
  values. Types are strict: `"64"` is not a number.
- **Environment variables**: `${VAR}`, `${VAR:-default}`, `${VAR:?message}`, anywhere but in
  `prompt`; `$${` is a literal `${`.
- **Overrides**: `-s sampling.max_tokens=64` replaces any key; the value is read as YAML (`null`
  removes one). `prompt.template` and `prompt.chat_template` take the text as it is.
- **Secrets**: values of keys named like key, token, secret or password, credentials in URLs, and
  all but the host of the URLs in `notify` are masked wherever the job is saved or printed.
- **Paths** are relative to the working directory.
- **Sizes** in bytes may carry a unit (`256 MiB`); limits of failed rows may be shares (`20%`).
"""

_LARGEST_WORTH_SAYING = 10**9

_SAMPLING_NOTE = """\
Any of these keys may be `{column: name}`: then each row brings its own value, and null in a row
means the default. Names, rules and defaults are vLLM's. Fields of SamplingParams that are not here
are either set by batchgen or would give results that the output has no column for.
"""


def job_file_markdown() -> str:
    """The whole page, with a line feed at its end."""
    schema = section_schema(JobConfig)
    parts = [_INTRODUCTION, _top(schema)]
    for name, field in JobConfig.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            parts.append(_section(f"`{name}`", section))
            parts += _additions(name)
    return "\n".join(parts)


def _top(schema: dict[str, Any]) -> str:
    manual = field_manuals(JobConfig)["name"]
    required = ", ".join(f"`{name}`" for name in schema["required"])
    return f"`name`: {manual[0].lower()}{manual[1:]} Required are {required}.\n"


def _additions(name: str) -> Iterator[str]:
    if name == "prompt":
        yield _section("a message of `prompt.messages`", MessageConfig, level=3)
    elif name == "model":
        yield _free_keys()
    elif name == "sampling":
        yield _SAMPLING_NOTE
        yield _section("`sampling.structured_outputs`", StructuredOutputs, level=3)
        yield _section("`sampling.repetition_detection`", RepetitionDetection, level=3)
    elif name == "stop_early":
        yield _section("`stop_early.repetition`", RepetitionStop, level=3)


def _free_keys() -> str:
    keys = ", ".join(f"`{key}`" for key in sorted(FREE_MODEL_KEYS))
    return (
        "### What may change before a resume\n\n"
        "A run resumes only with the same prompt, model, sampling and output settings. `batch`,"
        " `errors`, `notify`, `metrics` and `name` may change, and of `model` and `model.extra`"
        f" (of the simulated engine: all of `extra`) these keys:\n\n{keys}.\n"
    )


def _section(title: str, section: type[Section], *, level: int = 2) -> str:
    schema = section_schema(section)
    rows = "\n".join(_rows(section, schema))
    return (
        f"{'#' * level} {title}\n\n{section_manual(section)}\n\n"
        f"| key | value | default | meaning |\n|---|---|---|---|\n{rows}\n"
    )


def _rows(section: type[Section], schema: dict[str, Any]) -> Iterator[str]:
    manuals = field_manuals(section)
    for name, field in section.model_fields.items():
        key = field.alias or name
        kind = type_in_words(schema["properties"][key], schema["$defs"])
        default = "required" if field.is_required() else _default(field)
        cells = (f"`{key}`", kind, default, manuals.get(name, ""))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(field: FieldInfo) -> str:
    value = to_jsonable_python(field.get_default(call_default_factory=True), by_alias=True)
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def type_in_words(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """The values that a field takes, shortly; a column reference is left out."""
    if "anyOf" in schema:
        words = [type_in_words(part, definitions) for part in schema["anyOf"]]
        return " or ".join(dict.fromkeys(word for word in words if word))
    if "$ref" in schema:
        return "" if schema["$ref"].endswith("/ColumnRef") else "mapping"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {type_in_words(schema.get('items', {}), definitions) or 'any'}"
    if schema.get("type") in ("integer", "number"):
        return f"{schema['type']}{_range(schema)}"
    names = {"string": "text", "boolean": "`true`, `false`", "object": "mapping", "null": "`null`"}
    return names.get(str(schema.get("type")), "any")


def _range(schema: dict[str, Any]) -> str:
    words = (
        ("exclusiveMinimum", ">"),
        ("minimum", "≥"),
        ("exclusiveMaximum", "<"),
        ("maximum", "≤"),
    )
    limits = [
        f"{sign} {schema[key]:g}"
        for key, sign in words
        if key in schema and abs(schema[key]) <= _LARGEST_WORTH_SAYING
    ]
    return f" {', '.join(limits)}" if limits else ""
