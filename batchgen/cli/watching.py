"""`batchgen status --watch`: a run followed to its end, from another terminal or another machine.

All that is looked at are files, so any machine that sees the directory will do. Whether a run on
another host lives, its heartbeat tells: by the clocks of the two machines at the first look, and
by its changes from then on, which no clock can falsify.
"""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from batchgen.cli.output import Output
from batchgen.errors import DataError

Answer = dict[str, Any]

TERMINAL_INTERVAL_S: Final = 1.0
LINE_INTERVAL_S: Final = 60.0
PATIENCE_S: Final = 90.0
"""How long a heartbeat may pause, or a file on a network stay unreadable."""
KILLED_EXIT: Final = 137
"""What a shell gives for a program that was killed (128 + SIGKILL)."""
INTERRUPTED_EXIT: Final = 130


def follow(look: Callable[[], Answer], output: Output, interval_s: float | None) -> int:
    """Show what `look` finds until the run has ended; the exit code is the run's."""
    default_s = TERMINAL_INTERVAL_S if output.can_redraw else LINE_INTERVAL_S
    answers = looks(look, interval_s or default_s)
    try:
        if output.as_json:
            answer = _each(answers, output.json)
        elif output.can_redraw:
            answer = _redrawn(answers, output)
        else:
            answer = _lines(answers, output)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    return exit_code_of(answer)


def looks(
    look: Callable[[], Answer],
    interval_s: float,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Answer]:
    """What `look` finds, each `interval_s`; the last answer is of a run that has ended.

    Raises DataError where the first look fails, or all of them for `PATIENCE_S`.
    """
    answer = look()
    heartbeat, seen_at = answer["updated_at"], now()
    heard_at: float | None = None
    while True:
        if answer["updated_at"] != heartbeat:
            heartbeat, heard_at = answer["updated_at"], now()
        is_foreign = answer["host"] != socket.gethostname()
        is_heard = heard_at is not None and now() - heard_at < PATIENCE_S
        if answer["state"] == "killed" and is_foreign and is_heard:
            answer = {**answer, "state": "running"}
        yield answer
        if answer["state"] != "running":
            return
        sleep(interval_s)
        try:
            answer, seen_at = look(), now()
        except DataError:
            if now() - seen_at >= PATIENCE_S:
                raise


def exit_code_of(answer: Answer) -> int:
    """The exit code of the run as far as it has left one."""
    code = answer["exit_code"]
    if code is not None:
        return int(code)
    return {"done": 0, "killed": KILLED_EXIT}.get(answer["state"], 1)


def line_of(answer: Answer) -> str:
    """A live run on one line."""
    from batchgen.cli.status import rows_in_words
    from batchgen.monitor.progress import duration

    details = [f"{answer['phase']}: {rows_in_words(answer)} rows"]
    if answer["rows_failed"]:
        details.append(f"{answer['rows_failed']:,} failed")
    if answer["output_tokens_per_s"] is not None:
        details.append(f"{answer['output_tokens_per_s']:,.0f} output tokens/s")
    if answer["eta_s"] is not None:
        details.append(f"ETA {duration(answer['eta_s'])}")
    if answer["last_completion_age_s"] is not None:
        details.append(f"last completion {answer['last_completion_age_s']:,.0f} s ago")
    return f"{duration(answer['elapsed_s'] or 0)} {'; '.join(details)}"


def _each(answers: Iterator[Answer], show: Callable[[Answer], None]) -> Answer:
    """Show each answer; the last one."""
    latest: Answer = {}
    for latest in answers:
        show(latest)
    return latest


def _redrawn(answers: Iterator[Answer], output: Output) -> Answer:
    from batchgen.cli.status import status_fields

    with output.redrawn() as draw:
        return _each(answers, lambda answer: draw(status_fields(answer)))


def _lines(answers: Iterator[Answer], output: Output) -> Answer:
    from batchgen.cli.status import status_fields

    def show(answer: Answer) -> None:
        if answer["state"] == "running":
            output.text(line_of(answer))
        else:
            output.fields(status_fields(answer))

    return _each(answers, show)
