"""What to change about each limit of a run, in the words of the job file.

A remedy depends on what the job says now: who already orders by prefix is not told to. The present
value stands beside each key that is named, where it is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

MUCH: Final = 0.5
"""A stage that is busy for half of the time may well be what the engine waits for."""
NEARLY_FULL: Final = 0.9
IN_USE: Final = 0.85
"""Share of slots below which more of them would help nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Keys of the job on which remedies depend; None: not known, or not set."""

    feed: str | None = None
    batch_size: int | None = None
    window: int | str | None = None
    order: str | None = None
    max_model_len: int | None = None
    max_tokens: int | None = None
    kv_cache_memory_bytes: int | None = None

    @classmethod
    def of_job(cls, job: Mapping[str, Any]) -> Self:
        """The settings in a job as the manifest keeps it."""
        batch, model = job.get("batch") or {}, job.get("model") or {}
        max_tokens = (job.get("sampling") or {}).get("max_tokens")
        return cls(
            feed=batch.get("feed"),
            batch_size=batch.get("size"),
            window=batch.get("window"),
            order=batch.get("order"),
            max_model_len=model.get("max_model_len"),
            max_tokens=max_tokens if isinstance(max_tokens, int) else None,
            kv_cache_memory_bytes=(model.get("extra") or {}).get("kv_cache_memory_bytes"),
        )


UNKNOWN: Final = Settings()


def feed_remedy(
    settings: Settings, *, slots: int | None, read_share: float | None, render_share: float | None
) -> str:
    """For an engine that waits for rows."""
    if settings.feed in ("sequential", "generate"):
        why = {
            "sequential": "one row at a time fills one slot",
            "generate": f"each call{_now(settings.batch_size, ' of {} rows')} waits for its longest"
            " row",
        }[settings.feed]
        return f"set batch.feed: continuous; {why}"
    if isinstance(settings.window, int) and slots and settings.window < 2 * slots:
        return f"set batch.window: auto (it is {settings.window:,} for {slots:,} slots)"
    slow, share = max(
        (("rendering and tokenizing prompts", render_share), ("reading the input", read_share)),
        key=lambda stage: stage[1] or 0.0,
    )
    if share is not None and share >= MUCH:
        return (
            f"{slow} was busy for {share:.0%} of the time and cannot keep up: simplify the prompt"
            " template, store the input as Parquet on a fast disk, or leave the reader more cores"
        )
    return "raise batch.look_ahead and batch.window, so that prepared rows are always at hand"


def tail_remedy(settings: Settings, *, num_rows: int | None, slots: int | None) -> str:
    """For slots that stand free at the end."""
    if num_rows is not None and slots is not None and num_rows <= slots:
        return (
            f"{num_rows:,} rows cannot fill {slots:,} slots, so they tell little about a long run;"
            " give the run more rows"
        )
    if settings.order is not None and settings.order != "longest_first":
        return f"set batch.order: longest_first (it is {settings.order}): long rows start early"
    limit = _now(settings.max_tokens)
    return f"give the run more rows, or lower sampling.max_tokens{limit}: one tail remains per run"


def kv_remedy(settings: Settings, *, num_running: float | None, preempts: bool) -> str:
    """For a KV cache that is too small for the slots."""
    length, now = _now(settings.max_model_len), _now(settings.kv_cache_memory_bytes)
    remedy = (
        f"raise model.extra.kv_cache_memory_bytes{now} (on a GPU gpu_memory_utilization, or"
        f" kv_cache_dtype: fp8), or lower model.max_model_len{length}"
    )
    if preempts and num_running:
        remedy += f"; model.max_num_seqs: {max(1, round(num_running))} would avoid starting over"
    return remedy


def host_remedy(*, slots: int | None, between_steps: bool, write_part: float | None) -> str:
    """For an engine that waits for the process around it, or for itself."""
    if between_steps:
        if write_part is not None and write_part >= MUCH:
            return "write to a faster disk: set output.path to a local one"
        return (
            "leave this process a core of its own, or let the engine have a process of its own"
            " (VLLM_ENABLE_V1_MULTIPROCESSING=1), which works on meanwhile"
        )
    return (
        f"see that nothing else uses the machine; raise model.max_num_seqs{_now(slots)}, so that"
        " more sequences share a step's overhead; set model.extra.enforce_eager: false where the"
        " run is long enough for compiling"
    )


def prefill_remedy(settings: Settings, *, cached_share: float | None) -> str:
    """For prompts that take the time."""
    if settings.order == "prefix":
        return (
            "shorten the prompts; text that all rows share belongs at the start of the template,"
            " where the prefix cache saves it"
        )
    if cached_share is not None and cached_share >= MUCH:
        return "shorten what differs between the prompts: the shared start is cached already"
    return (
        f"set batch.order: prefix{_now(settings.order)} if prompts share their start, and put what"
        " they share at the start of the template; else shorten the prompts"
    )


def decode_remedy(
    *,
    slots: int | None,
    num_running: float | None,
    critical_batch: float | None,
    kv_cache_usage_max: float | None,
) -> str:
    """For outputs that take the time."""
    if slots is not None and num_running is not None and num_running < IN_USE * slots:
        return "fill the free slots first; then lower sampling.max_tokens, or take a smaller model"
    has_cache = kv_cache_usage_max is None or kv_cache_usage_max < NEARLY_FULL
    if critical_batch is not None and slots is not None and slots >= critical_batch:
        return (
            f"{slots:,} slots keep arithmetic busy (enough from about {critical_batch:,.0f} on):"
            " lower sampling.max_tokens, or take a smaller or quantized model"
        )
    until = f" up to about {critical_batch:,.0f}" if critical_batch is not None else ""
    remedy = f"raise model.max_num_seqs{_now(slots)}: another sequence in a step is cheap{until}"
    if has_cache:
        return remedy
    return f"{remedy}; the KV cache is nearly full, so it needs more memory as well"


def _now(value: object, words: str = " (now {})") -> str:
    """The present value in words; nothing where it is not known."""
    if value is None:
        return ""
    return words.format(f"{value:,}" if isinstance(value, int) else value)
