"""What the output rows tell: lengths, latencies, why rows ended, why rows failed.

Parts are read one after another and only in the columns that are needed, so memory does not grow
with the corpus. Texts are read from the first part alone, errors until each type has its examples.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from batchgen.monitor.printable import shortened
from batchgen.output.counts import Counts
from batchgen.output.parts import PartKey
from batchgen.output.snapshot import Snapshot
from batchgen.records import ERROR_TYPES, RETRYABLE
from batchgen.report.arrays import floats
from batchgen.report.distributions import Tally
from batchgen.report.records import Distribution, Example, Failures, Finish

TALLIED: Final = {
    "num_prompt_tokens": True,
    "num_output_tokens": True,
    "ttft_s": False,
    "latency_s": False,
}
"""Columns of which the distribution is shown, and whether they are whole numbers."""
NUM_EXAMPLES: Final = 3
EXAMPLE_ROWS: Final = 1024
EXAMPLE_CHARS: Final = 600
ERROR_CHARS: Final = 300


@dataclass(slots=True)
class OutputLook:
    """What was found in the rows."""

    distributions: tuple[Distribution, ...] = ()
    failures: dict[str, list[Example]] = field(default_factory=dict)
    """Examples by `error_type`."""
    finishes: dict[str, Example] = field(default_factory=dict)
    """One completion for each `finish_reason`."""
    stopped_by: Counter[str] = field(default_factory=Counter)
    """Rows that a rule of `stop_early` has stopped, by rule."""


def look_at_outputs(snapshot: Snapshot, totals: Counts) -> OutputLook:
    """Read the rows of a run directory, the journal's included; `totals` are its counts."""
    tallies = {name: Tally() for name in TALLIED}
    look = OutputLook()
    for number, key in enumerate(snapshot.part_keys()):
        info = snapshot.info(key)
        columns = ["error_type", "duplicate_of", "stopped_by", *TALLIED]
        table = snapshot.rows(key, columns)
        _tally(table, tallies)
        _count_stopped(table, look.stopped_by)
        if number == 0:
            look.finishes = dict(_finish_examples(snapshot, key))
        wanted = {name for name in totals.failed_by_type if not _is_enough(look, name)}
        is_published = info is not None and snapshot.pending(key) is None
        if is_published and info is not None:
            wanted &= set(info.counts.failed_by_type)
        if wanted:
            _note_failures(snapshot, key, wanted, look)
    found = (tallies[name].distribution(name, is_count=whole) for name, whole in TALLIED.items())
    look.distributions = tuple(item for item in found if item is not None)
    return look


def failures(totals: Counts, look: OutputLook) -> tuple[Failures, ...]:
    """Failed rows by type, the most frequent first."""
    ordered = sorted(totals.failed_by_type.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        Failures(
            error_type=name,
            meaning=ERROR_TYPES.get(name),
            is_retryable=name in RETRYABLE,
            num_rows=count,
            share=count / totals.num_rows,
            examples=tuple(look.failures.get(name, ())),
        )
        for name, count in ordered
    )


def finishes(totals: Counts, look: OutputLook) -> tuple[Finish, ...]:
    """Completions by finish reason, the most frequent first."""
    num_completions = sum(totals.finish_reasons.values())
    ordered = sorted(totals.finish_reasons.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        Finish(name, count, count / num_completions, look.finishes.get(name))
        for name, count in ordered
    )


def _tally(table: pa.Table, tallies: dict[str, Tally]) -> None:
    """Count what an engine worked on: rows without error that are no copy."""
    is_own = pc.and_(pc.is_null(table["error_type"]), pc.is_null(table["duplicate_of"]))
    table = table.filter(is_own)
    for name, tally in tallies.items():
        tally.add(floats(table[name]))


def _count_stopped(table: pa.Table, stopped_by: Counter[str]) -> None:
    if "stopped_by" in table.column_names:
        for item in pc.value_counts(table["stopped_by"].drop_null()).to_pylist():
            stopped_by[item["values"]] += item["counts"]


def _finish_examples(snapshot: Snapshot, key: PartKey) -> Iterator[tuple[str, Example]]:
    """A completion of each reason in a part's first rows; of several in a row, the first."""
    lines = snapshot.rows(key, ["row", "finish_reason", "output"], max_rows=EXAMPLE_ROWS)
    reasons = lines["finish_reason"].to_pylist()
    first: dict[str, int] = {}
    for index, reason in enumerate(reasons):
        reason = reason[0] if isinstance(reason, list) and reason else reason
        if isinstance(reason, str):
            first.setdefault(reason, index)
    for reason, index in first.items():
        line = lines.slice(index, 1).to_pylist()[0]
        text = line["output"]
        text = text[0] if isinstance(text, list) else text
        yield reason, Example(key.shard, line["row"], _cut(text, EXAMPLE_CHARS))


def _note_failures(
    snapshot: Snapshot, key: PartKey, wanted: Collection[str], look: OutputLook
) -> None:
    table = snapshot.rows(key, ["row", "error_type", "error"])
    for place, error_type in enumerate(table["error_type"].to_pylist()):
        if error_type not in wanted or _is_enough(look, error_type):
            continue
        row, text = (table[name][place].as_py() for name in ("row", "error"))
        example = Example(key.shard, row, shortened(text or "", ERROR_CHARS))
        look.failures.setdefault(error_type, []).append(example)


def _is_enough(look: OutputLook, error_type: str) -> bool:
    return len(look.failures.get(error_type, ())) >= NUM_EXAMPLES


def _cut(text: Any, max_chars: int) -> str:
    """The beginning of an output, with its line breaks."""
    text = text if isinstance(text, str) else ""
    left_out = len(text) - max_chars
    return text if left_out <= 0 else f"{text[:max_chars]} [... {left_out:,} characters more]"
