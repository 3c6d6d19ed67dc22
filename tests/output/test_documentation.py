import re
from pathlib import Path

import pyarrow as pa
import pytest

from batchgen.output.columns import output_schema
from batchgen.records import ERROR_TYPES, STOP_RULES
from batchgen.stats.batch import CLOSED_BY, batch_schema

PAGE = Path(__file__).parents[2].joinpath("docs", "outputs.md").read_text()
ALL_COLUMNS = output_schema(
    pa.schema([]),
    with_prompt=True,
    with_reasoning=True,
    with_logprobs=True,
    with_json=True,
    with_stopped_by=True,
)


def rows_of(heading: str) -> dict[str, str]:
    """Table rows of a section by the names in their first cell."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    return {name: cells[2].strip() for cells in lines for name in re.findall(r"`(\w+)`", cells[1])}


@pytest.mark.parametrize(
    ("heading", "schema"),
    [("Columns of `outputs/`", ALL_COLUMNS), ("Columns of `batches/`", batch_schema())],
)
def test_every_column_is_described_with_its_type(heading: str, schema: pa.Schema) -> None:
    described = rows_of(heading)
    for field in schema:
        assert str(field.type).startswith(described[field.name])


def test_no_other_column_is_described() -> None:
    assert set(rows_of("Columns of `outputs/`")) == {*ALL_COLUMNS.names, *ERROR_TYPES}
    assert set(rows_of("Columns of `batches/`")) == set(batch_schema().names)


@pytest.mark.parametrize("word", [*ERROR_TYPES, *CLOSED_BY, *STOP_RULES])
def test_every_word_of_a_column_is_described(word: str) -> None:
    assert f"`{word}`" in PAGE
