"""The report in a terminal: the facts of the page, in text."""

import pytest

from batchgen.report.records import Curve
from batchgen.report.terminal import MAX_ROWS, sections, sparkline


def text_of(report, **options):
    lines = []
    for section in sections(report, **options):
        lines.append(section.title)
        lines += [f"{name}  {value}" for name, value in section.pairs]
        lines += section.lines
        table = section.table
        if table is not None:
            lines.append("  ".join(column.head for column in table.columns))
            lines += ["  ".join(cell.text for cell in row) for row in table.rows]
    return "\n".join(lines)


def test_it_holds_what_the_page_holds(two_nights_report):
    text = text_of(two_nights_report)
    for piece in (
        "job  nightly",
        "rows  230  (222 ok)",
        "failed  8  (3.5 %: engine_error and 2 more types)",
        "The newest run was slower",
        "model.max_num_seqs  8  2",
        "failed, engine_error: 5 (2.2 %)",
        "a.jsonl:10: ",
        "finish reasons",
        "slowest batches",
        "cost per million output tokens",
    ):
        assert piece in text


def test_without_unicode_curves_are_ascii(two_nights_report):
    assert text_of(two_nights_report, is_unicode=False).isascii()


@pytest.mark.parametrize(
    ("levels", "marks"),
    [
        ((1.0, 4.0, 8.0), "▂▅█"),
        ((0.0, 0.0), "▁▁"),
        ((None, 8.0, None), " █ "),
    ],
)
def test_a_sparkline_rises_from_zero(levels, marks):
    edges = tuple(float(number) for number in range(len(levels) + 1))
    line = sparkline(Curve("rows_per_s", False, edges, levels, levels, levels))
    assert line.startswith(f"{marks}  ")


def test_a_sparkline_of_many_stretches_is_short():
    levels = tuple(float(number) for number in range(1, 401))
    edges = tuple(float(number) for number in range(401))
    line = sparkline(Curve("rows_per_s", False, edges, levels, levels, levels))
    marks, _, numbers = line.partition("  ")
    assert len(marks) == 48
    assert numbers == "1.00 to 400"


def test_tables_are_short(two_nights_report):
    tables = {section.title: section.table for section in sections(two_nights_report)}
    assert len(tables["slowest batches"].rows) == MAX_ROWS < len(two_nights_report.batches)
