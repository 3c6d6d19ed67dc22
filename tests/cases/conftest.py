"""Each test of a case gets a folder of its own, and both feeds unless the case is about one."""

from pathlib import Path

import pytest
from cases.harness import Case, shared_job


@pytest.fixture(params=["generate", "continuous"])
def feed(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def case(feed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """The job that all cases share; a test changes what its case lists."""
    monkeypatch.chdir(tmp_path)
    return Case(tmp_path, shared_job(feed))
