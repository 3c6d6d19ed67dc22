"""A comparison for people: the table of ways, the steps, the facts, the texts that differ."""

from collections.abc import Iterator
from typing import Final

from batchgen.bench.comparison import Comparison, WayResult
from batchgen.bench.differences import Difference
from batchgen.bench.step_law import relative_errors
from batchgen.bench.ways import Way
from batchgen.cli.output import Output

SPEED_HEADS: Final = (
    "way",
    "wall",
    "spread",
    "rows/s",
    "prompt tokens/s",
    "output tokens/s",
    "speed-up",
    "roofline",
    "differ",
)
TIME_HEADS: Final = (
    "way",
    "first token, p50",
    "p95",
    "further tokens, p50",
    "p95",
    "latency, p50",
    "p95",
)


def show_comparison(comparison: Comparison, output: Output) -> None:
    """Everything that was found, as text on stdout."""
    output.fields(_overview(comparison))
    if comparison.ways:
        output.text()
        output.table(SPEED_HEADS, (tuple(_speed(way, comparison)) for way in comparison.ways))
        output.text()
        output.table(TIME_HEADS, (tuple(_times(way)) for way in comparison.ways))
    calls = list(_calls(comparison))
    if calls:
        output.text()
        output.table(("rows", "in one call", "one by one", "speed-up", "in the repeats"), calls)
    if comparison.steps:
        output.text()
        heads = ("sequences", "decode step", "a + b·n", "off", "tokens/s")
        output.table(heads, _steps(comparison))
    _show_sentences("Why the gain is what it is", comparison, output)
    _show_differences(comparison, output)


def _overview(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "job", comparison.job
    rows, engine = comparison.rows, comparison.engine
    if engine is not None:
        yield "engine", f"{engine['name']} {engine['version']}, {engine['max_num_seqs']:,} slots"
    if rows is not None:
        prompts = _range(rows.prompt_tokens_min, rows.prompt_tokens_max)
        outputs = _range(rows.output_tokens_min, rows.output_tokens_max)
        kept = "the same in every way" if rows.is_pinned else "not pinned"
        yield (
            "rows",
            f"{rows.num_rows:,}, prompts of {prompts} tokens, outputs of {outputs} ({kept})",
        )
    yield "repeats", f"{comparison.num_repeats}, in turn; medians are shown"


def _speed(result: WayResult, comparison: Comparison) -> Iterator[str]:
    rows = comparison.rows
    is_cut = rows is not None and result.num_rows < rows.num_rows
    yield result.way.label + (f" ({result.num_rows} rows)" if is_cut else "")
    yield f"{result.wall_s:,.2f} s"
    yield _percent(result.wall_s_spread)
    yield f"{result.rows_per_s:,.2f}"
    yield f"{result.prompt_tokens_per_s:,.0f}"
    yield f"{result.output_tokens_per_s:,.1f}"
    yield "" if result.speedup is None else f"{result.speedup:.2f}"
    yield _percent(result.roofline_fraction)
    if result.num_different is None:
        yield ""
    else:
        yield f"{result.num_different} of {result.num_compared}"


def _times(result: WayResult) -> Iterator[str]:
    yield result.way.label
    for seconds in (
        result.ttft_s_p50,
        result.ttft_s_p95,
        result.tpot_s_p50,
        result.tpot_s_p95,
        result.latency_s_p50,
        result.latency_s_p95,
    ):
        yield "" if seconds is None else _duration(seconds)


def _calls(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """n rows in one call against the same number one by one."""
    results = {result.way: result for result in comparison.ways}
    alone = results.get(Way("sequential", 1))
    for result in comparison.ways:
        if alone is None or result.name != "generate" or result.speedup is None:
            continue
        in_call_s = result.batch_size / result.rows_per_s
        yield (
            f"{result.batch_size}",
            f"{in_call_s:,.2f} s",
            f"{in_call_s * result.speedup:,.2f} s",
            f"{result.speedup:.2f}",
            f"{result.speedup_min:.2f} to {result.speedup_max:.2f}",
        )


def _steps(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    law, points = comparison.step_law, comparison.steps
    errors = [None] * len(points) if law is None else relative_errors(law, points)
    for point, error in zip(points, errors, strict=True):
        yield (
            f"{point.num_running}",
            f"{1000 * point.step_s:,.2f} ms",
            "" if law is None else f"{1000 * law.step_s(point.num_running):,.2f} ms",
            "" if error is None else f"{error:+.1%}",
            f"{point.num_running / point.step_s:,.1f}",
        )


def _show_sentences(title: str, comparison: Comparison, output: Output) -> None:
    if comparison.facts:
        output.text(f"\n{title}")
    for fact in comparison.facts:
        output.text(f"  {fact.kind}: {fact.text}")
    if comparison.notes:
        output.text("\nNotes")
    for note in comparison.notes:
        output.text(f"  {note}")


def _show_differences(comparison: Comparison, output: Output) -> None:
    if comparison.difference_reason is None:
        return
    output.text("\nTexts")
    output.text(f"  {comparison.difference_reason}")
    for example, labels in _examples(comparison).items():
        place = f"{example.shard}:{example.row}"
        output.text(f"  {place}, after {example.num_equal_tokens} equal tokens:")
        output.text(f"    sequential: {_one_line(example.reference)}")
        output.text(f"    {' and '.join(labels)}: {_one_line(example.text)}")


def _examples(comparison: Comparison) -> dict[Difference, list[str]]:
    """The first example of each way, with all the ways that it is one of."""
    ways: dict[Difference, list[str]] = {}
    for way, found in comparison.differences.items():
        for example in found.examples[:1]:
            ways.setdefault(example, []).append(way.label)
    return ways


def _range(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n")
