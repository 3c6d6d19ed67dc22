"""An engine without a model: deterministic texts, a cost model, scripted faults.

The cost model is that of continuous batching. An engine has `max_num_seqs` slots. Sequences enter
from a queue as slots (and KV cache) become free, each pays its prefill in the step in which it
enters, and every step gives each sequence in a slot one more token:

    step = step_s + slots in use · decode_token_s + prefill tokens · prefill_token_s

The first term is why batching pays: it is shared by all sequences of the step. Between two
events (a sequence enters, one finishes) all steps are alike, so they are taken in one jump, and a
simulated night costs milliseconds. One call of `step` still covers little time, as with a real
engine, so that the caller stays in control.
"""

import heapq
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import orjson

from batchgen import __version__
from batchgen.config.simulated import ScriptedReply, SimulatedOptions
from batchgen.engine.clock import SimulatedClock
from batchgen.engine.faults import Faults, FaultState
from batchgen.engine.prefix_cache import PrefixCache
from batchgen.engine.replies import first_words, is_json_object, load_script, write_samples
from batchgen.errors import EngineDied, EngineError
from batchgen.protocols import Clock
from batchgen.records import Completion, EngineInfo, EngineStats, Request, RowError, Sample

_REAL_STEP_S = 0.05
_SIMULATED_STEP_S = 1.0


@dataclass(slots=True)
class _Work:
    """A request in the engine. Each of its samples takes a slot until it is done."""

    request: Request
    arrived_at: float
    script: ScriptedReply
    samples: tuple[Sample, ...]
    error: RowError | None = None
    num_cached: int = 0
    entered_step: int = 0
    num_left: int = 0
    """Slots that it still occupies."""
    scheduled_at: float = 0.0
    first_token_at: float = 0.0
    finished_at: float = 0.0

    @property
    def num_slots(self) -> int:
        """Slots that it needs; a row that fails by script occupies one."""
        return max(1, len(self.samples))

    @property
    def num_kv_tokens(self) -> int:
        """KV cache tokens that it needs by its end."""
        return len(self.request.token_ids) + sum(s.num_tokens for s in self.samples)


class SimulatedEngine:
    """The engine protocol over a cost model. See docs/simulated-engine.md for the options.

    Raises JobFileError for a script that cannot be used, EngineError where a start is to fail.
    """

    def __init__(
        self,
        options: SimulatedOptions,
        *,
        max_model_len: int,
        max_num_seqs: int,
        clock: Clock,
        faults: FaultState | None = None,
    ) -> None:
        self.clock = clock
        self.info = EngineInfo(
            name="simulated",
            version=__version__,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            kv_block_tokens=options.kv_block_tokens,
            kv_cache_tokens=options.kv_cache_tokens,
            settings=options.model_dump(exclude={"script", "faults", "record"}),
        )
        self._options = options
        self._script = load_script(options.script)
        self._faults = Faults(options.faults, faults or FaultState(), clock)
        jumps = isinstance(clock, SimulatedClock)
        self._max_step_s = _SIMULATED_STEP_S if jumps else _REAL_STEP_S
        self._waiting: deque[_Work] = deque()
        self._slots: list[tuple[int, int, _Work]] = []  # a heap by last step, one entry a sample
        self._running: dict[str, _Work] = {}
        self._finished: deque[_Work] = deque()
        self._entries = count()
        self._step_number = 0
        self._num_stepped = 0
        self._is_watched = False
        self._kv_used = 0
        self._num_prompt_tokens = 0
        self._num_output_tokens = 0
        self._num_cached_tokens = 0
        self._prefix_cache = (
            PrefixCache(options.kv_block_tokens, options.kv_cache_tokens)
            if options.prefix_caching
            else None
        )
        self._death: EngineDied | None = None
        clock.sleep(options.start_s)
        self._faults.start_engine()
        self._record_file = _open_record(options.record)

    @property
    def num_unfinished(self) -> int:
        """Requests added and neither handed over nor aborted."""
        return len(self._waiting) + len(self._running) + len(self._finished)

    @property
    def num_steps(self) -> int:
        """Steps taken since the start."""
        return self._step_number

    def add(self, request: Request) -> Completion | None:
        """Queue a request; refuse one that is empty, too long, or has a schema that is no JSON."""
        self._check_alive()
        num_prompt_tokens = len(request.token_ids)
        error = _refusal(request, self.info.max_model_len)
        if error is not None:
            return Completion(request.id, num_prompt_tokens=num_prompt_tokens, error=error)
        self._record(request)
        if self._options.add_s:
            self.clock.sleep(self._options.add_s)
        script = self._script.of(request.row)
        samples = write_samples(request, script, self._options, self.info.max_model_len)
        self._waiting.append(_Work(request, self.clock.now(), script, samples))
        return None

    def step(self) -> list[Completion]:
        """Steps up to the next finish, but no more than a little time's worth (1 s simulated).

        A single step where somebody has asked for `progress`.
        """
        return self._step(None)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Finish everything in the engine: these requests, and leftovers of a failed call.

        Raises EngineError where the script lets a call fail; then the engine lives on, what had
        finished in the call is lost, and the rest comes out of the next call under its old ids.
        """
        fails_after = self._faults.call_fails_after()
        completions = [c for c in map(self.add, requests) if c is not None]
        while self.num_unfinished:
            if fails_after == 0:
                raise EngineError(
                    f"call {self._faults.state.num_calls} of generate failed in the simulated"
                    " engine (raise_in_call); the engine lives on"
                )
            stepped = self._step(fails_after)
            if fails_after is not None:
                fails_after -= len(stepped)
            completions += stepped
        return completions

    def abort(self, request_ids: Sequence[str]) -> list[Completion]:
        """Take requests back; those that have tokens by now come with what they have."""
        self._check_alive()
        wanted = set(request_ids)
        self._waiting = deque(work for work in self._waiting if work.request.id not in wanted)
        aborted = [work for name, work in self._running.items() if name in wanted]
        if aborted:
            self._slots = [slot for slot in self._slots if slot[2].request.id not in wanted]
            heapq.heapify(self._slots)
        return [self._abort_running(work) for work in aborted]

    def reset_prefix_cache(self) -> None:
        """Forget the prompts of finished requests."""
        if self._prefix_cache is not None:
            self._prefix_cache.clear()

    def progress(self, request_id: str) -> Completion | None:
        """The tokens that a running request has by now.

        From the first question on one call of `step` is one step: who watches misses no token.
        """
        self._is_watched = True
        work = self._running.get(request_id)
        num_tokens = 0 if work is None else self._step_number - work.entered_step
        if work is None or not work.samples or not num_tokens:
            return None
        now = self.clock.now()
        plain = (sample._replace(logprobs=None) for sample in work.samples)
        return _completion(work)._replace(
            samples=tuple(_cut(sample, num_tokens) for sample in plain),
            latency_s=now - work.arrived_at,
            finished_at=now,
        )

    def stats(self) -> EngineStats:
        """Slots, queue and token counters."""
        capacity = self._options.kv_cache_tokens
        return EngineStats(
            num_running=self._num_stepped if self.num_unfinished else 0,
            num_waiting=len(self._waiting),
            kv_cache_usage=min(1.0, self._kv_used / capacity) if capacity else None,
            num_preemptions=0,
            num_prompt_tokens=self._num_prompt_tokens,
            num_output_tokens=self._num_output_tokens,
            num_cached_tokens=self._num_cached_tokens,
        )

    def interrupt(self, reason: str) -> None:
        """From any thread: make the engine die at once, also out of a call that hangs."""
        self._faults.interrupt(reason)

    def close(self) -> None:
        """End the engine."""
        if self._death is None:
            self._death = EngineDied("the simulated engine was closed")
        if self._record_file is not None:
            os.close(self._record_file)
            self._record_file = None

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDied(self._death.problems)

    def _record(self, request: Request) -> None:
        if self._record_file is None:
            return
        shard, row = request.row
        line = {"shard": shard, "row": row, "num_prompt_tokens": len(request.token_ids)}
        os.write(self._record_file, orjson.dumps(line) + b"\n")

    def _step(self, limit: int | None) -> list[Completion]:
        """Work, then hand over at most `limit` requests."""
        self._check_alive()
        try:
            self._faults.before_work()
            if not self._finished:
                self._work()
            return self._hand_over(limit)
        except EngineDied as death:
            self._death = death
            raise

    def _work(self) -> None:
        """Let requests enter slots and take one step, or take all steps up to the next finish."""
        entered = self._admit()
        step_s = self._options.step_s + len(self._slots) * self._options.decode_token_s
        if entered:
            num_prefilled = sum(len(w.request.token_ids) - w.num_cached for w in entered)
            stall_s = sum(w.script.stall_s for w in entered)
            self._advance(1, step_s + num_prefilled * self._options.prefill_token_s + stall_s)
            for work in entered:
                work.first_token_at = self.clock.now()
        elif self._slots:
            num_steps = self._slots[0][0] - self._step_number
            if self._is_watched:
                num_steps = 1
            elif step_s > 0:
                num_steps = max(1, min(num_steps, int(self._max_step_s / step_s)))
            self._advance(num_steps, num_steps * step_s)
        self._retire()

    def _advance(self, num_steps: int, seconds: float) -> None:
        self._step_number += num_steps
        self._num_stepped = len(self._slots)
        self._num_output_tokens += num_steps * self._num_stepped
        if seconds > 0:
            self.clock.sleep(seconds)

    def _admit(self) -> list[_Work]:
        """Requests that enter slots now, in the order of their arrival."""
        entered: list[_Work] = []
        while self._waiting and self._fits(self._waiting[0]):
            work = self._waiting.popleft()
            self._try_row(work)
            token_ids = work.request.token_ids
            if self._prefix_cache is not None:
                work.num_cached = self._prefix_cache.take_in(token_ids)
            work.scheduled_at = self.clock.now()
            work.entered_step = self._step_number
            work.num_left = work.num_slots
            self._kv_used += work.num_kv_tokens
            self._num_prompt_tokens += len(token_ids)
            self._num_cached_tokens += work.num_cached
            self._running[work.request.id] = work
            for num_tokens in [sample.num_tokens for sample in work.samples] or [1]:
                slot = (self._step_number + num_tokens, next(self._entries), work)
                heapq.heappush(self._slots, slot)
            entered.append(work)
        return entered

    def _fits(self, work: _Work) -> bool:
        if not self._slots:
            return True
        if len(self._slots) + work.num_slots > self.info.max_num_seqs:
            return False
        capacity = self._options.kv_cache_tokens
        return capacity is None or self._kv_used + work.num_kv_tokens <= capacity

    def _try_row(self, work: _Work) -> None:
        """Let the row's scripted fault strike: fail the row, or raise EngineDied."""
        fault = work.script.fault
        if fault is None:
            return
        row = work.request.row
        self._faults.state.attempts[row] += 1
        attempt = self._faults.state.attempts[row]
        if fault.endswith("_once") and attempt > 1:
            return
        if fault.startswith("crash"):
            self._faults.die(f"row {row} brought it down (attempt {attempt})")
        work.error = RowError("engine_error", f"simulated fault of this row, attempt {attempt}")
        work.samples = ()

    def _retire(self) -> None:
        """Free the slots of samples that have reached their last step."""
        while self._slots and self._slots[0][0] <= self._step_number:
            work = heapq.heappop(self._slots)[2]
            work.num_left -= 1
            if work.num_left == 0:
                self._leave(work)
                self._finished.append(work)

    def _leave(self, work: _Work) -> None:
        self._kv_used -= work.num_kv_tokens
        work.finished_at = self.clock.now()
        del self._running[work.request.id]

    def _hand_over(self, limit: int | None) -> list[Completion]:
        """What has finished, up to the number of rows at which the next fault strikes."""
        limits = [limit, self._faults.num_rows_allowed(), len(self._finished)]
        num_rows = min(number for number in limits if number is not None)
        completions = [_completion(self._finished.popleft()) for _ in range(num_rows)]
        self._faults.finish_rows(num_rows)
        return completions

    def _abort_running(self, work: _Work) -> Completion:
        self._leave(work)
        num_tokens = self._step_number - work.entered_step
        work.samples = tuple(_cut(sample, num_tokens) for sample in work.samples)
        return _completion(work)


def _refusal(request: Request, max_model_len: int) -> RowError | None:
    num_tokens = len(request.token_ids)
    if num_tokens == 0:
        return RowError("empty_prompt", "the prompt has no tokens", 0)
    if num_tokens >= max_model_len:
        return RowError(
            "prompt_too_long",
            f"{num_tokens} prompt tokens; the model takes {max_model_len - 1} at most"
            f" (max_model_len {max_model_len}, and one for the output)",
            num_tokens,
        )
    schema = request.sampling.values.get("json_schema")
    if schema is None or is_json_object(schema):
        return None
    return RowError("bad_schema", "the JSON schema is not a JSON object")


def _cut(sample: Sample, num_tokens: int) -> Sample:
    if sample.num_tokens <= num_tokens:
        return sample
    text = first_words(sample.text, num_tokens)
    logprobs = None if sample.logprobs is None else sample.logprobs[:num_tokens]
    return Sample(text, num_tokens, "abort", sample.reasoning, logprobs)


def _completion(work: _Work) -> Completion:
    return Completion(
        request_id=work.request.id,
        samples=work.samples,
        num_prompt_tokens=len(work.request.token_ids),
        num_cached_tokens=work.num_cached,
        queue_s=work.scheduled_at - work.arrived_at,
        ttft_s=work.first_token_at - work.arrived_at,
        latency_s=work.finished_at - work.arrived_at,
        scheduled_at=work.scheduled_at,
        finished_at=work.finished_at,
        error=work.error,
    )


def _open_record(path: str | None) -> int | None:
    if path is None:
        return None
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
