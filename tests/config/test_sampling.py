import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from batchgen.config.models import ColumnRef, SamplingConfig
from batchgen.config.sampling import DEFAULT_MAX_TOKENS


@pytest.mark.parametrize(
    ("sampling", "problem"),
    [
        ({"max_tokens": 0}, "max_tokens: must be greater than 0, is 0"),
        ({"max_tokens": True}, "max_tokens: must be a whole number, is true"),
        ({"max_tokens": 8.0}, "max_tokens: must be a whole number, is 8.0; write 8"),
        ({"n": 0}, "n: must be at least 1, is 0"),
        ({"temperature": -0.1}, "temperature: must be at least 0, is -0.1"),
        ({"temperature": 2.5}, "temperature: must be at most 2, is 2.5"),
        ({"temperature": float("nan")}, "temperature: must be a finite number, is nan"),
        ({"temperature": "hot"}, "temperature: must be a number, is 'hot'"),
        ({"top_p": 0}, "top_p: must be greater than 0, is 0"),
        ({"top_p": 1.5}, "top_p: must be at most 1, is 1.5"),
        ({"top_k": -2}, "top_k: must be at least -1, is -2"),
        ({"min_p": 2}, "min_p: must be at most 1, is 2"),
        ({"presence_penalty": 3}, "presence_penalty: must be at most 2, is 3"),
        ({"repetition_penalty": 0}, "repetition_penalty: must be greater than 0, is 0"),
        ({"seed": "x"}, "seed: must be a whole number, is 'x'"),
        ({"seed": -1}, "seed: must be at least 0, is -1"),
        ({"stop": ""}, "stop.0: must not be empty"),
        ({"stop": ["a", ""]}, "stop.1: must not be empty"),
        ({"stop": [3]}, "stop.0: must be text, is 3; put it in quotes"),
        ({"bad_words": ["", "x"]}, "bad_words.0: must not be empty"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0: must be at least 0, is -1"),
        ({"allowed_token_ids": []}, "allowed_token_ids: must not be empty"),
        ({"logprobs": 21}, "logprobs: must be at most model.extra.max_logprobs (20), is 21"),
        ({"logprobs": -1}, "logprobs: must be at most model.extra.max_logprobs (20), is -1"),
        (
            {"logprob_token_ids": [1, 2], "logprobs": 1},
            "logprobs: must be the number of logprob_token_ids (2) or left out, is 1",
        ),
        (
            {"logprob_token_ids": list(range(129))},
            "logprob_token_ids: must have at most 128 entries, has 129",
        ),
        (
            {"n": 3, "temperature": 0},
            "n: must be 1 with temperature 0 (all completions would be equal), is 3",
        ),
        (
            {"min_tokens": 9, "max_tokens": 8},
            "min_tokens: must not be above max_tokens (8), is 9",
        ),
        (
            {"min_tokens": 20},
            "min_tokens: must not be above max_tokens (16, its default), is 20",
        ),
        ({"logit_bias": {"a": 1}}, "logit_bias.a: the key must be a whole number, is 'a'"),
        (
            {"extra_args": {"x": [2**70]}},
            f"extra_args: integers must fit in 64 bits, {2**70} does not",
        ),
        ({"top_k": {"column": 4}}, "top_k.column: must be text, is 4; put it in quotes"),
        ({"output_kind": 2}, "output_kind: is set by batchgen itself; leave it out"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "structured_outputs: needs exactly one of json, regex, choice, grammar, json_object,"
            " structural_tag; it has regex and choice",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "json_schema": {"type": "object"}},
            "structured_outputs: cannot stand beside json_schema; keep one of them",
        ),
        (
            {"repetition_detection": {"max_pattern_size": 3, "min_count": 1}},
            "repetition_detection.min_count: must be at least 2, is 1",
        ),
    ],
)
def test_values_that_vllm_would_refuse_are_problems_of_the_job(section_problems, sampling, problem):
    assert section_problems(sampling=sampling) == [f"sampling.{problem}"]


def test_rules_between_fields_show_beside_wrong_fields(section_problems):
    found = section_problems(sampling={"n": 2, "temperature": 0, "top_p": 7})
    assert len(found) == 2


def test_a_wrong_value_is_not_taken_for_a_missing_one(section_problems):
    found = section_problems(sampling={"max_tokens": -5, "min_tokens": 20})
    assert found == ["sampling.max_tokens: must be greater than 0, is -5"]


def test_rules_do_not_judge_columns(load):
    sampling = {
        "n": 3,
        "temperature": {"column": "t"},
        "min_tokens": 99,
        "max_tokens": {"column": "m"},
    }
    assert load(sampling=sampling).sampling.columns() == {"temperature": "t", "max_tokens": "m"}


def test_a_larger_logprobs_limit_is_heeded(load):
    job = load(sampling={"logprobs": 50}, model={"name": "x", "extra": {"max_logprobs": 64}})
    assert job.sampling.logprobs == 50


@pytest.mark.parametrize("field", list(SamplingConfig.model_fields))
def test_every_field_may_come_from_a_column(field):
    sampling = SamplingConfig.model_validate({field: {"column": "c"}})
    assert sampling.columns() == {field: "c"}
    assert field not in sampling.constants()


def test_constants_are_what_the_job_sets_without_the_seed():
    sampling = SamplingConfig.model_validate(
        {"temperature": 0, "seed": 7, "stop": "END", "top_p": None, "logit_bias": {"5": 1}}
    )
    assert sampling.constants() == {
        "max_tokens": DEFAULT_MAX_TOKENS,
        "temperature": 0.0,
        "stop": ["END"],
        "logit_bias": {5: 1.0},
    }
    assert sampling.seed == 7


def test_max_tokens_null_means_up_to_the_models_length():
    assert SamplingConfig.model_validate({"max_tokens": None}).constants() == {"max_tokens": None}


def test_nested_constants_have_vllms_form():
    sampling = SamplingConfig.model_validate({"structured_outputs": {"choice": ["a", "b"]}})
    assert sampling.constants()["structured_outputs"] == {
        "choice": ["a", "b"],
        "disable_any_whitespace": False,
        "disable_additional_properties": False,
    }


SCHEMA = {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {}}}


class TestJsonSchema:
    def test_a_mapping_a_text_and_a_file_give_the_same_text(self, tmp_path: Path):
        path = tmp_path / "schema.json"
        path.write_text(json.dumps(SCHEMA, indent=2), encoding="utf-8")
        forms = (SCHEMA, json.dumps(SCHEMA), str(path))
        texts = {SamplingConfig.model_validate({"json_schema": form}).json_schema for form in forms}
        assert texts == {json.dumps(SCHEMA, separators=(",", ":"))}

    @pytest.mark.parametrize(
        ("schema", "words"),
        [
            ({"type": "objekt"}, "is not a valid JSON schema: at type: 'objekt'"),
            ({"type": "array", "items": [{}]}, "is not a valid JSON schema: at items"),
            ({"$ref": "#/$defs/none"}, "refers to '#/$defs/none', which the schema does not have"),
            ({"$ref": "http://x/y"}, "refers to 'http://x/y'; only references within the schema"),
            ("{not json", "is not JSON"),
            ("nowhere.json", "cannot read the schema file 'nowhere.json': No such file"),
            ([1], "must be a JSON schema (a mapping, JSON text, or the path of a .json file)"),
            ({"a": float("nan")}, "cannot be written as JSON"),
        ],
    )
    def test_a_schema_that_cannot_compile_is_a_problem(self, section_problems, schema, words):
        (problem,) = section_problems(sampling={"json_schema": schema})
        assert problem.startswith(f"sampling.json_schema: {words}")

    def test_nesting_beyond_vllms_limit_is_a_problem(self, section_problems):
        schema: dict[str, object] = {}
        for _ in range(70):
            schema = {"properties": {"x": schema}}
        (problem,) = section_problems(sampling={"json_schema": schema})
        assert "64 levels" in problem


@given(
    st.dictionaries(
        st.sampled_from(list(SamplingConfig.model_fields)),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text("a5{}", max_size=5),
            st.lists(st.integers(), max_size=3),
            st.dictionaries(st.text("a5", max_size=3), st.integers(), max_size=2),
        ),
    )
)
def test_any_values_are_accepted_or_refused_never_a_crash(values):
    try:
        sampling = SamplingConfig.model_validate(values)
    except ValidationError:
        return
    assert not any(isinstance(value, ColumnRef) for value in sampling.constants().values())
