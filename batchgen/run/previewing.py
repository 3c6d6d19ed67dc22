"""A few rows of the job, generated while somebody watches.

A preview walks the way of a run: the same readers, prompts, tokenizer, sampling, engine and rules
for stopping early. It asks the engine after each step what every row has written so far, hands
that to a screen, and writes no file. Whoever has seen enough stops it: a regular expression
that is found, or Ctrl-C, aborts the requests in the engine, and what came is kept.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from batchgen.config.models import JobConfig, StopEarlyConfig
from batchgen.corpus.prompts import PromptBuilder, column_uses
from batchgen.corpus.schema import plan_columns
from batchgen.corpus.shards import find_shards
from batchgen.corpus.tokenizing import load_tokenizer
from batchgen.engine.factory import (
    create_engine,
    engine_clock,
    known_model_len,
    prepare_environment,
)
from batchgen.monitor.console import Console
from batchgen.protocols import Clock, Engine, Tokenizer
from batchgen.records import Completion, EngineInfo, Prompt, Request, RowKey, Sample
from batchgen.run.chosen_rows import ChosenRows, Item
from batchgen.run.history import engine_fields
from batchgen.run.planning import added_names
from batchgen.run.stop import StopRun, StopWatch
from batchgen.schedule.early_stop import EarlyStop, saved_tokens_max
from batchgen.stats.meter import token_time

STOP_WHEN = "stop_when"
SIGNAL = "signal"
"""What `stopped_by` of a previewed row may say beside the rules of the job."""


@dataclass(frozen=True, slots=True)
class PreviewOptions:
    """Which rows are shown, and how much of them."""

    num_rows: int = 3
    """The first so many rows of the job, where `rows` names none."""
    rows: tuple[RowKey, ...] = ()
    stop_when: str | None = None
    """A regular expression: a row stops at the token with which it is found in its text."""
    with_tokens: bool = False
    """Also take the prompts apart into their tokens."""


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """A row of the preview, first its prompt, then what came; as `--json` prints it.

    With `n > 1` `output`, `reasoning` and `finish_reason` are lists and token counts are sums.
    """

    shard: str
    row: int
    prompt: str | None
    prompt_tokens: tuple[str, ...] | None = None
    """Text of each prompt token, special ones included; None unless asked for."""
    num_prompt_tokens: int | None = None
    output: str | list[str] | None = None
    reasoning: str | list[str | None] | None = None
    finish_reason: str | list[str] | None = None
    stopped_by: str | None = None
    """A rule of `stop_early`, `stop_when` or `signal`; None: it ended by itself."""
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_saved_tokens_max: int | None = None
    """Tokens that a stopped row could still have had; None where it ended by itself."""
    ttft_s: float | None = None
    latency_s: float | None = None
    output_tokens_per_s: float | None = None
    """Of one completion, after its first token; None where there are fewer than two."""
    error_type: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PreviewReport:
    """What a preview has shown; `batchgen preview --json` prints these fields."""

    job: str
    exit_code: int
    stopped: str | None
    """Why it ended early, as a sentence; None: every row came to its end."""
    rows: tuple[PreviewRow, ...]
    num_saved_tokens_max: int | None
    """Of all stopped rows; None where none was."""
    engine: dict[str, Any] | None


class Screen(Protocol):
    """Where a preview is shown. Rows are known by their place in `begin`."""

    def begin(self, rows: Sequence[PreviewRow]) -> None:
        """The prompts; the engine starts now, if it has not."""
        ...

    def show(self, index: int, text: str) -> None:
        """All that the (first) completion of this row is so far."""
        ...

    def end(self, index: int, row: PreviewRow) -> None:
        """Nothing more comes of this row."""
        ...

    def leave(self) -> None:
        """The process ends at once: leave the terminal in order."""
        ...


def preview_job(
    job: JobConfig, options: PreviewOptions, *, screen: Screen, console: Console
) -> PreviewReport:
    """Generate a few rows for a screen.

    Raises what a run would raise before its first row, UsageError for rows that are not there, and
    EngineError where the engine does not start or dies. SIGINT and SIGTERM end it in good order.
    """
    clock = engine_clock(job.model)
    with StopWatch(clock, uses_timer=False) as stop:
        return _Preview(job, options, screen, console, clock, stop).run()


class _Preview:
    """One preview. `rows` and `prompts` are filled as they become known."""

    def __init__(
        self,
        job: JobConfig,
        options: PreviewOptions,
        screen: Screen,
        console: Console,
        clock: Clock,
        stop: StopWatch,
    ) -> None:
        self._job = job
        self._options = options
        self._screen = screen
        self._console = console
        self._clock = clock
        self._stop = stop
        self._tokenizer: Tokenizer
        self._engine: Engine | None = None
        self._info: EngineInfo | None = None
        self._rows: list[PreviewRow] = []
        self._prompts: dict[int, Prompt] = {}
        """Prompts whose rows have not ended, by place."""
        self._watches = list(_watches(job.stop_early, options.stop_when))
        stop.on_second_signal(self._give_up)

    def run(self) -> PreviewReport:
        stopped: StopRun | None = None
        try:
            self._prepare()
            if self._prompts:
                self._generate(self._engine or self._start_engine())
        except StopRun as stop:
            stopped = stop
            self._abort()
        finally:
            if self._engine is not None:
                self._engine.close()
        saved = [
            row.num_saved_tokens_max for row in self._rows if row.num_saved_tokens_max is not None
        ]
        return PreviewReport(
            job=self._job.name,
            exit_code=0 if stopped is None else stopped.exit_code,
            stopped=None if stopped is None else stopped.reason,
            rows=tuple(self._rows),
            num_saved_tokens_max=sum(saved) if saved else None,
            engine=None if self._info is None else engine_fields(self._info),
        )

    def _prepare(self) -> None:
        """Rows to prompts, which are shown while the engine starts."""
        job = self._job
        shards = find_shards(job.input, exclude=Path(job.output.path))
        uses = column_uses(job.prompt, job.sampling, job.where)
        plan_columns(
            shards,
            needed=tuple(uses),
            keep=job.output.keep,
            generated=added_names(job),
            prefix=job.output.prefix,
            fixed=None,
            used_by=uses,
        )
        prepare_environment(job.model)  # before anything imports torch
        with self._stop.interruptible():
            self._tokenizer = load_tokenizer(job.model, job.prompt)
        max_model_len = known_model_len(job.model) or self._start_engine().info.max_model_len
        builder = PromptBuilder(
            job.prompt,
            job.sampling,
            self._tokenizer,
            max_model_len=max_model_len,
            where=job.where,
        )
        chosen = ChosenRows(job, shards, tuple(uses), builder)
        with self._stop.interruptible():
            names = self._options.rows
            items = chosen.named(names) if names else chosen.first(self._options.num_rows)
        self._rows = [self._with_prompt(item) for item in items]
        self._prompts = {i: item for i, item in enumerate(items) if isinstance(item, Prompt)}
        self._screen.begin(self._rows)
        for index, row in enumerate(self._rows):
            if index not in self._prompts:
                self._screen.end(index, row)

    def _with_prompt(self, item: Item) -> PreviewRow:
        if not isinstance(item, Prompt):
            error = item.error
            return PreviewRow(
                item.shard,
                item.row,
                item.text,
                num_prompt_tokens=error.num_prompt_tokens,
                error_type=error.type,
                error=error.message,
            )
        tokens = None
        if self._options.with_tokens:
            tokens = tuple(self._tokenizer.decode([token_id]) for token_id in item.token_ids)
        return PreviewRow(item.shard, item.row, item.text, tokens, len(item.token_ids))

    def _start_engine(self) -> Engine:
        with self._stop.interruptible():
            self._engine = engine = create_engine(
                self._job.model,
                tokenizer=self._tokenizer,
                sampling=self._job.sampling,
                clock=self._clock,
            )
        self._info = engine.info
        for note in engine.info.settings.get("chosen", ()):
            self._console.line(f"chosen for this machine: {note}")
        return engine

    def _generate(self, engine: Engine) -> None:
        """All rows at once, step by step, until none is left."""
        for index, prompt in list(self._prompts.items()):
            refused = engine.add(_request(index, prompt))
            if refused is not None:
                self._end(refused)
            for watch in self._watches:
                watch.follow(_request_id(index))
        while self._prompts:
            self._stop.check()
            for completion in engine.step():
                self._end(completion)
            for watch in self._watches:
                in_flight = {_request_id(index) for index in self._prompts}
                for completion in watch.after_step(engine, in_flight):
                    self._end(completion)
            for index in self._prompts:
                progress = engine.progress(_request_id(index))
                if progress is not None and progress.samples:
                    self._screen.show(index, progress.samples[0].text)

    def _abort(self) -> None:
        """Take back what has not ended. A row without a token ends with an empty text."""
        unfinished = [_request_id(index) for index in self._prompts]
        aborted = [] if self._engine is None else self._engine.abort(unfinished)
        for completion in aborted:
            self._end(completion._replace(stopped_by=SIGNAL))
        for index, prompt in list(self._prompts.items()):
            nothing = (Sample("", 0, "abort"),) * prompt.sampling.n
            self._end(Completion(_request_id(index), nothing, stopped_by=SIGNAL))

    def _give_up(self) -> None:
        if self._engine is not None:
            self._engine.interrupt("a second signal")
        self._screen.leave()

    def _end(self, completion: Completion) -> None:
        index = int(completion.request_id)
        row = _with_output(self._rows[index], completion)
        prompt = self._prompts.pop(index)
        if row.stopped_by is not None:
            row = replace(row, num_saved_tokens_max=self._saved(prompt, completion))
        self._rows[index] = row
        self._screen.end(index, row)

    def _saved(self, prompt: Prompt, completion: Completion) -> int | None:
        """Tokens saved at most; None where the engine never came to tell its length."""
        if self._info is None:
            return None
        counted = completion._replace(num_prompt_tokens=len(prompt.token_ids))
        return saved_tokens_max(counted, prompt.sampling, self._info.max_model_len)


class _StopWhen(EarlyStop):
    """The regular expression of the command line, looked for at each token."""

    def __init__(self, pattern: str) -> None:
        super().__init__(StopEarlyConfig(pattern=pattern), look_tokens=1)

    def after_step(self, engine: Engine, in_flight: Container[str]) -> list[Completion]:
        stopped = super().after_step(engine, in_flight)
        return [completion._replace(stopped_by=STOP_WHEN) for completion in stopped]


def _watches(rules: StopEarlyConfig, stop_when: str | None) -> Iterator[EarlyStop]:
    if rules.is_active:
        yield EarlyStop(rules)
    if stop_when is not None:
        yield _StopWhen(stop_when)


def _request_id(index: int) -> str:
    return str(index)


def _request(index: int, prompt: Prompt) -> Request:
    return Request(
        _request_id(index),
        prompt.token_ids,
        prompt.text,
        prompt.sampling,
        prompt.seed,
        prompt.key,
    )


def _with_output(row: PreviewRow, completion: Completion) -> PreviewRow:
    error, samples = completion.error, completion.samples
    if error is not None:
        return replace(row, error_type=error.type, error=error.message)
    seconds = token_time(completion)
    is_one = len(samples) == 1
    texts = [sample.text for sample in samples]
    reasons = [sample.finish_reason for sample in samples]
    thoughts = [sample.reasoning for sample in samples]
    return replace(
        row,
        output=texts[0] if is_one else texts,
        reasoning=thoughts[0] if is_one else thoughts,
        finish_reason=reasons[0] if is_one else reasons,
        stopped_by=completion.stopped_by,
        num_output_tokens=sum(sample.num_tokens for sample in samples),
        num_cached_tokens=completion.num_cached_tokens,
        ttft_s=completion.ttft_s,
        latency_s=completion.latency_s,
        output_tokens_per_s=1 / seconds if seconds else None,
    )
