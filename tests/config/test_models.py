import pytest
from pydantic import ValidationError

from batchgen.config.models import ErrorsConfig, ModelConfig


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"prompt": {}}, "prompt: needs one of messages, template, column"),
        ({"prompt": {"template": None}}, "prompt: needs one of messages, template, column"),
        (
            {"prompt": {"template": "{{ a }}", "column": "b"}},
            "prompt.column: cannot stand beside prompt.template; keep one of them",
        ),
        (
            {"prompt": {"template": "{{ a }}", "chat_template": "x.jinja"}},
            "prompt.chat_template: has no effect with prompt.template, which is a raw prompt;"
            " use prompt.messages",
        ),
        (
            {"prompt": {"messages": [{"role": "usr", "content": "x"}]}},
            "prompt.messages.0.role: must be 'system', 'developer', 'user', 'assistant' or 'tool',"
            " is 'usr'; did you mean 'user'?",
        ),
        ({"prompt": {"messages": []}}, "prompt.messages: must not be empty"),
        ({"model": {}}, "model.name: is missing; give a local directory or a hub id"),
        (
            {"model": {"name": "x", "engine": "vlm"}},
            "model.engine: must be 'vllm' or 'simulated', is 'vlm'; did you mean 'vllm'?",
        ),
        (
            {"model": {"name": "x", "dtype": "float32"}},
            "model.dtype: no such key; engine arguments of vLLM belong into model.extra",
        ),
        (
            {"batch": {"window": 0}},
            "batch.window: must be 'auto' or a number of rows above 0, is 0",
        ),
        (
            {"batch": {"window": True}},
            "batch.window: must be 'auto' or a number of rows above 0, is true",
        ),
        (
            {"errors": {"stop_at": True}},
            "errors.stop_at: must be a number of rows (5) or a share of them ('20%'), is true",
        ),
        (
            {"output": {"path": "x", "bytes_per_part": True}},
            "output.bytes_per_part: must be a number of bytes above 0, or one with a unit"
            " ('256 MiB'), is true",
        ),
        (
            {"output": {"path": "x", "keep": ["id", "title", "id"]}},
            "output.keep.2: 'id' stands there twice; name each column once",
        ),
        (
            {"sampling": {"stop": 5}},
            "sampling.stop: must be text or a list of texts, is 5; put it in quotes",
        ),
        (
            {"sampling": {"json_schema": True}},
            "sampling.json_schema: must be a JSON schema (a mapping, JSON text, or the path of a"
            " .json file) or {column: name}, is true",
        ),
        (
            {"model": {"engine": "simulated", "extra": {"script": "none.json"}}},
            "model.extra.script: cannot read the file 'none.json': no such file; paths are relative"
            " to the working directory",
        ),
        ({"batch": {"size": "5"}}, "batch.size: must be a whole number, is '5'; remove the quotes"),
        (
            {"batch": {"size": "10_000"}},
            "batch.size: must be a whole number, is '10_000'; write 10000",
        ),
        ({"input": {"paths": []}}, "input.paths: must not be empty"),
        (
            {"output": {"path": "x", "keep": "id"}},
            "output.keep: must be a list, is 'id'; write [id]",
        ),
        ({"output": None}, "output: must be a mapping of keys and values, is null"),
        ({"name": 7}, "name: must be text, is 7; put it in quotes"),
        (
            {"errors": {"max_failed": 0.015}},
            "errors.max_failed: must be a number of rows (5) or a share of them ('20%'), is 0.015;"
            " write '1.5%'",
        ),
        (
            {"errors": {"stop_at": "120%"}},
            "errors.stop_at: must be a number of rows (5) or a share of them ('20%'), is '120%'",
        ),
        (
            {"output": {"path": "x", "bytes_per_part": "2 XB"}},
            "output.bytes_per_part: must be a number of bytes above 0, or one with a unit"
            " ('256 MiB'), is '2 XB'",
        ),
    ],
)
def test_a_problem_is_told_in_the_users_words(section_problems, sections, problem):
    assert section_problems(**sections) == [problem]


def test_one_path_may_stand_alone(load):
    assert load(input={"paths": "data"}).input.paths == ["data"]


def test_sizes_may_carry_a_unit(load):
    assert load(output={"path": "x", "bytes_per_part": "2 MiB"}).output.bytes_per_part == 2**21


def test_json_is_the_key_of_expects_json(load):
    assert load(output={"path": "x", "json": True}).output.expects_json


def test_the_simulated_engine_needs_no_model_name(load):
    job = load(model={"engine": "simulated", "extra": {"clock": "simulated"}})
    assert job.model.simulated().clock == "simulated"


def test_sections_are_frozen(load):
    with pytest.raises(ValidationError, match="frozen"):
        load().batch.size = 3


@pytest.mark.parametrize(
    ("max_failed", "num_rows", "limit"),
    [(0, 100, 0), (5, 3, 5), ("1%", 700, 7), ("0.5%", 199, 0), ("100%", 9, 9), ("29%", 100, 29)],
)
def test_max_failed_is_rows_or_a_share_rounded_down(max_failed, num_rows, limit):
    assert ErrorsConfig(max_failed=max_failed).failed_limit(num_rows) == limit


@pytest.mark.parametrize(
    ("stop_at", "share", "count"), [("20%", 0.2, None), (7, None, 7), (None, None, None)]
)
def test_stop_at_is_a_share_or_a_count(stop_at, share, count):
    errors = ErrorsConfig(stop_at=stop_at)
    assert (errors.stop_share, errors.stop_count) == (share, count)


def test_a_section_built_in_python_is_checked_too():
    with pytest.raises(ValidationError):
        ModelConfig(name="x", extra={"no_such_argument": 1})
