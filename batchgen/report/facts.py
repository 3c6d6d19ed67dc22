"""The summary of a report in words: a few facts, each a name, a value and what it means."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from batchgen.report.records import Report, Summary
from batchgen.report.units import compact, count, counted, figure, share, span

STATES: Final = {
    "running": "running",
    "done": "done: every input row has its output row",
    "stopped": "stopped with rows left; run the same job again to go on",
    "killed": "killed, or the machine went down; run the same job again to go on",
    "not run": "not run yet",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One number of the summary. `is_bad`: it asks to be looked at."""

    name: str
    value: str
    detail: str = ""
    is_bad: bool = False


def summary_facts(report: Report) -> tuple[Fact, ...]:
    """What is known, the most important first."""
    return tuple(_facts(report))


def _facts(report: Report) -> Iterator[Fact]:
    summary = report.summary
    yield _rows(summary)
    yield Fact("failed", count(summary.num_failed), _failed(report), summary.num_failed > 0)
    if summary.output_tokens_per_s is not None:
        detail = f"{figure(summary.total_tokens_per_s)} with prompt tokens"
        yield Fact("output tokens/s", figure(summary.output_tokens_per_s), detail)
    if summary.rows_per_s is not None:
        batches = f"{summary.num_batches:,} batch{'' if summary.num_batches == 1 else 'es'}"
        yield Fact("rows/s", figure(summary.rows_per_s), batches)
    if summary.generate_s is not None:
        yield Fact("generation", span(summary.generate_s), _time(report))
    if summary.eta_s is not None:
        yield Fact("time left", span(summary.eta_s), "at the rate of the last minute")
    yield Fact("tokens", f"{compact(summary.num_output_tokens)} out", _tokens(summary))
    yield from _engine(summary)
    if summary.num_cut:
        yield Fact("cut", count(summary.num_cut), "rows reached their token limit")
    if summary.num_invalid_json is not None:
        is_bad = summary.num_invalid_json > 0
        yield Fact("not JSON", count(summary.num_invalid_json), "outputs cannot be parsed", is_bad)
    yield from _early(report)
    yield from _saved(report)
    yield from _cost(report)


def _rows(summary: Summary) -> Fact:
    total = summary.rows_total
    if total is None or total == summary.num_rows:
        return Fact("rows", count(summary.num_rows), f"{count(summary.num_ok)} ok")
    about = "about " if summary.total_is_estimate else ""
    return Fact("rows", count(summary.num_rows), f"of {about}{count(total)}")


def _failed(report: Report) -> str:
    if not report.failures:
        return "no row failed"
    worst = report.failures[0]
    others = len(report.failures) - 1
    more = f" and {counted(others, 'more type')}" if others else ""
    return f"{share(report.summary.num_failed / report.summary.num_rows)}: {worst.error_type}{more}"


def _time(report: Report) -> str:
    """The whole time beside that of generation, as long as it is known of the same runs."""
    summary = report.summary
    runs = counted(summary.num_runs, "run")
    num_unknown = sum(line.wall_s is None and bool(line.generate_s) for line in report.runs)
    if num_unknown and summary.wall_s is not None:
        return f"{runs}; how long all of it took is not known of {num_unknown:,} without an end"
    return runs if summary.wall_s is None else f"{span(summary.wall_s)} in all, {runs}"


def _tokens(summary: Summary) -> str:
    return f"{count(summary.num_output_tokens)} output, {count(summary.num_prompt_tokens)} prompt"


def _engine(summary: Summary) -> Iterator[Fact]:
    if summary.num_running_mean is not None:
        detail = "on average"
        if summary.slots:
            used = share(summary.num_running_mean / summary.slots)
            detail = f"of {count(summary.slots)} on average, {used}"
        yield Fact("slots in use", figure(summary.num_running_mean), detail)
    if summary.kv_cache_usage_max is not None:
        preempted = summary.num_preemptions or 0
        detail = "no sequence was preempted" if not preempted else f"{preempted:,} preemptions"
        yield Fact("KV cache, peak", share(summary.kv_cache_usage_max), detail, preempted > 0)
    if summary.roofline_fraction is not None:
        detail = "least time for this work on this machine, by what the newest run took"
        yield Fact("of the roofline", share(summary.roofline_fraction), detail)


def _early(report: Report) -> Iterator[Fact]:
    early = report.early_stop
    if early is None:
        return
    rules = ", ".join(early.rules) or "none any more"
    by_rule = ", ".join(f"{number:,} by {rule}" for rule, number in early.by_rule.items())
    detail = f"{by_rule or 'no row'}; rules: {rules}"
    if early.num_saved_tokens_max is not None:
        detail += f"; at most {count(early.num_saved_tokens_max)} output tokens saved"
    yield Fact("stopped early", count(early.num_rows), detail)


def _saved(report: Report) -> Iterator[Fact]:
    cache = report.prefix_cache
    if cache.cached_share is not None:
        detail = f"of {count(cache.num_prompt_tokens)} prompt tokens"
        if cache.kv_block_tokens:
            detail += f", in blocks of {cache.kv_block_tokens}"
        yield Fact("from the prefix cache", share(cache.cached_share), detail)
    if cache.num_duplicates:
        detail = "rows have an equal prompt's completion"
        yield Fact("copies", count(cache.num_duplicates), detail)


def _cost(report: Report) -> Iterator[Fact]:
    cost = report.cost
    if cost is None:
        return
    detail = f"{span(cost.engine_s)} of engine at {cost.price_per_hour:g} an hour"
    yield Fact("cost", figure(cost.cost), detail)
    if cost.cost_per_million_output_tokens is not None:
        per_token = figure(cost.cost_per_million_output_tokens)
        detail = f"{figure(cost.cost_per_1000_rows)} per 1,000 rows"
        yield Fact("cost per million output tokens", per_token, detail)
