"""Rows that need not run to their end: which of those in flight are taken back now.

A rule sees the text that a row has so far. It is applied each time the row has written
`LOOK_TOKENS` more tokens, counted by the row and not by the engine's steps; so where sampling is
deterministic and a rule goes by the text, a row is stopped at the same token whatever runs beside
it, and an equal prompt may copy it.

The cost is bounded. In each step about one row in `LOOK_TOKENS` is asked for its text: a row that
was looked at goes into the bucket of the step in which it will have written the next eight. And
a look at a long text is a look at its end.
"""

import re
from collections.abc import Container
from typing import Final

from batchgen.config.stop_early import LEAST_LOOP_CHARS, RepetitionStop, StopEarlyConfig
from batchgen.protocols import Engine
from batchgen.records import Completion, Sampling

LOOK_TOKENS: Final = 8
"""Tokens between two looks at a row: on average half of them are written in vain."""
SEARCHED_CHARS: Final = 1000
"""Text before the newest piece that a pattern is searched in again, for matches across the two."""
_KEY_CHARS: Final = LEAST_LOOP_CHARS // 2


class _Watched:
    """A row in flight, and how much of it has been looked at."""

    __slots__ = ("num_chars", "num_tokens", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.num_tokens = 0
        self.num_chars = 0


class EarlyStop:
    """Watches requests in flight. `follow` each that an engine has, `after_step` after each step.

    `look_tokens` is the number of tokens between two looks at a row.
    """

    def __init__(self, rules: StopEarlyConfig, *, look_tokens: int = LOOK_TOKENS) -> None:
        self._pattern = None if rules.pattern is None else re.compile(rules.pattern)
        self._max_seconds = rules.max_seconds
        self._loop = rules.loop
        self._look_tokens = look_tokens
        self._due: list[list[_Watched]] = [[] for _ in range(look_tokens)]
        """Rows to look at by step, modulo `look_tokens`."""
        self._num_steps = 0

    def follow(self, request_id: str) -> None:
        """Look at this request from the next step on, until it is no longer in flight."""
        self._put(_Watched(request_id), 1)

    def after_step(self, engine: Engine, in_flight: Container[str]) -> list[Completion]:
        """Requests that a rule stops now, taken back from the engine, `stopped_by` set.

        `in_flight`: ids of the requests that the engine still has.
        """
        self._num_steps += 1
        index = self._num_steps % self._look_tokens
        due, self._due[index] = self._due[index], []
        stopped: dict[str, str] = {}
        for row in due:
            if row.request_id not in in_flight:
                continue
            progress = engine.progress(row.request_id)
            if progress is None or not progress.samples:
                self._put(row, self._look_tokens)
            elif (rule := self._rule_met(row, progress)) is not None:
                stopped[row.request_id] = rule
            else:
                self._put(row, self._look_tokens - _num_tokens(progress) % self._look_tokens)
        if not stopped:
            return []
        aborted = engine.abort(list(stopped))
        return [done._replace(stopped_by=stopped[done.request_id]) for done in aborted]

    def _put(self, row: _Watched, num_steps: int) -> None:
        """Look at this row when so many more steps have been taken."""
        self._due[(self._num_steps + num_steps) % self._look_tokens].append(row)

    def _rule_met(self, row: _Watched, progress: Completion) -> str | None:
        num_tokens = _num_tokens(progress)
        if num_tokens // self._look_tokens > row.num_tokens // self._look_tokens:
            row.num_tokens = num_tokens
            texts = [sample.text for sample in progress.samples]
            start, row.num_chars = row.num_chars, min(map(len, texts))
            if self._pattern is not None and any(self._is_found(text, start) for text in texts):
                return "pattern"
            if self._loop is not None and any(is_looping(text, self._loop) for text in texts):
                return "repetition"
        return "max_seconds" if self._is_late(progress) else None

    def _is_found(self, text: str, num_known: int) -> bool:
        """Whether the pattern is in the text, of which the first `num_known` were searched."""
        assert self._pattern is not None
        return self._pattern.search(text, max(0, num_known - SEARCHED_CHARS)) is not None

    def _is_late(self, progress: Completion) -> bool:
        """Whether the row has run too long; both moments are of the engine's own clock."""
        if self._max_seconds is None:
            return False
        if progress.finished_at is None or progress.scheduled_at is None:
            return False
        return progress.finished_at - progress.scheduled_at >= self._max_seconds


def _num_tokens(progress: Completion) -> int:
    """Tokens of the longest sample; they all get one in each step."""
    return max(sample.num_tokens for sample in progress.samples)


def is_looping(text: str, rule: RepetitionStop) -> bool:
    """Whether the text ends with one piece of text repeated as often and as long as `rule` says.

    A text that loops with a period has its last characters once more one period before. So only
    distances at which they come back are tried, which in ordinary text is hardly any.

    >>> is_looping("So " + "I think so. " * 20, RepetitionStop())
    True
    >>> is_looping("I think so. " * 3 + "I do not.", RepetitionStop())
    False
    """
    tail = text[-max(rule.max_pattern_chars * rule.min_count, rule.min_chars) :]
    key_start = len(tail) - _KEY_CHARS
    if key_start <= 0:
        return False
    key = tail[key_start:]
    furthest = max(0, key_start - rule.max_pattern_chars)
    found = tail.rfind(key, furthest, len(tail) - 1)
    while found >= 0:
        period = key_start - found
        needed = max(period * rule.min_count, rule.min_chars)
        if needed <= len(tail) and tail[-needed:-period] == tail[period - needed :]:
            return True
        found = tail.rfind(key, furthest, found + _KEY_CHARS - 1)
    return False


def saved_tokens_max(completion: Completion, sampling: Sampling, max_model_len: int) -> int:
    """Tokens that an aborted request has not written, at most: nobody knows where it would end.

    Of several completions those count that were still running.
    """
    room = max_model_len - (completion.num_prompt_tokens or 0)
    limit = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
    running = (sample for sample in completion.samples if sample.finish_reason == "abort")
    return sum(limit - sample.num_tokens for sample in running)
