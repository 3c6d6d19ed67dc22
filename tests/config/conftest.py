from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from batchgen.config.loading import load_job
from batchgen.config.models import JobConfig
from batchgen.errors import JobFileError

MINIMAL = {
    "input": {"paths": ["data/*.jsonl"]},
    "prompt": {"template": "Summarize: {{ text }}"},
    "model": {"name": "models/tiny"},
    "output": {"path": "runs/x"},
}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a job file of this text into the working directory; its name."""
    monkeypatch.chdir(tmp_path)

    def write_text(text: str, name: str = "job.yaml") -> str:
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write_text


@pytest.fixture
def load(write: Callable[[str], str]) -> Callable[..., JobConfig]:
    """Loads a minimal job with some sections replaced by these."""

    def load_sections(*overrides: str, **sections: object) -> JobConfig:
        return load_job(write(yaml.safe_dump(MINIMAL | sections)), overrides)

    return load_sections


@pytest.fixture
def problems(write: Callable[[str], str]) -> Callable[..., list[str]]:
    """The problems of a job file of this text."""

    def problems_of(text: str, *overrides: str) -> list[str]:
        with pytest.raises(JobFileError) as caught:
            load_job(write(text), overrides)
        return list(caught.value.problems)

    return problems_of


@pytest.fixture
def section_problems(load: Callable[..., JobConfig]) -> Callable[..., list[str]]:
    """The problems of a minimal job with some sections replaced, without their places."""

    def problems_of(**sections: object) -> list[str]:
        with pytest.raises(JobFileError) as caught:
            load(**sections)
        return [problem.split(": ", 1)[1] for problem in caught.value.problems]

    return problems_of
