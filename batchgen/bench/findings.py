"""From what was measured to what is answered: results, facts and differences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from batchgen.bench.ceiling import Ceiling
from batchgen.bench.comparison import Comparison, Fact, WayResult, way_result
from batchgen.bench.differences import (
    EXPLANATION,
    NOT_COMPARED,
    OTHER_KERNELS,
    Differences,
    compare_texts,
    is_repeatable,
)
from batchgen.bench.gain import (
    cache_fact,
    drain_facts,
    dynamic_facts,
    law_facts,
    length_fact,
    limit_facts,
    prefill_fact,
    roofline_fact,
)
from batchgen.bench.measured import Measured
from batchgen.bench.step_law import fit_step_law
from batchgen.bench.trials import Trial
from batchgen.bench.ways import Way
from batchgen.run.history import engine_fields

BASELINE = Way("sequential", 1)


@dataclass(frozen=True, slots=True)
class Frame:
    """What a comparison was, beside what it measured."""

    job: str
    created_at: str
    output_path: str
    num_repeats: int
    exit_code: int
    stopped: str | None
    wall_s: float


def comparison_of(found: Measured, ceiling: Ceiling | None, frame: Frame) -> Comparison:
    """The answer, from as much as was measured."""
    differences, reason = find_differences(found)
    results = tuple(_results(found, ceiling, differences))
    return Comparison(
        job=frame.job,
        created_at=frame.created_at,
        output_path=frame.output_path,
        exit_code=frame.exit_code,
        stopped=frame.stopped,
        num_repeats=frame.num_repeats,
        ways=results,
        steps=found.points,
        step_context_tokens=found.step_context,
        step_law=fit_step_law(found.points),
        facts=tuple(_facts(found, results, ceiling)),
        differences=differences,
        difference_reason=reason,
        notes=tuple(found.notes),
        engine=None if found.info is None else engine_fields(found.info),
        rates_source=None if ceiling is None else ceiling.rates.source,
        rows=found.look(),
        wall_s=frame.wall_s,
        trials={way: tuple(trials) for way, trials in found.trials.items()},
    )


def roofline_fraction(ceiling: Ceiling | None, trials: Sequence[Trial]) -> float | None:
    """Median over the repeats; None where it is not known."""
    if ceiling is None:
        return None
    known = [share for trial in trials if (share := ceiling.fraction(trial)) is not None]
    return median(known) if known else None


def find_differences(found: Measured) -> tuple[dict[Way, Differences], str | None]:
    """Texts of each way against those of the first sequential trial, and why some differ."""
    sequential = found.trials.get(BASELINE)
    if sequential is None or found.tokenizer is None:
        return {}, None
    prompts = found.workload.prompts
    if not any(is_repeatable(prompt) for prompt in prompts):
        return {}, NOT_COMPARED
    is_greedy = all(prompt.sampling.is_deterministic for prompt in prompts)
    differences = {
        way: compare_texts(sequential[0].rows, [t.rows for t in trials], found.tokenizer)
        for way, trials in found.trials.items()
        if way.name != "static" or is_greedy  # transformers draws other random numbers
    }
    different = [way for way, these in differences.items() if these.num_different]
    if not different:
        return differences, None
    has_static = any(way.name == "static" for way in different)
    return differences, f"{EXPLANATION} {OTHER_KERNELS}" if has_static else EXPLANATION


def _results(
    found: Measured, ceiling: Ceiling | None, differences: Mapping[Way, Differences]
) -> Iterator[WayResult]:
    for way, trials in found.trials.items():
        is_paced = way.arrival_rows_per_s is not None
        yield way_result(
            way,
            trials,
            found.trials.get(BASELINE, ()),
            roofline_fraction=None if is_paced else roofline_fraction(ceiling, trials),
            differences=differences.get(way),
        )


def _facts(
    found: Measured, results: Sequence[WayResult], ceiling: Ceiling | None
) -> Iterator[Fact]:
    yield from law_facts(fit_step_law(found.points), found.points)
    yield from prefill_fact(found.trials.get(BASELINE, ()))
    yield from length_fact(found.lengths, found.sizes)
    yield from drain_facts(results)
    yield from cache_fact(results, None if found.info is None else found.info.kv_cache_tokens)
    yield from found.facts
    yield from dynamic_facts(results, found.closed)
    yield from roofline_fact(results, None if ceiling is None else ceiling.rates.source)
    yield from limit_facts(results)
