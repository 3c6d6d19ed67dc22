import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

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
