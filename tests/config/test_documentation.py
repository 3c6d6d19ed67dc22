import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from batchgen.config.reference import job_file_markdown

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "module", ["amounts", "document", "interpolation", "locate", "masking", "operation"]
)
def test_examples_in_docstrings_hold(module):
    results = doctest.testmod(importlib.import_module(f"batchgen.config.{module}"))
    assert results.attempted
    assert not results.failed


def test_the_pages_made_from_the_code_are_current():
    run = subprocess.run(
        [sys.executable, "tools/make_docs.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    assert run.returncode == 0


def test_an_empty_list_is_shown_as_one():
    line = next(line for line in job_file_markdown().splitlines() if "`success_exit_codes`" in line)
    assert "| `[]` |" in line
