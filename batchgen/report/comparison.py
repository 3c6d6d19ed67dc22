"""The newest run beside the one before it: a night that got slower shows, and what changed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchgen.report.records import Change, Comparison, Measure, RunLine
from batchgen.report.runs import rate
from batchgen.report.units import change, figure

CLEARLY: Final = 0.1
"""A difference below a tenth is nothing that two nights would not have by chance."""
FEW_ROWS: Final = 100


def compare_runs(lines: Sequence[RunLine]) -> Comparison | None:
    """The newest run that made rows beside the one before it; None where there are no two."""
    timed = [line for line in lines if line.rows_per_s is not None]
    if len(timed) < 2:
        return None
    before, after = timed[-2:]
    measures = tuple(_measures(before, after))
    by_name = {measure.name: measure for measure in measures}
    ratio = by_name["output_tokens_per_s"].ratio
    if ratio is None:
        ratio = by_name["rows_per_s"].ratio
    verdict = "equal"
    if ratio is not None and abs(ratio - 1) >= CLEARLY:
        verdict = "slower" if ratio < 1 else "faster"
    changes = tuple(_changes(before.settings, after.settings))
    return Comparison(
        run_id=after.run_id,
        before_run_id=before.run_id,
        verdict=verdict,
        summary=_sentence(before, after, ratio, verdict, changes),
        measures=measures,
        changes=changes,
    )


def _measures(before: RunLine, after: RunLine) -> Iterator[Measure]:
    yield _measure("rows_per_s", before.rows_per_s, after.rows_per_s)
    yield _measure("output_tokens_per_s", before.output_tokens_per_s, after.output_tokens_per_s)
    yield _measure("total_tokens_per_s", before.total_tokens_per_s, after.total_tokens_per_s)
    yield _measure("num_rows", before.num_rows, after.num_rows)
    for name in ("num_prompt_tokens", "num_output_tokens"):
        values = (rate(getattr(line, name), line.num_rows) for line in (before, after))
        yield _measure(f"{name}_per_row", *values)
    shares = (rate(line.num_cached_tokens, line.num_prompt_tokens) for line in (before, after))
    yield _measure("cached_share", *shares)
    yield _measure("num_running_mean", before.num_running_mean, after.num_running_mean)
    yield _measure("kv_cache_usage_max", before.kv_cache_usage_max, after.kv_cache_usage_max)
    yield _measure("roofline_fraction", before.roofline_fraction, after.roofline_fraction)


def _measure(name: str, before: float | None, after: float | None) -> Measure:
    return Measure(name, before, after, None if after is None else rate(after, before))


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """Settings that differ; a run that was killed does not know its engine's."""
    said_twice = {key for key in after if _same_in_model(key, before, after)}
    sections = _sections(before) & _sections(after)
    for key in sorted({*before, *after} - said_twice):
        if key.partition(".")[0] in sections and before.get(key) != after.get(key):
            yield Change(key, before.get(key), after.get(key))


def _sections(settings: Mapping[str, Any]) -> set[str]:
    return {key.partition(".")[0] for key in settings}


def _same_in_model(key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the engine merely repeats what the job says under another key."""
    section, _, name = key.partition(".")
    keys = (f"model.{name}", f"model.extra.{name}")
    return section == "engine" and any(
        (before.get(key), after.get(key)) == (before.get(other), after.get(other))
        for other in keys
        if other in after
    )


def _sentence(
    before: RunLine,
    after: RunLine,
    ratio: float | None,
    verdict: str,
    changes: Sequence[Change],
) -> str:
    if ratio is None:
        return "The two runs made nothing that could be compared."
    unit = "output tokens/s" if before.output_tokens_per_s else "rows/s"
    rates = (line.output_tokens_per_s or line.rows_per_s for line in (before, after))
    how = {"slower": "slower", "faster": "faster"}.get(verdict, "about as fast")
    rate_before, rate_after = (figure(value) for value in rates)
    text = (
        f"The newest run was {how}: {rate_after} {unit}, {rate_before} in the run before it"
        f" ({change(ratio)})."
    )
    if changes:
        named = ", ".join(item.key for item in changes[:3])
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        text += f" Changed since: {named}{more}."
    elif {"sampling", "model"} <= _sections(before.settings) & _sections(after.settings):
        text += " No setting changed."
    if min(before.num_rows or 0, after.num_rows or 0) < FEW_ROWS:
        text += f" One of them had fewer than {FEW_ROWS} rows, which says little."
    return text
