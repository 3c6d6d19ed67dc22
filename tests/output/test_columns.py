from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.config.models import ModelConfig, OutputConfig, SamplingConfig
from batchgen.errors import DataError, ResumeMismatch
from batchgen.output.columns import (
    PartColumns,
    check_schema,
    generated_names,
    job_schema,
    load_schema,
    output_schema,
    save_schema,
)
from batchgen.records import FinishedRow

ALWAYS = [
    "shard", "row", "output", "finish_reason", "num_prompt_tokens", "num_output_tokens",
    "num_cached_tokens", "ttft_s", "latency_s", "run_id", "batch_id", "duplicate_of",
    "error_type", "error",
]  # fmt: skip
KEPT = pa.schema([pa.field("id", pa.int32(), metadata={"PARQUET:field_id": "7"})])


def test_the_columns_follow_the_design() -> None:
    assert output_schema(KEPT).names == ["id", *ALWAYS]


def test_every_field_of_a_finished_row_has_a_column() -> None:
    everything = output_schema(
        pa.schema([]),
        with_prompt=True,
        with_reasoning=True,
        with_logprobs=True,
        with_json=True,
        with_stopped_by=True,
    )
    assert everything.names == [field for field in FinishedRow._fields if field != "part_start"]


@pytest.mark.parametrize(
    ("output", "sampling", "model", "more"),
    [
        ({}, {}, {}, []),
        ({"prompt": True}, {}, {}, ["prompt"]),
        ({"json": True}, {}, {}, ["json_valid"]),
        ({}, {"logprobs": 0}, {}, ["logprobs"]),
        ({}, {}, {"reasoning_parser": "qwen3"}, ["reasoning"]),
    ],
)
def test_a_job_decides_which_columns_there_are(
    output: dict[str, Any], sampling: dict[str, Any], model: dict[str, Any], more: list[str]
) -> None:
    names = generated_names(
        OutputConfig(path="x", prefix="gen_", **output),
        SamplingConfig(**sampling),
        ModelConfig(name="m", **model),
    )
    assert list(names) == [f"gen_{name}" for name in (*ALWAYS, *more)]


@pytest.mark.parametrize("n", [3, {"column": "how_many"}])
def test_with_several_completions_a_completions_columns_are_lists(n: Any) -> None:
    schema = job_schema(
        KEPT, OutputConfig(path="x", json=True), SamplingConfig(n=n), ModelConfig(name="m")
    )
    lists = [field.name for field in schema if pa.types.is_list(field.type)]
    assert lists == ["output", "finish_reason", "json_valid"]


def test_rules_that_stop_rows_early_add_the_column_that_names_them() -> None:
    parts = OutputConfig(path="x"), SamplingConfig(), ModelConfig(name="m")
    assert generated_names(*parts, stops_early=True) == (*ALWAYS, "stopped_by")


def test_a_kept_column_may_have_the_name_of_an_absent_one() -> None:
    columns = PartColumns.of(output_schema(pa.schema([("prompt", pa.int64())])), "")
    assert columns.kept_schema.names == ["prompt"]
    assert columns.added_schema.names == ALWAYS
    assert columns.journaled()[-4:] == (False, False, False, False)


@pytest.mark.parametrize("prefix", ["", "gen_", "shard"])
def test_a_reader_recognizes_the_prefix(prefix: str) -> None:
    kept = pa.schema([("my_shard", pa.string()), ("row", pa.string())] if prefix else [])
    columns = PartColumns.recognize(output_schema(kept, prefix=prefix))
    assert (columns.prefix, columns.num_kept) == (prefix, len(kept))


def test_the_schema_of_the_first_run_is_kept(tmp_path: Path, make_world: Any) -> None:
    layout = make_world(tmp_path).layout
    layout.hidden.mkdir(parents=True)
    assert load_schema(layout) is None
    save_schema(layout, output_schema(KEPT))
    assert load_schema(layout) == output_schema(KEPT)


def test_a_lost_schema_is_that_of_the_first_part(world: Any) -> None:
    writer = world.started()
    writer.append([world.rows(0, 3), world.extent(3)])
    writer.finish()
    world.layout.schema.unlink()
    assert load_schema(world.layout) == world.columns.schema


def test_other_columns_are_refused_with_each_difference() -> None:
    with pytest.raises(ResumeMismatch) as refusal:
        check_schema(output_schema(KEPT), output_schema(pa.schema([("id", "string")])), "runs/x")
    first, remedy = refusal.value.problems
    assert first == "runs/x: column 'id' is int32 there, this job makes it string"
    assert "--fresh" in remedy


TEXTS = st.text(st.characters(codec="utf-8"))


@settings(deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=5), error=st.one_of(st.none(), TEXTS))
def test_any_text_survives_a_part_unchanged(
    texts: list[str], error: str | None, make_world: Any, new_folder: Any
) -> None:
    with new_folder() as folder:
        world = make_world(Path(folder), with_prompt=True)
        writer = world.started()
        rows = [world.row(i, output=text, prompt=text, error=error) for i, text in enumerate(texts)]
        writer.append([rows, world.extent(len(texts))])
        writer.finish()
        outputs = world.outputs()
        assert [row["output"] for row in outputs] == texts
        assert [row["prompt"] for row in outputs] == texts
        assert {row["error"] for row in outputs} == {error}


def test_lone_surrogates_are_replaced_rather_than_lost(world: Any) -> None:
    writer = world.started()
    writer.append([[world.row(0, output="a\ud800b"), world.row(1)], world.extent(2)])
    writer.finish()
    assert [row["output"] for row in world.outputs()] == ["a?b", "reply to a.jsonl 1"]


def test_several_completions_and_their_details_survive(tmp_path: Path, make_world: Any) -> None:
    world = make_world(
        tmp_path, n_many=True, with_logprobs=True, with_reasoning=True, with_json=True
    )
    candidates = [[{"token_id": 1, "token": "a", "logprob": -0.5, "rank": 1}], []]
    many = world.row(
        0,
        output=["x", "y"],
        finish_reason=["stop", "length"],
        reasoning=[None, "because"],
        logprobs=[candidates, None],
        json_valid=[True, False],
    )
    one = world.row(1, output="z", finish_reason="stop", logprobs=candidates, json_valid=True)
    writer = world.started()
    writer.append([[many, one, world.failed(2)], world.extent(3)])
    writer.finish()
    first, second, failed = world.outputs()
    assert first["finish_reason"] == ["stop", "length"]
    assert first["reasoning"] == [None, "because"]
    assert first["logprobs"] == [candidates, None]
    assert (second["output"], second["logprobs"]) == (["z"], [candidates])
    assert (failed["output"], failed["json_valid"]) == (None, None)


def test_lists_in_an_output_of_single_completions_are_refused_at_once(world: Any) -> None:
    writer = world.started()
    with pytest.raises(DataError, match=r"sampling\.n"):
        writer.append([[world.row(0, output=["a", "b"])]])


def test_parts_have_one_schema_whatever_they_hold(world: Any) -> None:
    writer = world.started()
    writer.append(
        [
            world.rows(0, 2),
            [world.failed(2, part=2), world.failed(3, part=2)],
            world.extent(2),
            world.extent(2, part=2),
            world.extent(0, "empty.jsonl", shard_rows=0),
        ]
    )
    writer.finish()
    schemas = [pq.read_schema(path) for path in world.layout.outputs.glob("*.parquet")]
    assert len(schemas) == 3
    assert all(schema.equals(world.columns.schema) for schema in schemas)
