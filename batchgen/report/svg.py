"""Figures of matplotlib as pieces of SVG that take the page's colors and fonts.

A figure is drawn in marker colors, which become CSS variables afterwards, so one picture is right
on light and on dark paper. Text stays text and takes the page's font. Nothing is drawn with pyplot,
whose figures outlive the call; no text is taken for mathematics, and no setting of the user's own
matplotlib counts.
"""

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from batchgen.report.units import compact

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH: Final = 460
PANEL_HEIGHT: Final = 140
INK, FAINT, FIRST, SECOND = "#010101", "#010102", "#010103", "#010104"
_VARIABLES: Final = {
    INK: "var(--ink)",
    FAINT: "var(--line)",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
}
_STYLE: Final = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.formatter.useoffset": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.4,
}


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture: `svg` is safe to stand in a page as it is."""

    name: str
    title: str
    caption: str
    svg: str


@contextmanager
def page_style() -> Iterator[None]:
    """Within this, figures look as the page does; matplotlib's own notices go nowhere."""
    import matplotlib

    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with matplotlib.rc_context(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_STYLE)  # type: ignore[arg-type]
            yield
    finally:
        logger.setLevel(level)


def new_figure(
    num_panels: int, *, x_label: str = "", height: int | None = None, left: float = 0.115
) -> "tuple[Figure, list[Axes]]":
    """A figure in pixels, and its panels from the top."""
    from matplotlib.figure import Figure

    bottom = 38 if x_label else 24
    height = height or 22 + bottom + PANEL_HEIGHT * num_panels
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    axes = figure.subplots(num_panels, 1, sharex=True, squeeze=False)[:, 0]
    figure.subplots_adjust(
        left=left, right=0.98, top=1 - 22 / height, bottom=bottom / height, hspace=0.28
    )
    axes[-1].set_xlabel(x_label)
    return figure, list(axes)


def format_axes(ax: "Axes", *, x: bool = True) -> None:
    """Short numbers at the ticks; `x`: also below."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: compact(y)))
    if x:
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
        ax.xaxis.set_minor_formatter(NullFormatter())


_PREFIXED: Final = re.compile(r'(\bid="|url\(#|href="#)')
_FONT: Final = re.compile(r" font-family: [^;\"]*;")
_GROUP: Final = re.compile(r'<g id="[^"]*">')
_LONG_NUMBER: Final = re.compile(r"(-?\d+\.\d)\d+")
_PATH: Final = re.compile(r' (?:d|points)="[^"]*"')
_COLOR: Final = re.compile("#01010[1-4]")
_SIZE: Final = re.compile(r' (?:width|height)="[\d.]+pt"')


def to_svg(figure: "Figure", name: str, title: str) -> str:
    """The figure as an element of a page: colors and fonts are the page's, ids are its own."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context({"svg.hashsalt": name}):
        FigureCanvasSVG(figure).print_svg(buffer, metadata=nothing)  # type: ignore[no-untyped-call]
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = _PREFIXED.sub(rf"\1{name}-", text)
    text = _FONT.sub("", text)
    text = _GROUP.sub("<g>", text)
    text = _PATH.sub(lambda path: _LONG_NUMBER.sub(r"\1", path[0]).replace("\n", ""), text)
    text = _COLOR.sub(lambda color: _VARIABLES[color[0]], text)
    head, _, rest = text.partition(">")
    return f'{_SIZE.sub("", head)} role="img" aria-label="{title}">{rest}'
