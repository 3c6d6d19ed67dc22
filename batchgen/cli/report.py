"""`batchgen report`: what a run did, as a page, in the terminal, as JSON."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from batchgen.cli.options import AsJson, RunPath, finite_price, output_of
from batchgen.cli.output import Output
from batchgen.errors import BatchgenError, DataError, UsageError

if TYPE_CHECKING:
    from batchgen.output.layout import RunLayout
    from batchgen.report.records import Report
    from batchgen.report.terminal import Section

EPILOG: Final = """\b
Examples:
  batchgen report runs/summarize-docs
  batchgen report runs/summarize-docs --price 2.50
  batchgen report runs/summarize-docs --no-html --json
  batchgen report runs/summarize-docs --html /tmp/last-night.html
"""

PAGE_ENDINGS: Final = (".html", ".htm")
INSTALL: Final = "pip install 'batchgen[report]'"


def report(
    ctx: typer.Context,
    path: RunPath,
    price: Annotated[
        float | None,
        typer.Option(
            "--price",
            min=0.0,
            callback=finite_price,
            metavar="P",
            help="Price of an hour of what one engine runs on: adds what the output cost.",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="PATH",
            help="Write the page here instead of report.html in DIR.",
            show_default=False,
        ),
    ] = None,
    no_html: Annotated[bool, typer.Option("--no-html", help="Write no page.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report on a run, whatever state it is in.

    Throughput, latencies, failures, diagnosis, comparison with the run before: as report.html,
    which opens offline, and on stdout. With --json no page is written unless --html names one.
    """
    output = output_of(ctx)
    output.set_mode(as_json=as_json)
    if html is not None and no_html:
        raise UsageError("--html names a page and --no-html wants none; leave one of them out")
    if html is not None and not has_plots():
        raise UsageError(f"--html needs matplotlib for its plots; install it: {INSTALL}")
    if html is not None:
        check_page(html, path)
    from batchgen.report.build import build_report

    built = build_report(path, price_per_hour=price)
    if as_json:
        output.json(built.to_dict())
    else:
        show_report(built, output)
    if html is not None:
        write_page(built, html, output)
    elif not as_json and not no_html:
        write_own_page(built, output)


def check_page(page: Path, path: Path) -> None:
    """Refuse a place for the page that is none, or where it would harm the run in `path`."""
    from batchgen.output.layout import RunLayout

    if page.suffix.lower() not in PAGE_ENDINGS:
        endings = " or ".join(PAGE_ENDINGS)
        raise UsageError(f"--html: must name a file that ends in {endings}, is '{page}'")
    if not page.parent.is_dir():
        raise UsageError(f"--html: '{page.parent}' is no folder; create it first")
    if page.is_dir():
        raise DataError(f"{page}: is a folder; --html names a file")
    layout = RunLayout(path)
    for folder in (layout.outputs, layout.batches, layout.hidden):
        if page.resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"--html: '{folder}' is for the run alone; write the page elsewhere")


def has_plots() -> bool:
    """Whether the library that draws the plots is installed."""
    return find_spec("matplotlib") is not None


def show_report(built: "Report", output: Output) -> None:
    """The report for people, on stdout."""
    from batchgen.report.terminal import sections

    encoding = getattr(output.data, "encoding", None) or ""
    for section in sections(built, is_unicode=encoding.lower().startswith("utf")):
        _show_section(section, output)


def _show_section(section: "Section", output: Output) -> None:
    if section.title:
        output.text(f"\n{section.title}")
    if section.pairs:
        output.fields(section.pairs)
    for line in section.lines:
        output.text(f"  {line}")
    if section.table is not None and section.table.rows:
        heads = [column.head for column in section.table.columns]
        output.table(heads, ([cell.text for cell in row] for row in section.table.rows))


def write_page(built: "Report", page: Path, output: Output) -> None:
    """Write the page, and say where it is."""
    from batchgen.report.html import write_html

    write_html(built, page)
    output.line(f"the page is {page}")


def write_own_page(built: "Report", output: Output) -> None:
    """Write report.html into the run's directory, as far as that is possible.

    Nobody has asked for the file by name, so whatever is in its way is a note.
    """
    from batchgen.output.layout import RunLayout

    if not has_plots():
        output.line(f"note: no report.html without matplotlib; install it: {INSTALL}")
        return
    try:
        write_page(built, RunLayout(Path(built.path)).report, output)
    except DataError as exc:
        output.warn(str(exc))


def write_after_run(path: Path, output: Output, *, nothing_new: bool) -> None:
    """Write report.html at the end of a run, where matplotlib is installed.

    A run that found nothing new keeps the report that is there, unless there are newer batches
    (a killed run's). Whatever goes wrong is a warning: rows are worth more than their report.
    """
    from batchgen.output.layout import RunLayout

    layout = RunLayout(path)
    if not has_plots() or (nothing_new and is_fresh(layout)):
        return
    try:
        from batchgen.report.build import build_report
        from batchgen.report.html import write_html

        write_html(build_report(path), layout.report)
    except BatchgenError as exc:
        output.warn(str(exc))
    except Exception as exc:  # noqa: BLE001  (a fault of the report is not the run's)
        output.warn(f"{layout.report}: was not written: {type(exc).__name__}: {exc}")


def is_fresh(layout: "RunLayout") -> bool:
    """Whether report.html is there, and no batches are newer."""
    from batchgen.output.batches import batch_files

    if not layout.report.exists():
        return False
    newest = max((path.stat().st_mtime for path in batch_files(layout)), default=0.0)
    return layout.report.stat().st_mtime >= newest
