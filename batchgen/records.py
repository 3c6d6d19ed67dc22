"""The nouns that travel between rooms: shards, rows, prompts, completions, finished rows, parts.

A row is identified by `(shard, row)`: the shard's name and the position in it, never its text.
The path of a row: a reader yields it in a `RowBlock`; the prompt builder turns it into a `Prompt`
(or a `FinishedRow` that says why not); a feed hands the prompt to an engine as a `Request`; a
`Completion` comes back; the recorder makes a `FinishedRow` of it, which goes to the journal and
from there, by publish, into a part.

Records of which there is one per row are NamedTuples: building a frozen dataclass of twenty
fields costs some 4 µs, a tuple 0.5 µs, and the goal for the whole path is 25 µs a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

ERROR_TYPES: Final = {
    "bad_json": "stands on a line that is not a JSON object",
    "bad_type": "has a prompt that is not text (or not a list of messages)",
    "missing_column": "lacks a column that the prompt uses",
    "null_prompt": "has no prompt: null or NaN",
    "empty_prompt": "has a prompt without any visible character",
    "no_messages": "is a conversation without messages",
    "template_error": "makes the prompt template fail",
    "prompt_too_long": "has more prompt tokens than the model can take",
    "bad_schema": "asks for a JSON schema that cannot be compiled",
    "bad_sampling": "asks for sampling values that the engine does not accept",
    "engine_error": "was sound, but the engine refused or failed it alone",
    "timeout": "took longer than the job allows",
    "engine_crash": "brings the engine down each time it is tried",
}
"""`error_type` of an output row, and what it says about the row."""

RETRYABLE: Final = frozenset({"engine_error", "timeout"})
"""Error types that may go away by themselves: what `--retry-failed` tries again."""

FINISH_REASONS: Final = ("stop", "length", "abort", "repetition")

STOP_RULES: Final = ("pattern", "max_seconds", "repetition")
"""Rules of `stop_early`, as `stopped_by` of a row that one of them has stopped names them."""


class RowKey(NamedTuple):
    """The identity of a row."""

    shard: str
    row: int

    def __str__(self) -> str:
        return f"{self.shard}:{self.row}"


@dataclass(frozen=True, slots=True)
class Shard:
    """One input file. `name` is its path relative to the root of its `input.paths` entry."""

    name: str
    path: str
    """Absolute local path, or a URL."""
    format: str
    """`parquet`, `jsonl` or `csv`."""
    compression: str | None
    """`gzip`, `zstd` or None; of the whole file (Parquet compresses inside)."""
    num_bytes: int
    mtime_ns: int | None


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row has no completion: one of `ERROR_TYPES`, and a sentence for the user."""

    type: str
    message: str
    num_prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PartExtent:
    """A contiguous slice of one shard that becomes one output file, known once it was read.

    Extents depend on the shard and the job's output section alone, never on the feed or on where
    reading began, so that a resumed run cuts a shard exactly as the first one did.
    """

    shard: str
    start_row: int
    num_rows: int
    source_start: int | None
    """Offset in the (decompressed) shard of the first row; None for Parquet."""
    source_end: int | None
    """Offset in the (decompressed) shard just after the last row; None for Parquet."""
    source_digest: str
    """Hash of the slice's bytes (Parquet: of the file's footer); detects a changed shard."""
    shard_rows: int | None
    """Rows of the whole shard, on its last part only."""


@dataclass(slots=True)
class RowBlock:
    """Consecutive rows of one part, column by column, as Python values.

    `columns` holds the columns that the prompt and the sampling need and this shard has; a value
    that a JSON object lacks is `MISSING`. `errors` maps offsets in the block to unreadable rows.
    """

    shard: str
    part_start: int
    start_row: int
    num_rows: int
    columns: dict[str, list[Any]]
    errors: dict[int, RowError] = field(default_factory=dict)
    source_start: int | None = None
    """Offset in the (decompressed) shard of the part's first row; None for Parquet."""
    extent: PartExtent | None = None
    """Set on the last block of a part (a block never spans two parts); may hold no rows."""


class Missing:
    """The type of `MISSING`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = Missing()
"""A column that this row does not have (a JSON object without the key); null is None."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Effective sampling of a prompt, shared by all rows with equal values.

    `values` are keyword arguments of vLLM's SamplingParams (plus `json_schema`, a schema as JSON
    text or None) without `seed`, which is the prompt's own. Equal values have equal `key`s.
    """

    values: Mapping[str, Any]
    key: bytes

    @property
    def max_tokens(self) -> int | None:
        """Output limit in tokens; None: up to the model's length."""
        value: int | None = self.values.get("max_tokens")
        return value

    @property
    def n(self) -> int:
        """Completions per prompt."""
        return int(self.values.get("n") or 1)

    @property
    def is_deterministic(self) -> bool:
        """Greedy with one completion: equal prompts get equal completions."""
        return self.values.get("temperature", 1.0) == 0 and self.n == 1


class Prompt(NamedTuple):
    """A row that passed every check: what the engine gets, and where it belongs."""

    shard: str
    row: int
    part_start: int
    token_ids: Sequence[int]
    text: str
    sampling: Sampling
    seed: int | None

    @property
    def key(self) -> RowKey:
        """The row that this is the prompt of."""
        return RowKey(self.shard, self.row)


class Refusal(NamedTuple):
    """A row that never reaches the engine, and why; `text` is the prompt, if it got so far."""

    shard: str
    row: int
    part_start: int
    error: RowError
    text: str | None = None


class Request(NamedTuple):
    """One prompt on its way through an engine. `id` is unique within the process."""

    id: str
    token_ids: Sequence[int]
    text: str
    sampling: Sampling
    seed: int | None
    row: RowKey


class Sample(NamedTuple):
    """One of the `n` completions of a prompt."""

    text: str
    num_tokens: int
    finish_reason: str
    reasoning: str | None = None
    logprobs: list[list[dict[str, Any]]] | None = None
    """Per output token the candidates: `token_id`, `token`, `logprob`, `rank`."""


class Completion(NamedTuple):
    """What came back for a request: samples, or an error that concerns this request alone.

    Times are seconds of the engine's clock; None where the engine does not tell.
    """

    request_id: str
    samples: tuple[Sample, ...] = ()
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    """From arrival in the engine's queue to the first output token."""
    latency_s: float | None = None
    """From arrival in the engine's queue to the last output token."""
    scheduled_at: float | None = None
    finished_at: float | None = None
    """Engine clock; only differences between completions of one engine mean something."""
    error: RowError | None = None
    stopped_by: str | None = None
    """One of `STOP_RULES`, where the request was taken back from the engine because of it."""


class FinishedRow(NamedTuple):
    """A row's fate, all that an output row holds beside the kept input columns.

    With `n > 1` `output`, `finish_reason`, `reasoning`, `logprobs` and `json_valid` are lists and
    `num_output_tokens` is the sum. Where `error_type` is set, `output` and `finish_reason` are
    None.
    """

    shard: str
    row: int
    part_start: int
    output: Any = None
    finish_reason: Any = None
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    ttft_s: float | None = None
    latency_s: float | None = None
    run_id: str = ""
    batch_id: int = 0
    duplicate_of: str | None = None
    error_type: str | None = None
    error: str | None = None
    prompt: str | None = None
    reasoning: Any = None
    logprobs: Any = None
    json_valid: Any = None
    stopped_by: str | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a started engine says of itself; goes into the manifest and the summary."""

    name: str
    version: str
    max_model_len: int
    max_num_seqs: int
    """Slots: the most sequences that the engine decodes at once."""
    kv_block_tokens: int | None
    kv_cache_tokens: int | None
    """Tokens that the whole KV cache holds."""
    settings: Mapping[str, Any]
    """Effective engine settings worth recording, those chosen by batchgen among them."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A look at a running engine; counters run since its start. None: it does not tell."""

    num_running: int | None = None
    """Sequences in the last step, those that it finished included."""
    num_waiting: int | None = None
    kv_cache_usage: float | None = None
    """Share of KV blocks in use, 0 to 1."""
    num_preemptions: int | None = None
    num_prompt_tokens: int | None = None
    """Prompt tokens taken in since the start, cached ones included."""
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    """Of `num_prompt_tokens`, those that the prefix cache spared."""
