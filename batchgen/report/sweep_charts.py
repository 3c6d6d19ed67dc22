"""Plots of what `batchgen compare` and `batchgen tune` have measured."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchgen.monitor.printable import printable
from batchgen.report.records import Sweep
from batchgen.report.svg import FIRST, SECOND, Chart, format_axes, new_figure, to_svg
from batchgen.report.sweeps import number
from batchgen.report.units import compact


def sweep_charts(sweep: Sweep) -> Iterator[Chart]:
    """Every picture for which the result has numbers."""
    if sweep.kind == "compare":
        yield from _compare_bars(sweep)
    else:
        yield from _tune_curve(sweep)
    yield from _step_curve(sweep)


def _compare_bars(sweep: Sweep) -> Iterator[Chart]:
    known = [(point, rate) for point in sweep.points if (rate := number(point, "rows_per_s"))]
    if not known:
        return
    figure, (ax,) = new_figure(1, height=40 + 26 * len(known), left=0.36)
    rates = [rate for _, rate in known]
    ax.barh(range(len(known)), rates, color=FIRST, height=0.65)
    for place, (point, rate) in enumerate(known):
        speedup = number(point, "speedup")
        gain = "" if speedup is None else f" ({speedup:.2f}x)"
        ax.annotate(
            f"{compact(rate)}{gain}",
            (rate, place),
            xytext=(5, 0),
            textcoords="offset pixels",
            va="center",
            fontsize=10,
        )
    ax.set_yticks(range(len(known)), [_way(point) for point, _ in known])
    ax.invert_yaxis()
    ax.set_xlim(0, max(rates) * 1.3)
    ax.grid(False)
    ax.xaxis.set_visible(False)
    ax.set_title("rows/s")
    title = "Ways to batch, compared"
    yield Chart("compare", title, "", to_svg(figure, "compare", title))


def _way(point: Mapping[str, Any]) -> str:
    name, size = printable(str(point.get("name", ""))[:24]), number(point, "batch_size")
    return name if size is None or name == "sequential" else f"{name}, {size:,.0f}"


def _step_curve(sweep: Sweep) -> Iterator[Chart]:
    """What a decode step took, and the line a + b·n through it."""
    known = sorted(_pairs(sweep.steps, "num_running", "step_s"))
    if len(known) < 2:
        return
    figure, (ax,) = new_figure(1, x_label="sequences in the step")
    ax.plot([n for n, _ in known], [1e3 * s for _, s in known], "o", color=FIRST, markersize=4)
    caption, law = "", sweep.step_law
    if law is not None:
        ends = (0.0, known[-1][0])
        line = [1e3 * (law["a_s"] + law["b_s"] * n) for n in ends]
        ax.plot(ends, line, color=SECOND)
        a, b = (compact(1e3 * law[name]) for name in ("a_s", "b_s"))
        caption = f"The line: a step with n sequences takes {a} ms + n · {b} ms."
    ax.set_ylim(bottom=0)
    ax.set_xlim(left=0)
    ax.set_title("milliseconds of a decode step")
    format_axes(ax)
    name, title = f"{sweep.kind}-steps", "What a step takes"
    yield Chart(name, title, caption, to_svg(figure, name, title))


def _pairs(points: Sequence[Mapping[str, Any]], x: str, y: str) -> list[tuple[float, float]]:
    """Where both numbers are known."""
    known = [(number(point, x), number(point, y)) for point in points]
    return [(a, b) for a, b in known if a is not None and b is not None]


def _tune_curve(sweep: Sweep) -> Iterator[Chart]:
    panels = [
        (title, sorted(pairs))
        for name, title in (
            ("output_tokens_per_s", "output tokens/s"),
            ("latency_s_p95", "seconds to the last token, p95"),
        )
        if (pairs := _pairs(sweep.points, "num_running", name))
    ]
    if not panels:
        return
    figure, axes = new_figure(len(panels), x_label="rows in flight")
    chosen = number(sweep.recommended or {}, "num_running")
    for ax, (title, pairs) in zip(axes, panels, strict=True):
        ax.plot([x for x, _ in pairs], [y for _, y in pairs], color=FIRST, marker="o", markersize=4)
        ax.set_title(title)
        ax.set_ylim(0, max(y for _, y in pairs) * 1.1 or 1.0)
        if chosen is not None:
            ax.axvline(chosen, color=SECOND, linewidth=1.2)
        format_axes(ax)
    title = "Throughput and latency by concurrency"
    caption = (
        ""
        if chosen is None
        else f"The upright line: {compact(chosen)} rows in flight, as recommended."
    )
    yield Chart("tune", title, caption, to_svg(figure, "tune", title))
