"""Plots: each is drawn where there are numbers, and survives what is missing."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from batchgen.report.charts import Panel, draw_charts, histogram, timeline
from batchgen.report.distributions import Tally
from batchgen.report.records import Curve, Sweep
from batchgen.report.svg import page_style

NO_SWEEP = {
    "created_at": None,
    "steps": (),
    "step_law": None,
    "recommended": None,
    "overrides": (),
    "remarks": (),
}


def curve(levels, is_thinned=False):
    edges = tuple(float(number) for number in range(len(levels) + 1))
    return Curve("rows_per_s", is_thinned, edges, levels, levels, levels)


@pytest.mark.parametrize("is_thinned", [False, True])
@pytest.mark.parametrize(
    "levels", [(1.0,), (0.0, 0.0), (1.0, None, 2.0), (None, 3.0), (1e-9, 1e12)]
)
def test_curves_with_gaps_and_extremes_are_drawn(levels, is_thinned):
    panel = Panel("rows/s", (curve(levels, is_thinned),), limit=64)
    with page_style():
        chart = timeline("t", "T", "", [panel], (0.5,))
    assert ET.fromstring(chart.svg).tag.endswith("svg")


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [1e-6, 1e5], [3], list(range(1000))])
@pytest.mark.parametrize("is_count", [False, True])
def test_every_distribution_is_drawn(values, is_count):
    import numpy as np

    tally = Tally()
    tally.add(np.array(values))
    with page_style():
        chart = histogram(tally.distribution("latency_s", is_count=is_count))
    assert ET.fromstring(chart.svg).tag.endswith("svg")


def test_text_of_a_result_is_neither_markup_nor_mathematics(two_nights_report):
    ways = ({"name": "$x^2$<b>&\x1b", "rows_per_s": 1.0}, {"name": "日本語 🎉", "rows_per_s": 2.0})
    sweep = Sweep(kind="compare", points=ways, **NO_SWEEP)
    charts = draw_charts(replace(two_nights_report, sweeps=(sweep,)))
    svg = next(chart.svg for chart in charts if chart.name == "compare")
    text = "".join(ET.fromstring(svg).itertext())
    assert "$x^2$<b>&\\x1b" in text
    assert "日本語 🎉" in text


def test_results_without_usable_numbers_make_no_plot(two_nights_report):
    points = ({"name": "x", "rows_per_s": "fast", "num_running": True},)
    sweeps = (
        Sweep(kind="compare", points=points, **NO_SWEEP),
        Sweep(kind="tune", points=points, **NO_SWEEP),
    )
    names = {chart.name for chart in draw_charts(replace(two_nights_report, sweeps=sweeps))}
    assert not names & {"compare", "tune", "compare-steps"}


def test_a_sweep_is_drawn_with_what_it_recommends(two_nights_report):
    points = tuple(
        {"num_running": n, "output_tokens_per_s": 10.0 * n, "latency_s_p95": None} for n in (1, 8)
    )
    sweep = Sweep(kind="tune", points=points, **{**NO_SWEEP, "recommended": {"num_running": 8}})
    chart = draw_charts(replace(two_nights_report, sweeps=(sweep,)))[-1]
    assert chart.name == "tune"
    assert "8 rows in flight" in chart.caption


def test_the_user_s_own_settings_of_matplotlib_do_not_count(two_nights_report):
    import matplotlib

    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "red"}):
        charts = draw_charts(two_nights_report)
        assert matplotlib.rcParams["text.usetex"]
    assert "ff0000" not in charts[0].svg


def test_the_same_report_gives_the_same_plots(two_nights_report):
    assert draw_charts(two_nights_report) == draw_charts(two_nights_report)
