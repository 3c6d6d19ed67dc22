"""One row of `batches/`: what a batch held, how long it was open, how full the engine was.

In the `generate` feed a batch is one call of the engine, in `continuous` it is the rows that
finished one after another while it was open. Rows of several batches are in flight at the same
time there, so a rate is *what the engine produced while the batch was open* divided by `wall_s`,
not the tokens of the batch's own rows. Batches of a replica follow each other without overlap,
hence their rows, tokens and seconds add up to those of the run.

What an engine does not tell is null, never zero.
"""

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import pyarrow as pa

CLOSED_BY = ("size", "end", "signal", "deadline", "stop_at", "engine", "crash")
"""Why a batch ended: full, last rows of the run, an orderly stop, or a killed run."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Statistics of one batch; times in seconds, rates per second of `wall_s`."""

    run_id: str
    batch_id: int
    feed: str
    replica: int
    started_at: str
    """ISO 8601, UTC."""
    wall_s: float | None
    num_rows: int
    num_failed: int
    num_prompt_tokens: int
    num_cached_tokens: int | None
    num_output_tokens: int
    rows_per_s: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    ttft_s_p50: float | None = None
    ttft_s_p95: float | None = None
    tpot_s_p50: float | None = None
    tpot_s_p95: float | None = None
    latency_s_p50: float | None = None
    latency_s_p95: float | None = None
    queue_s_p50: float | None = None
    num_running_mean: float | None = None
    drain_s: float | None = None
    kv_cache_usage_max: float | None = None
    num_preemptions: int | None = None
    read_s: float | None = None
    render_s: float | None = None
    write_s: float | None = None
    rss_bytes: int | None = None
    closed_by: str = "size"
    num_stopped_early: int | None = None
    """Rows that a rule of `stop_early` stopped; None where the job has none, or is not known."""
    num_saved_tokens_max: int | None = None
    """Output tokens that these rows could still have had: more than would have come."""
    num_steps: int | None = None
    tail_s: float | None = None
    """The part of `drain_s` after the last row of the run had entered the engine."""
    blocked_s: float | None = None
    """Time with free slots and rows waiting in the engine, for want of KV cache."""
    host_s: float | None = None
    """Time between steps in which an engine in this process had rows and stood still."""
    prefill_s: float | None = None
    """What the prompt tokens computed meanwhile cost, told from the durations of the steps."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in the journal."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The record of `to_dict`; keys of a newer version are passed over."""
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known})


def batch_schema() -> "pa.Schema":
    """Arrow schema of `batches/`, in the order of the record's fields."""
    import pyarrow as pa

    special = {
        "run_id": pa.string(),
        "feed": pa.string(),
        "closed_by": pa.string(),
        "started_at": pa.timestamp("us", tz="UTC"),
    }
    counts = {"batch_id", "replica", "rss_bytes", "num_preemptions"}

    def arrow_type(name: str) -> pa.DataType:
        if name in special:
            return special[name]
        is_count = name in counts or (name.startswith("num_") and name != "num_running_mean")
        return pa.int64() if is_count else pa.float64()

    return pa.schema([(field.name, arrow_type(field.name)) for field in fields(BatchRecord)])
