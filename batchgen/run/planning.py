"""Before a run: what is there, whether it fits together, what is left to do.

Nothing here needs an engine, and a run that finds nothing new has to end within a second: footers
are read instead of rows, and input is opened only when something is left.
"""

import gzip
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.config.fingerprint import Fingerprint, digest, fingerprint
from batchgen.config.models import JobConfig
from batchgen.config.wording import nearest
from batchgen.corpus.kept import FileState, KeptReader
from batchgen.corpus.lines import DAMAGED, unreadable
from batchgen.corpus.prompts import column_uses
from batchgen.corpus.readers import PartLimits, ReadCounts
from batchgen.corpus.schema import ColumnPlan, plan_columns
from batchgen.corpus.unique import check_unique
from batchgen.errors import DataError, ResumeMismatch, UsageError
from batchgen.monitor.console import Console
from batchgen.output.columns import (
    PartColumns,
    check_schema,
    generated_names,
    job_schema,
    load_schema,
)
from batchgen.output.counts import Counts
from batchgen.output.crashpoints import CrashPoints
from batchgen.output.disk import disk_error
from batchgen.output.layout import RunLayout
from batchgen.output.manifest import clear_success, read_manifest, write_manifest
from batchgen.output.store import OutputStore
from batchgen.records import Shard
from batchgen.run.identity import (
    INPUTS,
    InputChanges,
    changes_beyond,
    check_fingerprint,
    compare_inputs,
    refuse_changed,
)
from batchgen.run.model_identity import model_digest
from batchgen.run.options import RunOptions
from batchgen.run.retry import select_rows
from batchgen.run.stop import parse_deadline
from batchgen.run.work import Work

RETRY_MAY_CHANGE = ("sampling", "model.max_model_len", "prompt.on_overlong")
"""What a retry may change: the directory keeps its first fingerprint, retried rows their run."""


@dataclass(slots=True)
class Plan:
    """One run, decided: what it reads, where it writes, what was there before."""

    job: JobConfig
    options: RunOptions
    layout: RunLayout
    run_id: str
    shards: list[Shard]
    store: OutputStore
    kept: KeptReader
    columns: PartColumns
    work: Work
    fingerprint: Fingerprint
    manifest: dict[str, Any] | None
    changes: InputChanges
    rows_total: int | None
    total_is_estimate: bool
    before: Counts
    """Totals of the output as this run finds it."""
    started_at: datetime
    warnings: list[str] = field(default_factory=list)
    plan_s: float = 0.0
    crash: CrashPoints = field(default_factory=CrashPoints.from_environment)


def new_run_id() -> str:
    """An id that no other run has: its start in UTC, then six random digits."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def output_path(job: JobConfig, options: RunOptions) -> Path:
    """The run's directory; `--limit N` has one of its own.

    Raises DataError where something else lives there.
    """
    suffix = "" if options.limit is None else f"-limit-{options.limit}"
    path = Path(job.output.path.rstrip("/") + suffix)
    layout = RunLayout(path)
    if path.exists() and not path.is_dir():
        raise DataError(f"output.path '{path}' is a file; name a directory for the run")
    if path.is_dir() and any(path.iterdir()) and not layout.hidden.is_dir():
        raise DataError(
            f"output.path '{path}' holds files and is no run directory; name an empty or new one"
        )
    return path


def deadline_seconds(options: RunOptions, console: Console) -> float | None:
    """Seconds until `--deadline`, which is said in full once."""
    if options.deadline is None:
        return None
    now = datetime.now().astimezone()
    moment = parse_deadline(options.deadline, now)
    console.line(f"deadline: {moment:%Y-%m-%d %H:%M:%S %Z}")
    return (moment - now).total_seconds()


def make_plan(
    job: JobConfig,
    options: RunOptions,
    layout: RunLayout,
    shards: list[Shard],
    console: Console,
    *,
    run_id: str,
) -> Plan:
    """Everything that is decided before an engine is needed; the directory is recovered first.

    Raises DataError or ResumeMismatch where inputs, output and job do not fit together.
    """
    began = time.perf_counter()
    now = datetime.now(UTC)
    needed = column_uses(job.prompt, job.sampling, job.where)
    if options.fresh:
        _planned_columns(job, shards, needed)  # a job that cannot run must not cost the old output
        discard(layout)
    manifest = read_manifest(layout)
    prints = fingerprint(job, model_digest=model_digest(job.model.name, job.model.tokenizer))
    accepted = _accepted(options)
    _check_accepted(options, prints, manifest)
    if manifest is not None:
        check_fingerprint(manifest["fingerprint"], prints, path=str(layout.path), accepted=accepted)
    limits = _limits(job)
    columns, warnings = _columns(job, layout, shards, needed)
    kept = KeptReader(shards, columns.kept_schema, limits, known=_known_files(manifest, accepted))
    store = OutputStore(layout, columns, kept, fingerprint=digest(prints), feed=job.batch.feed)
    warnings += store.recover()
    if manifest is None:
        _refuse_unknown_parts(store, prints, layout)
    crash = CrashPoints.from_environment()
    changes = InputChanges()
    if manifest is not None:
        changes = compare_inputs(shards, manifest["inputs"], store.state.parts, limits)
        refuse_changed(changes, path=str(layout.path), accepted=accepted)
        kept.trust()
        manifest = _open_grown(manifest, changes.grown, store, layout, crash)
    warnings += [f"input '{name}' is gone; its finished rows are kept" for name in changes.vanished]
    work = Work(
        shards=shards,
        parts=store.state.parts,
        done_rows=store.state.done_rows,
        columns=tuple(needed),
        limits=limits,
        counts=ReadCounts(),
        limit=options.limit,
        selection=select_rows(
            options,
            {key: layout.part(*key) for key in store.state.parts},
            prefix=job.output.prefix,
        ),
        with_rest=manifest is None
        or not changes_beyond(manifest["fingerprint"], prints, options.accept_change),
    )
    if not work.is_done():
        _check_rows(job, shards, columns, needed, limits, warnings)
    for warning in warnings:
        console.warn(warning)
    rows_total, is_estimate = expected_rows(work)
    return Plan(
        job=job,
        options=options,
        layout=layout,
        run_id=run_id,
        shards=shards,
        store=store,
        kept=kept,
        columns=columns,
        work=work,
        fingerprint=prints,
        manifest=manifest,
        changes=changes,
        rows_total=rows_total,
        total_is_estimate=is_estimate,
        before=store.state.totals(),
        started_at=now,
        warnings=warnings,
        plan_s=time.perf_counter() - began,
        crash=crash,
    )


def discard(layout: RunLayout) -> None:
    """Remove what earlier runs have left in this directory, the lock excepted.

    `_SUCCESS` goes first, since it speaks of the rest. Raises DataError where something stays.
    """
    clear_success(layout)
    try:
        for folder in (layout.outputs, layout.batches, layout.journal):
            if folder.exists():
                shutil.rmtree(folder)
        for file in (layout.manifest, layout.report, layout.schema, layout.progress):
            file.unlink(missing_ok=True)
    except OSError as exc:
        raise disk_error(exc, layout.path) from exc


def expected_rows(work: Work) -> tuple[int | None, bool]:
    """Rows that the output will have, and whether that is an estimate (text shards, by bytes)."""
    if work.selection is not None:
        return None, False
    total, is_estimate = 0, False
    for shard in work.shards:
        rows = work.finished_rows(shard)
        if rows is None and shard.format == "parquet":
            rows = pq.read_metadata(shard.path).num_rows
        elif rows is None:
            rows, is_exact = rows_by_bytes(shard)
            is_estimate |= not is_exact
        total += rows
    if work.limit is None or total < work.limit:
        return total, is_estimate
    return work.limit, False


def rows_by_bytes(shard: Shard) -> tuple[int, bool]:
    """Rows of a text shard by the lines of its first bytes, and whether those were all.

    Raises DataError where these bytes cannot be read.
    """
    try:
        with Path(shard.path).open("rb") as raw:
            source: Any = raw
            if shard.compression == "gzip":
                source = gzip.GzipFile(fileobj=raw)
            elif shard.compression == "zstd":
                source = pa.CompressedInputStream(raw, "zstd")
            head = source.read(1 << 20)
            consumed = min(raw.tell(), shard.num_bytes)
            is_whole = not source.read(1)
    except DAMAGED as exc:
        raise unreadable(shard, exc) from exc
    lines = sum(1 for line in head.split(b"\n") if line.strip())
    if is_whole or not consumed:
        return lines, shard.format == "jsonl"
    return max(1, round(lines * shard.num_bytes / consumed)), False


def _limits(job: JobConfig) -> PartLimits:
    return PartLimits(
        max_rows=job.output.rows_per_part,
        max_bytes=job.output.bytes_per_part,
        max_line_bytes=job.input.max_line_bytes,
        on_bad_line=job.input.on_bad_line,
    )


def _accepted(options: RunOptions) -> tuple[str, ...]:
    is_retry = options.retry_failed is not None or options.where is not None
    if not is_retry:
        return options.accept_change
    return (*options.accept_change, *RETRY_MAY_CHANGE)


def _check_accepted(
    options: RunOptions, prints: Fingerprint, manifest: dict[str, Any] | None
) -> None:
    """A mistyped key would accept nothing, and say so only on the night on which it matters."""
    recorded = manifest["fingerprint"] if manifest else {}
    known = {INPUTS, *prints}
    for values in (*prints.values(), *recorded.values()):
        known.update(values)
    unknown = [key for key in options.accept_change if key not in known]
    if unknown:
        raise UsageError(
            [f"--accept-change {key}: no such key{nearest(key, sorted(known))}" for key in unknown]
        )


def _columns(
    job: JobConfig, layout: RunLayout, shards: list[Shard], needed: Mapping[str, str]
) -> tuple[PartColumns, list[str]]:
    """The columns of the parts: those of the first run, or planned from the input now."""
    prefix = job.output.prefix
    fixed = load_schema(layout)
    if fixed is not None:
        columns = PartColumns.of(fixed, prefix)
        # A retry may drop the rules that stopped rows; their column stays.
        stops_early = job.stop_early.is_active or (
            columns.name("stopped_by") in columns.added_schema.names
        )
        wanted = job_schema(
            columns.kept_schema, job.output, job.sampling, job.model, stops_early=stops_early
        )
        check_schema(fixed, wanted, str(layout.path))
        return columns, []
    plan = _planned_columns(job, shards, needed)
    schema = job_schema(
        plan.kept_schema,
        job.output,
        job.sampling,
        job.model,
        stops_early=job.stop_early.is_active,
    )
    return PartColumns.of(schema, prefix), list(plan.warnings)


def added_names(job: JobConfig) -> tuple[str, ...]:
    """Names of the columns that this job adds to its input's."""
    return generated_names(
        job.output, job.sampling, job.model, stops_early=job.stop_early.is_active
    )


def _planned_columns(
    job: JobConfig,
    shards: list[Shard],
    needed: Mapping[str, str],
    *,
    fixed: pa.Schema | None = None,
) -> ColumnPlan:
    """The kept columns that the input gives. Raises DataError where it lacks what the job needs."""
    return plan_columns(
        shards,
        needed=tuple(needed),
        used_by=needed,
        keep=job.output.keep,
        generated=added_names(job),
        prefix=job.output.prefix,
        fixed=fixed,
    )


def _check_rows(
    job: JobConfig,
    shards: list[Shard],
    columns: PartColumns,
    needed: Mapping[str, str],
    limits: PartLimits,
    warnings: list[str],
) -> None:
    """What has to hold of all input before a model is loaded for it."""
    plan = _planned_columns(job, shards, needed, fixed=columns.kept_schema)
    warnings += [warning for warning in plan.warnings if warning not in warnings]
    if job.input.unique is not None:
        check_unique(shards, job.input.unique, limits)


def _open_grown(
    manifest: dict[str, Any],
    grown: Sequence[Shard],
    store: OutputStore,
    layout: RunLayout,
    crash: CrashPoints,
) -> dict[str, Any]:
    """Open the last parts of shards that have grown; the manifest that says so.

    An opened part has no hash any more, so its shard could not be compared again. Therefore the
    manifest takes over the new sizes first, and names the shards until a run begins: one that is
    killed in between leaves the rest of this to the next one.
    """
    names = sorted({*manifest.get("growing", ()), *(shard.name for shard in grown)})
    if grown:
        inputs = dict(manifest["inputs"])
        for shard in grown:
            size = {"num_bytes": shard.num_bytes, "mtime_ns": shard.mtime_ns}
            inputs[shard.name] = {**inputs[shard.name], **size}
        manifest = {**manifest, "inputs": inputs, "growing": names}
        write_manifest(layout, manifest, crash=crash)
    for name in names:
        last = max(key.start_row for key in store.state.parts if key.shard == name)
        store.reopen_part(name, last)
    return manifest


def _known_files(manifest: dict[str, Any] | None, accepted: Sequence[str]) -> dict[str, FileState]:
    """What the input files were when their finished rows were made, as far as it is recorded."""
    if manifest is None or INPUTS in accepted:
        return {}
    return {
        name: FileState(facts["num_bytes"], facts["mtime_ns"])
        for name, facts in manifest["inputs"].items()
    }


def _refuse_unknown_parts(store: OutputStore, prints: Fingerprint, layout: RunLayout) -> None:
    """Parts without a manifest: they are this job's, or nobody can tell what made them."""
    for part in store.state.parts.values():
        if part.fingerprint != digest(prints):
            raise ResumeMismatch(
                f"{layout.path} holds rows of another job, and its manifest.json is gone, so what "
                "changed cannot be told; set another output.path or start over with --fresh"
            )
