from typing import Any

import pytest
from jsonschema import Draft202012Validator

from batchgen.config.manual import field_manuals
from batchgen.config.models import JobConfig
from batchgen.config.reference import job_file_markdown
from batchgen.config.schema import job_schema
from batchgen.config.section import Section

JOB: dict[str, Any] = {
    "input": {"paths": ["x"]},
    "prompt": {"column": "text"},
    "model": {"name": "m", "extra": {"dtype": "float32"}},
    "sampling": {"top_k": {"column": "k"}, "json_schema": {"type": "object"}, "stop": "x"},
    "output": {"path": "runs/x", "json": True, "bytes_per_part": "2 MiB"},
    "errors": {"max_failed": "1%", "stop_at": None},
}


@pytest.fixture(scope="module")
def validator():
    schema = job_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"batch": {"window": 64}},
        {"stop_early": {"pattern": "END", "repetition": True}},
        {"stop_early": {"repetition": {"min_count": 3}}},
        {"sampling": {"json_schema": {"column": "schema"}}},
        {"model": {"engine": "simulated", "extra": {"clock": "simulated"}}},
        {"model": {"engine": "simulated", "extra": {"gpu_memory_utilization": 0.5}}},
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(validator, change):
    JobConfig.model_validate(JOB | change)
    assert [error.message for error in validator.iter_errors(JOB | change)] == []


@pytest.mark.parametrize(
    "change",
    [
        {"batch": {"sise": 3}},
        {"batch": {"window": 0}},
        {"stop_early": {"repetition": {"min_count": 1}}},
        {"sampling": {"max_tokens": -5}},
        {"sampling": {"top_k": {"colum": "k"}}},
        {"model": {"engine": "simulated", "extra": {"clok": "real"}}},
        {"model": {"name": "m", "extra": {"gpu_memory_utilisation": 0.5}}},
        {"model": {}},
        {"errors": {"max_failed": 0.5}},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(validator, change):
    assert list(validator.iter_errors(JOB | change))


def test_every_field_has_a_hover_text():
    nodes = [job_schema(), *job_schema()["$defs"].values()]
    missing = [
        key
        for node in nodes
        for key, field in node["properties"].items()
        if not field.get("description") and "$ref" not in field
    ]
    assert missing == []


def sections(section: type[Section]) -> list[type[Section]]:
    return [
        field.annotation
        for field in section.model_fields.values()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    ]


@pytest.mark.parametrize("section", sections(JobConfig), ids=lambda section: section.__name__)
def test_every_field_has_a_manual_and_stands_on_the_page(section):
    page = job_file_markdown()
    for name, field in section.model_fields.items():
        assert field_manuals(section)[name]
        assert f"| `{field.alias or name}` |" in page
