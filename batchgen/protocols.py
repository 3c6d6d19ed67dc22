"""What rooms ask of each other without importing each other.

An engine takes token ids and gives completions. It is built for a continuous feed: `add` puts a
request into its queue at any time, `step` lets it work and hands over what has finished, `abort`
takes requests back. `generate` is the plain call that finishes a whole batch before it returns.
A feed drives either; it never knows which engine it drives. Time is an argument everywhere: on a
simulated clock an eight-hour night passes in a second, stalls and deadlines included.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from batchgen.records import Completion, EngineInfo, EngineStats, Request


class Clock(Protocol):
    """Monotonic time, sleeping, and periodic calls."""

    def now(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass on this clock."""
        ...

    def every(self, period_s: float, action: Callable[[], None]) -> Callable[[], None]:
        """Call `action` each `period_s` seconds (real: from a thread) until the result is called.

        On a simulated clock the calls happen while time advances, also in the middle of one long
        step, so that a stall shows.
        """
        ...


class Tokenizer(Protocol):
    """Text to token ids and back. Thread-safe for one caller at a time."""

    bos_token_id: int | None
    bos_token: str | None

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Any]:
        """Token ids (a sequence of int) of each text."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        ...

    def render_chat(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """The model's chat template applied, generation prompt added; text, special tokens in it.

        Raises ValueError with the template's own words where it refuses these messages.
        """
        ...


class Engine(Protocol):
    """Turns requests into completions. One caller, one thread.

    `EngineDied` out of any method means that the engine is gone with everything in flight; a
    fresh one has to be built. Every other failure concerns one request and is a Completion with
    an `error`.
    """

    info: EngineInfo
    clock: Clock

    @property
    def num_unfinished(self) -> int:
        """Requests added and neither handed over nor aborted."""
        ...

    def add(self, request: Request) -> Completion | None:
        """Queue a request. A Completion comes back at once where the engine refuses it."""
        ...

    def step(self) -> list[Completion]:
        """Work until something has changed; what has finished. Call it only with work unfinished.

        May hold completions of requests that the caller has forgotten; match by `request_id`.
        """
        ...

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Finish all of these in one call of the engine's batch API, in any order."""
        ...

    def abort(self, request_ids: Sequence[str]) -> list[Completion]:
        """Take requests back; completions with what came so far, `finish_reason` abort.

        Requests that produced nothing or are unknown are not in the result.
        """
        ...

    def reset_prefix_cache(self) -> None:
        """Forget the prompts of finished requests, so that a repeat costs what the first did.

        Call it with nothing unfinished.
        """
        ...

    def progress(self, request_id: str) -> Completion | None:
        """What `abort` would hand over for this request now; it goes on. Cheap, some 5 µs.

        Log probabilities are left out, reasoning is not split off, and text that may turn out to
        be the start of a stop text is held back. None: no token yet, finished, or unknown.
        """
        ...

    def stats(self) -> EngineStats:
        """A cheap look inside (well under a millisecond)."""
        ...

    @property
    def num_steps(self) -> int:
        """Rises whenever the engine has got something done. Readable from any thread."""
        ...

    def interrupt(self, reason: str) -> None:
        """From any thread: give the engine up; the call that hangs in it raises EngineDied."""
        ...

    def close(self) -> None:
        """End the engine and its processes. Safe to call twice, and after a death."""
        ...
