"""How a comparison looks: texts that differ, each once, made harmless."""

import io

from batchgen.bench.comparison import Comparison
from batchgen.bench.differences import Difference, Differences
from batchgen.bench.ways import Way
from batchgen.cli.comparison import show_comparison
from batchgen.cli.output import Output

EMPTY = Comparison(
    job="job",
    created_at="2026-01-01T00:00:00+00:00",
    output_path="out",
    exit_code=0,
    stopped=None,
    num_repeats=3,
    ways=(),
    steps=(),
    step_context_tokens=None,
    step_law=None,
    facts=(),
    differences={},
    difference_reason=None,
    notes=(),
    engine=None,
    rates_source=None,
    rows=None,
    wall_s=0.0,
    trials={},
)


def shown(**changes):
    values = {name: getattr(EMPTY, name) for name in Comparison.__dataclass_fields__}
    output = Output(io.StringIO(), io.StringIO())
    show_comparison(Comparison(**{**values, **changes}), output)
    return output.data.getvalue()


def differing(*ways):
    example = Difference("s.jsonl", 3, 5, "one\ntwo", "one \x1b[2Jthree")
    return {way: Differences(8, 1, 5.0, (example,)) for way in ways}


def test_nothing_measured_is_shown_as_nothing():
    assert shown() == "job      job\nrepeats  3, in turn; medians are shown\n"


def test_an_example_stands_there_once_with_all_its_ways():
    ways = (Way("generate", 4), Way("continuous", 4))
    text = shown(differences=differing(*ways), difference_reason="Sums have an order.")
    assert text.count("s.jsonl:3, after 5 equal tokens") == 1
    assert "generate 4 and continuous 4: one" in text
    assert "Sums have an order." in text


def test_texts_are_made_harmless():
    text = shown(differences=differing(Way("generate", 4)), difference_reason="Sums.")
    assert "\x1b" not in text
    assert "sequential: one\\ntwo" in text


def test_equal_texts_need_no_words():
    assert "Texts" not in shown(differences=differing())
