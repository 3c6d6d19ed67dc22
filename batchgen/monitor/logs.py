"""The log file of a run, `.batchgen/log`: every sentence with its time, tracebacks included.

The terminal gets sentences, the log gets the reasons, and neither gets a secret. Log records go
through the logger `batchgen` alone and only into this file; other libraries' loggers are left as
they are. The file rotates once at ten megabytes, so that a nightly job never fills a disk with it.
"""

import logging
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from batchgen.config.masking import masked
from batchgen.monitor.console import json_line, utc_text

LOGGER_NAME: Final = "batchgen"
LOG_FORMATS: Final = ("text", "json")
MAX_LOG_BYTES: Final = 10 * 2**20


@contextmanager
def log_to(
    path: Path, *, log_format: str = "text", run_id: str | None = None
) -> Iterator[logging.Logger]:
    """The logger `batchgen`, writing to `path` (appended) until the block ends.

    `run_id` stands in every JSON line, so that the lines of one run can be told from others'.
    An exception that leaves the block is logged with its traceback on its way out.
    """
    handler = LogFile(
        path, maxBytes=MAX_LOG_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace"
    )
    handler.setFormatter(JsonLines(run_id) if log_format == "json" else TextLines())
    logger = logging.getLogger(LOGGER_NAME)
    old_level, old_propagate = logger.level, logger.propagate
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield logger
    except Exception as exc:
        logger.exception(type(exc).__name__)
        raise
    finally:
        logger.removeHandler(handler)
        logger.setLevel(old_level)
        logger.propagate = old_propagate
        handler.close()


def save_traceback(exc: BaseException, folder: Path | None = None) -> Path:
    """Write the traceback of an unexpected exception to a new file in `folder` (default: temp)."""
    with tempfile.NamedTemporaryFile(
        "w",
        prefix="batchgen-error-",
        suffix=".log",
        dir=folder,
        delete=False,
        encoding="utf-8",
        errors="backslashreplace",
    ) as file:
        file.write(masked("".join(traceback.format_exception(exc))))
    return Path(file.name)


class LogFile(RotatingFileHandler):
    """A log file that never ends a run, nor shows up in its messages, because its disk is full."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Lose the record; logging would print a traceback to the terminal."""

    def close(self) -> None:
        """Close the file, whether or not its last lines could be written."""
        with suppress(OSError):
            super().close()


class TextLines(logging.Formatter):
    """`2026-01-31T02:00:00Z INFO message`, a traceback below it where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One record; line breaks in the message are kept visible as `\\n`."""
        message = masked(record.getMessage()).replace("\n", "\\n")
        line = f"{utc_text(_moment(record))} {record.levelname} {message}"
        if record.exc_info:
            line += "\n" + masked(self.formatException(record.exc_info))
        return line


class JsonLines(logging.Formatter):
    """One object a line: `time`, `level`, `message`, `run_id`; `traceback` where there is one."""

    def __init__(self, run_id: str | None) -> None:
        super().__init__()
        self._run_id = run_id

    def format(self, record: logging.LogRecord) -> str:
        """One record as JSON."""
        fields = {}
        if record.exc_info:
            fields["traceback"] = masked(self.formatException(record.exc_info))
        level, moment = record.levelname.lower(), _moment(record)
        return json_line(level, record.getMessage(), self._run_id, moment=moment, fields=fields)


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
