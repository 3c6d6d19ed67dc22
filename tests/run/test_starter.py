"""A starter job is valid as it stands, and its guesses fit the data."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.config.loading import load_job
from batchgen.errors import DataError
from batchgen.run.starter import job_name, starter_job

LONG = "A long document about something. " * 20


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def starter(tmp_path):
    """The loaded job that `starter_job` writes for these rows."""

    def start(rows, name="docs.jsonl"):
        return load_text(starter_job([write_jsonl(tmp_path / name, rows)]), tmp_path)

    return start


def load_text(text, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return load_job(path)


def template(job):
    return " ".join(message.content for message in job.prompt.messages)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"id": "a", "text": "short", "url": LONG}, "text"),
        ({"id": "a", "Body": LONG, "title": "t"}, "Body"),
        ({"id": "a", "story": LONG, "title": "t"}, "story"),
        ({"only": "x"}, "only"),
        ({"n": 5, "ok": True, "words": "some words"}, "words"),
    ],
)
def test_the_text_column_is_guessed(starter, row, column):
    assert f"{{{{ {column} }}}}" in template(starter([row] * 3))


def test_instructions_come_before_the_document(starter):
    job = starter([{"text": LONG}])
    assert template(job).index("Summarize") < template(job).index("{{")


def test_short_columns_are_carried_along(starter):
    job = starter([{"id": "a", "n": 1, "text": LONG, "html": LONG}])
    assert job.output.keep == ["id", "n"]


def test_conversations_are_taken_as_they_are(starter):
    job = starter([{"id": "a", "chat": [{"role": "user", "content": "Hello"}], "text": LONG}])
    assert job.prompt.column == "chat"


@pytest.mark.parametrize("column", ["my text", "class", "text-en", "été", "1st"])
def test_any_column_name_makes_a_valid_job(starter, column):
    job = starter([{column: LONG, "no": 1, "a: b": 2, "#": 3}])
    assert job.prompt.column == column or f"{{{{ {column} }}}}" in template(job)
    assert job.output.keep == ["no", "a: b", "#"]


def test_hostile_column_names_stay_in_their_place(starter, tmp_path):
    columns = {"a\nprompt: {}": 1, "b\x1b[2J\u202e\x9b": 2, "\U0001f600": 3, "text": LONG}
    job = starter([columns])
    assert job.output.keep == list(columns)[:3]
    text = (tmp_path / "job.yaml").read_text()
    assert not set(text) & set("\x1b\u202e\x9b")


def test_a_collision_with_added_columns_gets_a_prefix(starter):
    assert starter([{"text": LONG, "output": "old"}]).output.prefix == "gen_"


def test_nulls_do_not_hide_a_text_column(starter):
    assert "{{ text }}" in template(starter([{"text": None}, {"text": LONG}]))


def test_parquet_columns_are_read(tmp_path):
    path = tmp_path / "docs.parquet"
    pq.write_table(pa.table({"id": [1], "document": [LONG]}), path)
    job = load_text(starter_job([str(path)]), tmp_path)
    assert "{{ document }}" in template(job)
    assert job.output.keep == ["id"]


def test_csv_columns_are_read(tmp_path):
    path = tmp_path / "docs.csv"
    path.write_text(f"id,body\n1,{LONG}\n")
    assert "{{ body }}" in template(load_text(starter_job([str(path)]), tmp_path))


@pytest.mark.parametrize("chat", [[], [{"role": "assistant", "tool_calls": "x"}]])
def test_conversations_may_be_empty_or_lack_contents(starter, chat):
    turns = [{"role": "user", "content": "Hello"}]
    job = starter([{"id": 1, "messages": turns}, {"id": 2, "messages": chat}])
    assert job.prompt.column == "messages"


def test_whole_numbers_will_do_where_there_is_no_text(starter):
    assert "{{ n }}" in template(starter([{"n": 1, "share": 0.5}, {"n": 2, "share": 0.5}]))


@pytest.mark.parametrize("rows", [[{"n": 1.5}], [{"n": None}], [{"my n": 1}, {"my n": 2}]])
def test_data_without_text_is_refused_with_its_columns(starter, rows):
    with pytest.raises(DataError, match=r"docs\.jsonl: no column holds text.*n'"):
        starter(rows)


def test_an_empty_file_is_refused(starter):
    with pytest.raises(DataError, match=r"docs\.jsonl"):
        starter([])


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="nothing"):
        starter_job([str(tmp_path / "nothing.jsonl")])


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("data/My docs.parquet", "my-docs"),
        ("data/samples/*.jsonl", "samples"),
        ("docs.jsonl.gz", "docs"),
        ("*.parquet", "job"),
        ("data/", "data"),
        ("数据.jsonl", "job"),
    ],
)
def test_job_names(path, name):
    assert job_name(path) == name
