"""`report.html`: one file that holds everything and asks nobody for anything.

Job names, shard names, errors and outputs are text of strangers. Jinja2 escapes every value that
stands in the template, invisible and reordering characters are written out first, and nothing of
it ever stands inside a script or a style. Should all of that fail, the page's own policy allows a
single script, by its hash, and no connection.
"""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from batchgen.monitor.printable import printable
from batchgen.output.disk import write_atomically
from batchgen.report import tables, units
from batchgen.report.charts import draw_charts
from batchgen.report.facts import STATES, summary_facts
from batchgen.report.records import Report

MAX_JOB_CHARS = 20_000


def write_html(report: Report, path: Path) -> None:
    """Write the page. Raises DataError where it cannot be written, ImportError without matplotlib.

    The file is replaced as a whole, so a reader sees the old report or the new one.
    """
    page = render_html(report).encode()
    write_atomically(path, lambda file: file.write(page), in_run=False)


def render_html(report: Report) -> str:
    """The page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("batchgen.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    shown = ("count", "counted", "figure", "share", "span", "size", "moment")
    environment.filters |= {name: getattr(units, name) for name in shown}
    script, style = (_part(environment, name) for name in ("sort.js", "report.css"))
    charts = {chart.name: chart for chart in draw_charts(report)}
    return environment.get_template("report.html").render(
        report=report,
        state=STATES.get(report.state, report.state),
        facts=summary_facts(report),
        charts=charts,
        svg={name: Markup(chart.svg) for name, chart in charts.items()},
        tables=tables,
        job=_job(report),
        script=Markup(script),
        script_hash=script_hash(script),
        style=Markup(style),
    )


def script_hash(script: str) -> str:
    """What the page's policy calls this script."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _part(environment: Any, name: str) -> str:
    """A file of ours that stands in the page as it is."""
    source: str = environment.loader.get_source(environment, name)[0]
    return source


def _shown(value: Any) -> Any:
    """What Jinja2 escapes next; text that is markup of ours already stays as it is."""
    if value is None:
        return units.UNKNOWN
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _job(report: Report) -> str:
    text = json.dumps(report.provenance.job, indent=2, ensure_ascii=False)
    left_out = len(text) - MAX_JOB_CHARS
    return text if left_out <= 0 else f"{text[:MAX_JOB_CHARS]}\n[... {left_out:,} characters more]"
