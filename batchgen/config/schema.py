"""The job file as a JSON schema: completion, hover and red underlines in editors.

It is made from the models, so it says what they say. What they cannot express in a schema (rules
between fields) is left to `batchgen check`.
"""

from pathlib import Path
from typing import Any, Final, get_args

from batchgen.config.extra import ELSEWHERE, engine_args
from batchgen.config.manual import field_manuals, section_manual
from batchgen.config.models import JobConfig
from batchgen.config.section import Section
from batchgen.config.simulated import SimulatedOptions

SCHEMA_FILE: Final = Path(__file__).parent / "tables" / "job.schema.json"
"""The schema as it is shipped: making it takes a quarter of a second, reading it nothing."""
_KEYS_OF_PYDANTIC = ("title", "discriminator")


def job_schema() -> dict[str, Any]:
    """JSON schema (Draft 2020-12) of the whole job file."""
    schema = section_schema(JobConfig)
    options = section_schema(SimulatedOptions)
    definitions = {**schema.pop("$defs"), **options.pop("$defs"), "SimulatedOptions": options}
    definitions["ModelConfig"]["allOf"] = [_extra_by_engine()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "batchgen job",
        **schema,
        "$defs": dict(sorted(definitions.items())),
    }


def section_schema(section: type[Section]) -> dict[str, Any]:
    """JSON schema of one section with the manuals as descriptions."""
    raw = section.model_json_schema(by_alias=True)
    definitions = raw.setdefault("$defs", {})
    for model in _sections_within(section):
        _describe(model, raw if model is section else definitions[model.__name__])
    plain: dict[str, Any] = _plain(raw)
    return plain


def _describe(section: type[Section], schema: dict[str, Any]) -> None:
    schema["description"] = section_manual(section)
    manuals = field_manuals(section)
    for name, field in section.model_fields.items():
        described = schema["properties"][field.alias or name]
        if name in manuals:
            described["description"] = manuals[name]
        elif "$ref" in described:
            described.pop("description", None)


def _sections_within(section: type[Section]) -> list[type[Section]]:
    found = [section]
    for model in found:
        for field in model.model_fields.values():
            found += [inner for inner in _sections_in(field.annotation) if inner not in found]
    return found


def _sections_in(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _sections_in(argument)]


def _plain(node: Any, *, is_properties: bool = False) -> Any:
    """Without pydantic's titles; `oneOf` becomes `anyOf`, because a column also is an object."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        "anyOf" if key == "oneOf" and not is_properties else key: _plain(
            value, is_properties=key in ("properties", "$defs") and not is_properties
        )
        for key, value in node.items()
        if is_properties or key not in _KEYS_OF_PYDANTIC
    }


def _extra_by_engine() -> dict[str, Any]:
    """`model.extra` holds the options of the engine that the job names."""
    arguments = {
        name: _argument_schema(argument)
        for name, argument in engine_args().items()
        if name not in ELSEWHERE
    }
    options = {
        name: {"$ref": f"#/$defs/SimulatedOptions/properties/{name}"}
        for name in SimulatedOptions.model_fields
    }
    return {
        "if": {"properties": {"engine": {"const": "simulated"}}, "required": ["engine"]},
        "then": {
            "properties": {
                "extra": {"properties": {**arguments, **options}, "additionalProperties": False}
            }
        },
        "else": {
            "properties": {"extra": {"properties": arguments, "additionalProperties": False}},
            "required": ["name"],
        },
    }


def _argument_schema(argument: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    if "types" in argument:
        schema["type"] = argument["types"]
    if "choices" in argument:
        nothing = [None] if "null" in argument["types"] else []
        schema["enum"] = [*argument["choices"], *nothing]
    return schema
