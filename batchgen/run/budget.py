"""`errors.stop_at`: end a run in which everything fails, instead of failing all night.

Two shares are watched, each from 200 rows on: rows refused before the engine against all rows read,
and rows that the engine failed against the last 1,000 that it finished. The second one forgets, so
that a long good stretch does not hide an engine that has begun to fail everything.
"""

from collections import Counter, deque

from batchgen.run.stop import BUDGET_EXIT, StopRun

FIRST_LOOK_ROWS = 200
ENGINE_WINDOW_ROWS = 1000


class ErrorBudget:
    """Counts failures as rows settle. `stop_share` (0 to 1) or `stop_rows` is the limit."""

    def __init__(self, stop_share: float | None, stop_rows: int | None) -> None:
        self._share = stop_share
        self._rows = stop_rows
        self._num_rows = 0
        self._num_refused = 0
        self._recent: deque[bool] = deque(maxlen=ENGINE_WINDOW_ROWS)
        self._num_recent_failed = 0
        self._types: Counter[str] = Counter()

    def refused(self, error_type: str) -> None:
        """A row was refused before the engine saw it."""
        self._num_rows += 1
        self._num_refused += 1
        self._types[error_type] += 1

    def copied(self) -> None:
        """A row was settled as a copy of another."""
        self._num_rows += 1

    def finished(self, error_type: str | None) -> None:
        """The engine has finished a row, or failed it with this type."""
        self._num_rows += 1
        failed = error_type is not None
        if len(self._recent) == ENGINE_WINDOW_ROWS:
            self._num_recent_failed -= self._recent[0]
        self._recent.append(failed)
        self._num_recent_failed += failed
        if error_type is not None:
            self._types[error_type] += 1

    def verdict(self) -> StopRun | None:
        """The order to stop, or None while the budget holds."""
        if not self._types:
            return None
        if self._rows is not None:
            failed = sum(self._types.values())
            if failed > self._rows:
                return self._stop(failed, self._num_rows, f"{self._rows} rows")
        if self._share is None:
            return None
        limit = f"{self._share:.4%}".rstrip("%").rstrip("0").rstrip(".") + "%"
        for failed, seen in (
            (self._num_refused, self._num_rows),
            (self._num_recent_failed, len(self._recent)),
        ):
            if seen >= FIRST_LOOK_ROWS and failed > self._share * seen:
                return self._stop(failed, seen, limit)
        return None

    def _stop(self, failed: int, seen: int, limit: str) -> StopRun:
        kind, count = self._types.most_common(1)[0]
        return StopRun(
            f"stopped by errors.stop_at ({limit}): {failed} of {seen} rows failed "
            f"({failed / seen:.1%}), most of them as {kind} ({count})",
            BUDGET_EXIT,
            "stop_at",
            lets_finish=True,
        )
