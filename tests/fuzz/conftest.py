"""The judge of `benchmarks/fuzz_inputs.py`, for inputs that Hypothesis makes up and shrinks."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fuzz_inputs.py"


@pytest.fixture(scope="session")
def fuzz_script() -> Path:
    """The script itself."""
    return SCRIPT


@pytest.fixture(scope="session")
def fuzz() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("fuzz_inputs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_inputs"] = module
    spec.loader.exec_module(module)
    return module
