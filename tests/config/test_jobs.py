"""The job files that come with the project are jobs, and their inputs are there."""

from pathlib import Path

import pytest

from batchgen.config.loading import load_job
from batchgen.corpus.shards import find_shards

ROOT = Path(__file__).parents[2]
JOBS = sorted((ROOT / "jobs").glob("*.yaml"))


def test_there_are_jobs():
    assert {"quickstart.yaml", "summarize.yaml"} <= {path.name for path in JOBS}


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_a_job_of_the_project_validates_and_finds_its_shards(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    job = load_job(path)
    assert find_shards(job.input)
