"""The log file holds every sentence with its time, and tracebacks."""

import json
import logging
import re
from pathlib import Path

import pytest

from batchgen.monitor.logs import log_to, save_traceback


def fail():
    raise ValueError("broken\nin two lines")


def log_a_failure(path, log_format):
    with log_to(path, log_format=log_format) as logger:
        logger.info("started")
        try:
            fail()
        except ValueError:
            logger.exception("it failed")
    return path.read_text()


def test_text_lines_hold_time_level_and_traceback(tmp_path):
    text = log_a_failure(tmp_path / "log", "text")
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO started\n", text)
    assert "Traceback" in text
    assert "ValueError: broken" in text


def test_json_lines_hold_one_object_each(tmp_path):
    started, failed = map(json.loads, log_a_failure(tmp_path / "log", "json").splitlines())
    assert (started["level"], started["message"]) == ("info", "started")
    assert "ValueError: broken" in failed["traceback"]


def test_json_lines_name_the_run(tmp_path):
    with log_to(tmp_path / "log", log_format="json", run_id="r1") as logger:
        logger.info("started")
    (entry,) = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (entry["run_id"], set(entry)) == ("r1", {"time", "level", "message", "run_id"})


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_secrets_are_masked_in_messages_and_tracebacks(tmp_path, log_format):
    with log_to(tmp_path / "log", log_format=log_format) as logger:
        logger.info("reading s3://me:hunter2@bucket/x")
        try:
            raise ValueError("https://host/x?token=hunter2")
        except ValueError:
            logger.exception("it failed")
    text = (tmp_path / "log").read_text()
    assert "hunter2" not in text
    assert "s3://***@bucket/x" in text
    assert "token=***" in text


def test_a_second_run_appends(tmp_path):
    log_a_failure(tmp_path / "log", "text")
    assert log_a_failure(tmp_path / "log", "text").count("INFO started") == 2


def test_a_message_with_line_breaks_stays_one_line(tmp_path):
    with log_to(tmp_path / "log") as logger:
        logger.info("a\nb")
    assert (tmp_path / "log").read_text().count("\n") == 1


def test_an_exception_on_its_way_out_is_logged(tmp_path):
    with pytest.raises(ValueError, match="broken"), log_to(tmp_path / "log"):
        fail()
    assert "in fail" in (tmp_path / "log").read_text()


def test_a_full_disk_costs_log_lines_and_nothing_else(capsys):
    with log_to(Path("/dev/full")) as logger:
        logger.info("lost")
    assert capsys.readouterr() == ("", "")


def test_the_logger_is_left_as_it_was(tmp_path):
    before = logging.getLogger("batchgen").level
    log_a_failure(tmp_path / "log", "text")
    logger = logging.getLogger("batchgen")
    assert (logger.level, logger.handlers, logger.propagate) == (before, [], True)


def test_a_traceback_is_saved_whole(tmp_path):
    with pytest.raises(ValueError, match="broken") as caught:
        fail()
    path = save_traceback(caught.value, tmp_path)
    assert path.parent == tmp_path
    assert "in fail" in path.read_text()


def test_a_saved_traceback_holds_no_secret(tmp_path):
    path = save_traceback(ValueError("s3://me:hunter2@bucket"), tmp_path)
    assert "hunter2" not in path.read_text()
