"""Text of strangers, fit to be shown."""

import pytest

from batchgen.monitor.printable import counted, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u061c", "\\u061c"),
        ("\u202edoc", "\\u202edoc"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("\ud800", "\\ud800"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("e\u0301 👩\u200d🔬", "e\u0301 👩\u200d🔬"),
    ],
)
def test_what_hides_or_reorders_is_written_out(text, shown):
    assert printable(text) == shown


def test_one_thing_is_no_plural():
    assert [counted(number, "row") for number in (0, 1, 1200)] == ["0 rows", "1 row", "1,200 rows"]
