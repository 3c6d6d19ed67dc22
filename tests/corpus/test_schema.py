import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.corpus.schema import plan_columns
from batchgen.corpus.types import is_json_text
from batchgen.errors import DataError


@pytest.fixture
def plan(write_shard, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def plan(shards, **options):
        found = [
            write_shard(name, content) if isinstance(content, list | bytes) else put(name, content)
            for name, content in shards.items()
        ]
        defaults = {"needed": (), "keep": None, "generated": (), "prefix": "", "fixed": None}
        return plan_columns(found, **{**defaults, **options})

    def put(name, table):
        pq.write_table(table, tmp_path / name)
        return write_shard(name, (tmp_path / name).read_bytes())

    return plan


@pytest.mark.parametrize(
    ("values", "type"),
    [
        (["2024-01-01", "5", None], pa.string()),
        ([True, None], pa.bool_()),
        ([1, None, -5], pa.int64()),
        ([2**63 - 1, 1], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([None, None], pa.string()),
    ],
)
def test_a_plain_jsonl_column_has_a_plain_type(plan, values, type):
    field = plan({"a.jsonl": [{"x": value} for value in values]}).kept_schema.field("x")
    assert (field.type, is_json_text(field)) == (type, False)


@pytest.mark.parametrize(
    "values",
    [["a", 1], [True, 1], [{"b": 1}], [[1, 2]], [2**70], [1, "a", None, 2.5], [0.5, 2**53 + 1]],
)
def test_a_mixed_or_nested_jsonl_column_is_json_text(plan, values):
    field = plan({"a.jsonl": [{"x": value} for value in values]}).kept_schema.field("x")
    assert (field.type, is_json_text(field)) == (pa.string(), True)


def test_parquet_types_pass_through(plan):
    columns = {
        "i": pa.array([1], pa.int8()),
        "d": pa.array(["x"]).dictionary_encode(),
        "t": pa.array([0], pa.timestamp("ns", "UTC")),
        "l": pa.array([[{"a": 1}]]),
    }
    table = pa.table(columns)
    assert plan({"a.parquet": table}).kept_schema.types == table.schema.types


def test_csv_columns_are_texts(plan):
    assert plan({"a.csv": ["n,f", "1,2.5"]}).kept_schema.types == [pa.string()] * 2


def test_the_columns_of_all_shards_are_kept_in_the_order_of_their_appearance(plan):
    shards = {"a.jsonl": [{"z": 1, "b": 1}], "b.parquet": pa.table({"b": [1], "a": ["x"]})}
    assert plan(shards).kept_schema.names == ["z", "b", "a"]


def test_keep_chooses_columns_and_their_order(plan):
    result = plan({"a.jsonl": [{"a": 1, "b": 2, "c": 3}]}, keep=["c", "a"])
    assert (result.kept_schema.names, result.columns) == (["c", "a"], ("a", "b", "c"))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.null(), pa.string(), pa.string()),
    ],
)
def test_types_of_two_shards_are_widened(plan, one, other, expected):
    shards = {
        "a.parquet": pa.table({"x": pa.nulls(1, one)}),
        "b.parquet": pa.table({"x": pa.nulls(1, other)}),
    }
    assert plan(shards).kept_schema.field("x").type == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [("b.parquet", pa.table({"x": ["text"]})), ("b.csv", ["x", "1"]), ("b.jsonl", [{"x": "y"}])],
)
def test_types_that_do_not_go_together_are_refused(plan, name, content):
    shards = {"a.parquet": pa.table({"x": [1]}), name: content}
    with pytest.raises(DataError, match=r"column 'x' is .*output\.keep"):
        plan(shards)
    assert plan(shards, keep=[]).kept_schema.names == []


def test_a_needed_column_that_no_row_has_is_refused_with_a_suggestion(plan):
    rows = [{"title": "t", "Body": "b"}] * 3
    with pytest.raises(DataError) as caught:
        plan({"rows.jsonl": rows}, needed=["title", "body"], used_by={"body": "prompt.template"})
    assert str(caught.value) == (
        "rows.jsonl: no column 'body', used by prompt.template; it has 'Body', 'title'; did you"
        " mean 'Body'?"
    )


def test_a_needed_column_that_some_row_has_is_enough(plan):
    rows = [{"a": "x" * 1000}] * 3000 + [{"rare": 1}]
    result = plan({"a.jsonl": rows, "b.parquet": pa.table({"c": [1]})}, needed=["rare"])
    assert result.warnings == ["b.parquet: no column 'rare': none of its rows can become a prompt"]


def test_a_kept_column_that_exists_nowhere_is_refused_with_a_suggestion(plan):
    with pytest.raises(DataError, match=r"output\.keep: no column 'titel'.*did you mean 'title'"):
        plan({"a.jsonl": [{"title": 1}]}, keep=["titel"])


def test_an_input_without_rows_lacks_nothing(plan):
    result = plan({"a.jsonl": b"", "b.jsonl": b"not json\n"}, needed=["p"], keep=["id"])
    assert result.kept_schema.names == ["id"]


def test_a_collision_with_an_added_column_names_the_way_out(plan):
    with pytest.raises(DataError, match=r"input column 'output'.*output\.prefix"):
        plan({"a.jsonl": [{"output": 1, "b": 2}]}, generated=["output", "row"])


class TestFixed:
    FIXED = pa.schema([("a", pa.int64()), ("s", pa.string())])

    def test_the_schema_of_the_first_run_is_kept(self, plan):
        result = plan({"a.jsonl": [{"a": 1}]}, fixed=self.FIXED)
        assert (result.kept_schema, result.warnings) == (self.FIXED, [])

    def test_extra_columns_are_dropped_with_one_warning(self, plan):
        result = plan({"a.jsonl": [{"a": 1, "x": 1, "y": 1}]}, fixed=self.FIXED)
        (warning,) = result.warnings
        assert "a.jsonl: the output has no column 'x', 'y'" in warning

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("b.parquet", pa.table({"a": ["text"]})),
            ("b.parquet", pa.table({"a": [1.5]})),
            ("b.jsonl", [{"a": "text"}, {"a": [1]}]),
            ("b.csv", ["a", "1"]),
        ],
    )
    def test_a_type_that_would_lose_values_is_refused(self, plan, name, content):
        with pytest.raises(DataError, match=r"column 'a' is .*, in the output it is int64"):
            plan({name: content}, fixed=self.FIXED)

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("b.parquet", pa.table({"a": pa.array([1], pa.int8())})),
            ("b.jsonl", [{"a": 1}, {"a": "odd one"}]),
            ("b.jsonl", [{"a": None}]),
        ],
    )
    def test_a_type_that_fits_passes(self, plan, name, content):
        assert plan({name: content}, fixed=self.FIXED).kept_schema == self.FIXED


def test_a_kept_column_may_be_missing_in_all_shards_of_today(plan):
    fixed = pa.schema([("id", pa.int64()), ("old", pa.string())])
    made = plan({"b.jsonl": [{"id": 1}]}, keep=["id", "old"], fixed=fixed)
    assert made.kept_schema == fixed
