"""The plots of a report: over time, by length and latency, run by run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from batchgen.monitor.printable import printable
from batchgen.report.records import Curve, Distribution, Report, RunLine
from batchgen.report.svg import (
    FIRST,
    INK,
    SECOND,
    Chart,
    format_axes,
    new_figure,
    page_style,
    to_svg,
)
from batchgen.report.sweep_charts import sweep_charts
from batchgen.report.units import compact, day, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_RUN_LINES: Final = 40
BAND_CAPTION: Final = "The band is the lowest and the highest batch."
LATENCY_CAPTION: Final = "Of each batch: median below, 95th percentile above."


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity of a chart over time: a title, and its curves from the lowest to the highest."""

    title: str
    curves: tuple[Curve, ...]
    is_share: bool = False
    limit: float | None = None
    """A line that the quantity cannot pass."""


def draw_charts(report: Report) -> tuple[Chart, ...]:
    """Every picture for which there are numbers."""
    with page_style():
        return tuple(_charts(report))


def _charts(report: Report) -> Iterator[Chart]:
    for name, title, caption, panels in _timelines(report):
        yield timeline(name, title, caption, panels, report.run_starts_s)
    for distribution in report.distributions:
        yield histogram(distribution)
    timed = [line for line in report.runs if line.output_tokens_per_s]
    if len(timed) > 1:
        yield run_bars(timed)
    for sweep in report.sweeps:
        yield from sweep_charts(sweep)


def _timelines(report: Report) -> Iterator[tuple[str, str, str, list[Panel]]]:
    """Charts over time: name, title, caption, panels; those without a curve are left out."""

    def panel(title: str, *names: str, **options: Any) -> Iterator[Panel]:
        curves = tuple(curve for name in names if (curve := report.curve(name)) is not None)
        if curves:
            yield Panel(title, curves, **options)

    throughput = [
        *panel("output tokens/s", "output_tokens_per_s"),
        *panel("rows/s", "rows_per_s"),
    ]
    occupancy = [
        *panel("slots in use", "num_running", limit=report.summary.slots),
        *panel("KV cache in use, peak", "kv_cache_usage", is_share=True),
    ]
    latency = [
        *panel("seconds to the first token", "ttft_s_p50", "ttft_s_p95"),
        *panel("seconds to the last token", "latency_s_p50", "latency_s_p95"),
    ]
    cache = [*panel("prompt tokens from the cache", "cached_share", is_share=True)]
    is_thinned = any(curve.is_thinned for curve in report.curves)
    band = BAND_CAPTION if is_thinned else ""
    for name, title, caption, panels in (
        ("throughput", "Throughput over time", band, throughput),
        ("occupancy", "Slots and KV cache over time", band, occupancy),
        ("latency", "Latency over time", LATENCY_CAPTION, latency),
        ("prefix-cache", "Prefix cache over time", band, cache),
    ):
        if panels:
            yield name, title, caption, panels


def timeline(
    name: str, title: str, caption: str, panels: Sequence[Panel], run_starts_s: Sequence[float]
) -> Chart:
    """Panels above each other over the seconds of generation."""
    end_s = max(curve.edges_s[-1] for panel in panels for curve in panel.curves)
    divisor, unit = time_unit(end_s)
    figure, axes = new_figure(len(panels), x_label=f"{unit} of generation")
    for ax, panel in zip(axes, panels, strict=True):
        for curve, color in zip(panel.curves, (FIRST, SECOND), strict=False):
            _draw_curve(ax, curve, color, divisor)
        _finish_panel(ax, panel)
        if len(run_starts_s) <= _MOST_RUN_LINES:
            for start_s in run_starts_s:
                ax.axvline(start_s / divisor, color=INK, linewidth=0.8, linestyle=(0, (2, 3)))
    axes[-1].set_xlim(0, end_s / divisor or 1)
    return Chart(name, title, caption, to_svg(figure, name, title))


def _draw_curve(ax: "Axes", curve: Curve, color: str, divisor: float) -> None:
    import numpy as np

    edges = np.array(curve.edges_s) / divisor
    mean, low, high = (
        np.array(values, dtype=float) for values in (curve.mean, curve.min, curve.max)
    )
    if curve.is_thinned:
        middles = (edges[1:] + edges[:-1]) / 2
        ax.fill_between(middles, low, high, color=color, alpha=0.25, linewidth=0)
        ax.plot(middles, mean, color=color)
    else:
        ax.stairs(mean, edges, baseline=None, color=color, linewidth=1.4)


def _finish_panel(ax: "Axes", panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter

    ax.set_title(panel.title)
    if panel.limit:
        ax.axhline(panel.limit, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    top = 1.0 if panel.is_share else ax.get_ylim()[1]
    ax.set_ylim(0, max(top, panel.limit or 0.0) * 1.06 or 1.0)
    format_axes(ax)
    if panel.is_share:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0%}"))


def histogram(distribution: Distribution) -> Chart:
    """How often each length or latency occurred, with its median and 95th percentile."""
    from matplotlib.ticker import MaxNLocator

    names = {
        "num_prompt_tokens": ("Prompt lengths", "prompt tokens"),
        "num_output_tokens": ("Output lengths", "output tokens"),
        "ttft_s": ("Time to first token", "seconds to the first token"),
        "latency_s": ("Latency", "seconds to the last token"),
    }
    title, unit = names[distribution.name]
    figure, (ax,) = new_figure(1)
    ax.stairs(distribution.counts, distribution.edges, fill=True, color=FIRST, alpha=0.55)
    if distribution.is_log:
        ax.set_xscale("log")
    ax.set_xlim(distribution.edges[0], distribution.edges[-1])
    ax.set_ylim(0, max(distribution.counts) * 1.3)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    for line, label in enumerate(("p50", "p95")):
        value = getattr(distribution, label)
        ax.axvline(value, color=SECOND, linewidth=1.2)
        is_right = ax.transAxes.inverted().transform(ax.transData.transform((value, 0)))[0] > 0.8
        ax.annotate(
            f"{label} {compact(value)}",
            (value, 1),
            xytext=(-4 if is_right else 4, -1 - 13 * line),
            xycoords=("data", "axes fraction"),
            textcoords="offset pixels",
            va="top",
            ha="right" if is_right else "left",
            fontsize=10,
        )
    format_axes(ax)
    ax.set_title(f"rows by {unit}")
    name = distribution.name.replace("_", "-")
    return Chart(name, title, "", to_svg(figure, name, title))


def run_bars(lines: Sequence[RunLine]) -> Chart:
    """Output tokens per second of each run, the newest one in another color."""
    figure, (ax,) = new_figure(1)
    values = [line.output_tokens_per_s or 0.0 for line in lines]
    colors = [FIRST] * (len(lines) - 1) + [SECOND]
    ax.bar(range(len(lines)), values, color=colors, width=0.7)
    every = -(-len(lines) // 8)
    shown = range((len(lines) - 1) % every, len(lines), every)
    ax.set_xticks(shown, [printable(day(lines[index].started_at)) for index in shown])
    ax.set_title("output tokens/s")
    format_axes(ax, x=False)
    title = "Run by run"
    return Chart("runs", title, "The newest run is the last bar.", to_svg(figure, "runs", title))
