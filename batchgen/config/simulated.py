"""`model.extra` of the simulated engine: a cost model, scripted replies and scripted faults.

The simulated engine needs no model and no GPU. A job with `model.engine: simulated` rehearses
a night, and tests drive it into every corner that a real engine reaches once a year: a row
that fails, a call that raises, an engine that dies or hangs, a process that is killed. All of it
is written in the job file, so that a test outside of this package can do the same.
docs/simulated-engine.md shows each of them at work.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from batchgen.config.section import Section

Starts: TypeAlias = NonNegativeInt | Literal["always"]


class ScriptedReply(Section):
    """What the simulated engine does with one row."""

    reply: str | None = None
    """The whole text of the completion. Without it the text names the prompt."""

    finish_reason: Literal["stop", "length", "abort", "repetition"] | None = None
    """Why the completion ends; else `stop`, or `length` where it was cut."""

    reply_tokens: PositiveInt | None = None
    """Tokens that the row would write; `sampling.max_tokens` still cuts it."""

    fault: Literal["row_error", "row_error_once", "crash", "crash_once"] | None = None
    """`row_error` fails the row alone each time, `row_error_once` only the first time;
    `crash` brings the engine down each time the row starts, `crash_once` only the first time."""

    stall_s: NonNegativeFloat = 0.0
    """Seconds for which the engine is busy with nothing else when the row starts."""


class RaiseInCall(Section):
    """One `generate` call that fails although the engine lives on."""

    call: PositiveInt
    """The call, counted from 1 over all engines of the process."""

    after_rows: NonNegativeInt = 0
    """Rows finished (and lost) in the call before it fails. The others stay in the engine and come
    out of the next call first, under their old request ids."""


class SimulatedFaults(Section):
    """What goes wrong, and when. Rows are counted as they finish, over restarts of the engine."""

    die_after_rows: NonNegativeInt | list[NonNegativeInt] | None = None
    """The engine dies when this many rows have finished; a list: at each of these counts."""

    die_on_start: Starts = 0
    """After a death, this many fresh engines start and then die at their first call."""

    refuse_start: Starts = 0
    """After a death, this many attempts to start an engine fail."""

    refuse_first_start: bool = False
    """The first attempt to start an engine fails."""

    raise_in_call: RaiseInCall | None = None
    """One `generate` call that fails while the engine lives on."""

    hang_after_rows: NonNegativeInt | None = None
    """When this many rows have finished, the engine no longer answers, until interrupted."""

    kill_process_after_rows: NonNegativeInt | None = None
    """When this many rows have finished, the process sends itself SIGKILL."""

    terminate_after_rows: NonNegativeInt | None = None
    """When this many rows have finished, the process sends itself SIGTERM, once."""

    interrupt_after_rows: NonNegativeInt | None = None
    """When this many rows have finished, the process sends itself SIGINT, once."""


class SimulatedOptions(Section):
    """Cost model, clock, script and faults of the simulated engine."""

    clock: Literal["real", "simulated"] = "real"
    """`simulated`: the whole run lives on a clock that jumps, so that a night takes a second."""

    zero_cost: bool = False
    """Every step is free, whatever the costs below say, and replies are short: measures batchgen
    itself. With `script`, `faults` or `record` replies are as usual."""

    step_s: NonNegativeFloat = 0.001
    """Seconds of one step, whatever the number of sequences in it (reading the weights)."""

    decode_token_s: NonNegativeFloat = 0.00001
    """Seconds that each sequence adds to a step (arithmetic, reading its KV cache)."""

    prefill_token_s: NonNegativeFloat = 0.000001
    """Seconds of prefill for each prompt token that is not in the prefix cache."""

    add_s: NonNegativeFloat = 0.0
    """Seconds that a request costs its caller when it is added, while the engine stands still."""

    start_s: NonNegativeFloat = 0.0
    """Seconds that a start of the engine takes."""

    reply_tokens: PositiveInt = 24
    """Median length of replies, in tokens (words). Lengths are skewed: log-normal, fixed by the
    prompt. A reply is never shorter than the words that name its prompt."""

    reply_sigma: Annotated[float, Field(ge=0, le=4, allow_inf_nan=False)] = 0.6
    """Spread of the logarithm of reply lengths; 0 makes them all equal."""

    kv_block_tokens: PositiveInt = 16
    """Tokens of a KV block; only whole blocks are shared by the prefix cache."""

    kv_cache_tokens: PositiveInt | None = None
    """Tokens that the KV cache holds: a sequence waits until its prompt and reply fit. null: no
    limit."""

    prefix_caching: bool = True
    """Prompt blocks seen before cost no prefill (least recently used go first)."""

    script: str | dict[str, ScriptedReply] | None = Field(default=None, union_mode="left_to_right")
    """What to do with single rows: `"shard:row"` -> mapping, here or in a JSON file; or a JSONL
    file with `shard`, `row` and the same keys on each line."""

    faults: SimulatedFaults = Field(default_factory=SimulatedFaults)
    """What goes wrong with the engine as a whole."""

    record: str | None = None
    """A file to which each request that reached the engine is appended as a JSON line: `shard`,
    `row`, `num_prompt_tokens`. It exists once an engine was created."""

    @property
    def is_scripted(self) -> bool:
        """Whether rows or the engine are told what to do, or requests are recorded."""
        return bool(self.script or self.record or self.faults != SimulatedFaults())

    def without_costs(self) -> "SimulatedOptions":
        """The same with every step free."""
        costs = ("step_s", "decode_token_s", "prefill_token_s", "add_s", "start_s")
        return self.model_copy(update=dict.fromkeys(costs, 0.0))
