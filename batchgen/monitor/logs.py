"""The log file of a run, `.batchgen/log`: every sentence with its time, tracebacks included.

The terminal gets sentences, the log gets the reasons. Log records go through the logger
`batchgen` alone and only into this file; other libraries' loggers are left as they are. The file
rotates once at ten megabytes, so that a nightly job never fills a disk with it.
"""

import json
import logging
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

LOGGER_NAME: Final = "batchgen"
LOG_FORMATS: Final = ("text", "json")
MAX_LOG_BYTES: Final = 10 * 2**20


@contextmanager
def log_to(path: Path, *, log_format: str = "text") -> Iterator[logging.Logger]:
    """The logger `batchgen`, writing to `path` (appended) until the block ends.

    An exception that leaves the block is logged with its traceback on its way out.
    """
    handler = LogFile(
        path, maxBytes=MAX_LOG_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace"
    )
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
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
        file.write("".join(traceback.format_exception(exc)))
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
        message = record.getMessage().replace("\n", "\\n")
        line = f"{_moment(record)} {record.levelname} {message}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonLines(logging.Formatter):
    """One object a line: `time`, `level`, `message`, and `traceback` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as JSON."""
        entry = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
