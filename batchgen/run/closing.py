"""The two ends of a run as others see them: what is in writing before its first row and after
its last, and the summary with the exit code.

The exit code describes the output, not the effort: a finished job that is run again gives the
same one. `_SUCCESS` goes before new work begins and comes back when every row has its output row.
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from batchgen.errors import BatchgenError, ErrorBudgetExceeded
from batchgen.monitor.console import Console
from batchgen.output.columns import save_schema
from batchgen.output.counts import Counts
from batchgen.output.manifest import clear_success, mark_success, write_manifest
from batchgen.output.parts import PartInfo
from batchgen.run import history
from batchgen.run.planning import Plan
from batchgen.run.space import free_bytes, space_problem
from batchgen.run.summary import RunSummary

if TYPE_CHECKING:
    from batchgen.run.execution import Outcome
    from batchgen.run.limits import Limits


def begin(plan: Plan, console: Console) -> None:
    """Put in writing what the coming rows are made of; from here on the output is unfinished.

    Raises DataError where the disk has no room to begin; one that may get full is a warning.
    """
    layout = plan.layout
    _look_at_space(plan, console)
    clear_success(layout)
    save_schema(layout, plan.columns.schema)
    plan.manifest = history.started(
        plan.manifest,
        plan.job,
        plan.options,
        run_id=plan.run_id,
        fingerprint=plan.fingerprint,
        shards=plan.shards,
        vanished_inputs=plan.changes.vanished,
        at=plan.started_at,
    )
    write_manifest(layout, plan.manifest, crash=plan.crash)


def _look_at_space(plan: Plan, console: Console) -> None:
    left = None if plan.rows_total is None else plan.rows_total - plan.before.num_rows
    max_tokens = plan.job.sampling.max_tokens
    limit = max_tokens if isinstance(max_tokens, int) else None
    warning = space_problem(free_bytes(plan.layout.path), plan.shards, left, limit)
    if warning is not None:
        plan.warnings.append(warning)
        console.warn(warning)


def finish(plan: Plan, outcome: "Outcome | None", console: Console) -> RunSummary:
    """Totals, manifest, `_SUCCESS`. `outcome` None: there was nothing to do.

    Also then the totals are written: the run that made the last rows may have been killed after
    them, and the start of this one has published what it left.
    """
    totals = plan.store.state.totals()
    for warning in (*_misfits(plan), *_emptiness(totals, outcome)):
        plan.warnings.append(warning)
        console.warn(warning)
    summary = _summary(plan, outcome, totals, _limits(plan, outcome))
    is_complete = replace(plan.work, parts=plan.store.state.parts, selection=None).is_done()
    if plan.manifest is not None:
        manifest = history.checked(
            plan.manifest, counts=totals, inputs=_input_facts(plan), is_complete=is_complete
        )
        if plan.options.accept_change:
            manifest["fingerprint"] = plan.fingerprint
        if outcome is not None:
            manifest = history.ended(manifest, summary, engine=outcome.engine)
        write_manifest(plan.layout, manifest, crash=plan.crash)
    if is_complete:
        mark_success(plan.layout, crash=plan.crash)
    elif outcome is not None and outcome.stopped is None and plan.work.with_rest:
        raise BatchgenError(
            f"{plan.layout.path}: the run came to its end and rows are left: this is a fault of "
            "batchgen; what is finished is saved, and the same command goes on"
        )
    return summary


def _limits(plan: Plan, outcome: "Outcome | None") -> "Limits | None":
    if outcome is None:
        return None
    from batchgen.run.limits import find_limits

    return find_limits(plan.job, outcome)


def _summary(
    plan: Plan, outcome: "Outcome | None", totals: Counts, limits: "Limits | None"
) -> RunSummary:
    counts = outcome.counts if outcome else None
    stopped = outcome.stopped if outcome else None
    generate_s = outcome.generate_s if outcome else 0.0
    prompt_tokens = counts.prompt_tokens if counts else 0
    output_tokens = counts.output_tokens if counts else 0
    read = plan.work.counts
    roofline = limits.roofline if limits else None
    return RunSummary(
        output_path=str(plan.layout.path),
        outputs=str(plan.layout.outputs),
        batches=str(plan.layout.batches),
        run_id=plan.run_id,
        exit_code=stopped.exit_code if stopped else _exit_code(plan, totals),
        stopped=stopped.reason if stopped else None,
        nothing_new=outcome is None,
        num_rows=totals.num_rows,
        num_ok=totals.num_ok,
        num_failed=totals.num_failed,
        failed_by_type=totals.failed_by_type,
        finish_reasons=totals.finish_reasons,
        num_duplicates=totals.num_duplicates,
        num_cut=totals.num_cut,
        num_invalid_json=totals.num_invalid_json,
        rows_this_run=counts.rows if counts else 0,
        num_prompt_tokens=prompt_tokens,
        num_output_tokens=output_tokens,
        num_cached_tokens=counts.cached_tokens if counts else None,
        wall_s=time.time() - plan.started_at.timestamp(),
        generate_s=generate_s,
        rows_per_s=_rate(counts.rows if counts else 0, generate_s),
        output_tokens_per_s=_rate(output_tokens, generate_s),
        total_tokens_per_s=_rate(prompt_tokens + output_tokens, generate_s),
        blank_lines=read.blank_lines,
        skipped_lines=read.skipped_lines,
        num_stale=counts.stale if counts else 0,
        engine_restarts=outcome.engine_restarts if outcome else 0,
        warnings=tuple(plan.warnings),
        phases=_phases(plan, outcome),
        engine=history.engine_fields(outcome.engine) if outcome and outcome.engine else None,
        samples=tuple(counts.samples) if counts else (),
        stopped_early=counts.stopped_early if counts else None,
        num_saved_tokens_max=counts.saved_tokens_max if counts else None,
        roofline_s=roofline.bound.total_s if roofline else None,
        roofline_fraction=roofline.fraction if roofline else None,
        roofline_source=roofline.source if roofline else None,
        diagnosis=limits.diagnosis if limits else (),
    )


def _emptiness(totals: Counts, outcome: "Outcome | None") -> list[str]:
    """A broken export upstream looks like this, too, so it is said; a stopped run does not tell."""
    if totals.num_rows or (outcome is not None and outcome.stopped is not None):
        return []
    return ["the input holds no rows; the output is empty"]


def _misfits(plan: Plan) -> list[str]:
    """Values of kept columns that a later line had in another type; their rows hold null there."""
    return [
        f"column '{column}': {count:,} values do not fit its type and are null in the output, "
        f"the first at {place}"
        for column, (count, place) in plan.kept.misfits.items()
    ]


def _exit_code(plan: Plan, totals: Counts) -> int:
    limit = plan.job.errors.failed_limit(totals.num_rows)
    return ErrorBudgetExceeded.exit_code if totals.num_failed > limit else 0


def _phases(plan: Plan, outcome: "Outcome | None") -> dict[str, float]:
    phases = {"plan": plan.plan_s}
    if outcome is not None:
        phases |= {
            "tokenizer": outcome.tokenizer_s,
            "engine_start": outcome.engine_start_s,
            "generate": outcome.generate_s,
            "publish": outcome.publish_s,
        }
    return phases


def _input_facts(plan: Plan) -> dict[str, dict[str, Any]]:
    """What identifies each shard, and its rows and content digests as far as they are known."""
    facts: dict[str, dict[str, Any]] = {
        shard.name: {"num_bytes": shard.num_bytes, "mtime_ns": shard.mtime_ns}
        for shard in plan.shards
    }
    for key, part in sorted(plan.store.state.parts.items()):
        fact = facts.setdefault(key.shard, {})
        fact["num_rows"] = fact.get("num_rows", 0) + part.num_rows
        fact.setdefault("digests", []).append(_digest(part))
    return facts


def _digest(part: PartInfo) -> str | None:
    return part.extent.source_digest if part.extent else None


def _rate(amount: int, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 and amount else None
