"""What vLLM does to the process around it, and how that is kept in bounds.

It prints banners to stdout, which is for data; it warns of things that nobody can change, on the
terminal; and it starts processes that may stay behind. Nothing here imports vllm.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence

import psutil


class _IntoOwnLog(logging.Handler):
    """Passes vLLM's log records to batchgen's log; errors also where that has no file."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hand one record over."""
        target = logging.getLogger("batchgen.vllm")
        if target.hasHandlers() or record.levelno >= logging.ERROR:
            target.handle(record)


def take_in_logging() -> None:
    """Lead warnings of vLLM, in this process, into batchgen's log."""
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
    logger = logging.getLogger("vllm")
    if not any(isinstance(handler, _IntoOwnLog) for handler in logger.handlers):
        logger.addHandler(_IntoOwnLog())
    logger.setLevel(logging.WARNING)
    logger.propagate = False


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Let everything written to file descriptor 1 meanwhile, by child processes too, go to 2."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def engine_processes() -> list[psutil.Process]:
    """Processes that vLLM has started below this one, known by the titles that it gives them."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if any(word.startswith("VLLM::") for word in _command(process))
    ]


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def end_processes(processes: Sequence[psutil.Process]) -> None:
    """Give processes that are to end a second, then kill those that do not."""
    _, alive = psutil.wait_procs(processes, timeout=1)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5)
