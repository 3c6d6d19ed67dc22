"""Scripted misfortune of the simulated engine.

Faults are due when a number of rows has finished, counted over all engines of a process, so that
`die_after_rows: 100` kills one engine and not each that follows it. What must outlive an engine
(rows finished, starts, deaths, how often a row was tried) is a `FaultState`, kept by whoever
restarts engines and given to each new one.

A fault that ends the engine strikes when it is next asked to work: exactly the announced number of
rows has been handed over by then. A signal to the process is sent the moment the row finishes.
"""

import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from batchgen.config.simulated import SimulatedFaults, Starts
from batchgen.errors import EngineDied, EngineError
from batchgen.protocols import Clock
from batchgen.records import RowKey

_SIGNALS: Final = {
    "kill": signal.SIGKILL,
    "terminate": signal.SIGTERM,
    "interrupt": signal.SIGINT,
}


@dataclass(slots=True)
class FaultState:
    """What the simulated engines of one process remember of each other."""

    rows_finished: int = 0
    num_starts: int = 0
    num_deaths: int = 0
    starts_since_death: int = 0
    num_calls: int = 0
    """Calls of `generate`."""
    attempts: Counter[RowKey] = field(default_factory=Counter)
    """How often each scripted row was started."""
    fired: set[tuple[str, int]] = field(default_factory=set)
    """Faults that have struck, by kind and row count."""


class Faults:
    """The faults of one engine: when something is due, it happens in here."""

    def __init__(self, plan: SimulatedFaults, state: FaultState, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self.state = state
        self._due = _due_faults(plan)
        self._interrupted: str | None = None
        self._dies_at_first_call = False

    def start_engine(self) -> None:
        """Count a start. Raises EngineError where this start is to fail."""
        state, plan = self.state, self._plan
        state.num_starts += 1
        if plan.refuse_first_start and state.num_starts == 1:
            raise EngineError("the simulated engine refuses its first start (refuse_first_start)")
        if state.num_deaths == 0:
            return
        state.starts_since_death += 1
        if _is_among(state.starts_since_death, plan.refuse_start):
            raise EngineError("the simulated engine refuses to start again (refuse_start)")
        self._dies_at_first_call = _is_among(state.starts_since_death, plan.die_on_start)

    def before_work(self) -> None:
        """Raises EngineDied where the engine is to die now; hangs where it is to hang."""
        self.check_interrupt()
        if self._dies_at_first_call:
            self.die("it died right after its start (die_on_start)", restarted=True)
        for kind, num_rows in self._due:
            if kind in _SIGNALS or not self._strikes(kind, num_rows):
                continue
            if kind == "hang":
                self._hang()
            self.die(f"it died after {num_rows} rows (die_after_rows)")

    def finish_rows(self, num_rows: int) -> None:
        """Count rows that have just finished, and send the signals that are due by then."""
        self.state.rows_finished += num_rows
        for kind, due_rows in self._due:
            if kind in _SIGNALS and self._strikes(kind, due_rows):
                os.kill(os.getpid(), _SIGNALS[kind])

    def num_rows_allowed(self) -> int | None:
        """Rows that may finish before the next fault strikes; None: any number."""
        done = self.state.rows_finished
        left = [rows - done for kind, rows in self._due if (kind, rows) not in self.state.fired]
        return max(0, min(left)) if left else None

    def die(self, reason: str, *, restarted: bool = False) -> None:
        """Raise EngineDied and remember it; `restarted`: the death of the engine before goes on."""
        if not restarted:
            self.state.num_deaths += 1
            self.state.starts_since_death = 0
        raise EngineDied(f"the simulated engine is gone: {reason}")

    def interrupt(self, reason: str) -> None:
        """From any thread: the engine dies at once, also out of a hang."""
        self._interrupted = reason

    def check_interrupt(self) -> None:
        """Raises EngineDied after an interrupt."""
        if self._interrupted is not None:
            self.die(self._interrupted)

    def call_fails_after(self) -> int | None:
        """Count a `generate` call; the rows after which this one is to fail, or None."""
        self.state.num_calls += 1
        fault = self._plan.raise_in_call
        if fault is None or fault.call != self.state.num_calls:
            return None
        return fault.after_rows

    def _strikes(self, kind: str, num_rows: int) -> bool:
        if self.state.rows_finished < num_rows or (kind, num_rows) in self.state.fired:
            return False
        self.state.fired.add((kind, num_rows))
        return True

    def _hang(self) -> None:
        while True:
            self._clock.sleep(0.05)
            self.check_interrupt()


def _due_faults(plan: SimulatedFaults) -> list[tuple[str, int]]:
    """Kind and row count of everything that strikes by a count of rows."""
    deaths = plan.die_after_rows
    death_counts = deaths if isinstance(deaths, list) else [deaths]
    single = {
        "hang": plan.hang_after_rows,
        "kill": plan.kill_process_after_rows,
        "terminate": plan.terminate_after_rows,
        "interrupt": plan.interrupt_after_rows,
    }
    due = [("die", rows) for rows in death_counts if rows is not None]
    return due + [(kind, rows) for kind, rows in single.items() if rows is not None]


def _is_among(number: int, limit: Starts) -> bool:
    return limit == "always" or number <= limit
