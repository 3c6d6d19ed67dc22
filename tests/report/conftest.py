"""Run directories to report on, made by real runs of the simulated engine on its own clock."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from batchgen import run_job
from batchgen.config.loading import load_job
from batchgen.report.build import build_report
from batchgen.report.records import Report
from batchgen.run.options import RunOptions

HOSTILE = (
    "<script>document.title='owned'</script></style></script></pre>{{ 7*7 }}{% raw %}"
    "<img src=x onerror=alert(1)>\x1b[2J\x1b]0;owned\x07\u202edoohskcab\u2066"
)


@dataclass
class Place:
    """A folder with input, a job and its output."""

    folder: Path
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def write(self, rows: list[dict[str, Any]], shard: str = "a.jsonl") -> None:
        path = self.folder / "in" / shard
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def job(self) -> Path:
        job: dict[str, Any] = {
            "name": "nightly",
            "input": {"paths": [str(self.folder / "in")]},
            "prompt": {"column": "prompt"},
            "model": {
                "engine": "simulated",
                "max_num_seqs": 8,
                "max_model_len": 64,
                "extra": {"clock": "simulated", "reply_sigma": 0.8},
            },
            "sampling": {"max_tokens": 30, "temperature": 0.0},
            "batch": {"size": 10},
            "output": {"path": str(self.out), "rows_per_part": 25},
            "errors": {"max_failed": "100%", "stop_at": None},
        }
        for section, values in self.sections.items():
            job[section] = {**job[section], **values} if isinstance(values, dict) else values
        path = self.folder / "job.yaml"
        path.write_text(json.dumps(job))
        return path

    def run(self, *overrides: str, **options: Any) -> None:
        run_job(load_job(self.job(), overrides), RunOptions(**options))

    def killed(self, after_rows: int) -> None:
        """A run in a process of its own, which ends when so many rows have finished."""
        override = f"model.extra.faults={{kill_process_after_rows: {after_rows}}}"
        code = subprocess.run(
            [sys.executable, "-m", "batchgen", "run", str(self.job()), "-q", "-s", override]
        ).returncode
        assert code == -9

    def report(self, **options: Any) -> Report:
        return build_report(self.out, **options)

    def files(self) -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in self.out.rglob("*")}


def prompts(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": number, "prompt": f"shared words at the start, then number {number}"}
        for number in range(start, start + count)
    ]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty place."""
    return Place(tmp_path)


@pytest.fixture(scope="session")
def make_prompts() -> Callable[..., list[dict[str, Any]]]:
    return prompts


@pytest.fixture(scope="session")
def hostile() -> str:
    """Text that would do harm where it is not escaped."""
    return HOSTILE


@pytest.fixture(scope="session")
def two_nights(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """120 rows, some failed, some equal; then a second run with half the slots on 110 more."""
    place = Place(tmp_path_factory.mktemp("two-nights"))
    rows = prompts(120)
    rows[3]["prompt"] = rows[70]["prompt"] = None
    rows[4]["prompt"] = "word " * 100
    for number in range(50, 60):
        rows[number]["prompt"] = rows[49]["prompt"]
    script = {f"a.jsonl:{number}": {"fault": "row_error"} for number in (10, 20, 30, 110, 115)}
    place.sections["model"] = {
        "extra": {"clock": "simulated", "reply_sigma": 0.8, "script": script}
    }
    place.write(rows)
    place.run()
    place.write(prompts(110, 1000), "b.jsonl")
    place.run("model.max_num_seqs=2")
    return place


@pytest.fixture(scope="session")
def two_nights_report(two_nights: Place) -> Report:
    return two_nights.report(price_per_hour=2.0)


@pytest.fixture(scope="session")
def hostile_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A run in which every text that can be hostile is: names, prompts, outputs, errors, model."""
    place = Place(tmp_path_factory.mktemp("hostile"))
    shard = "<b>{{x}}\u202e&amp;.jsonl"
    place.write([*({"prompt": f"{HOSTILE} {n}"} for n in range(12)), {"prompt": None}], shard)
    script = {
        f"{shard}:1": {"reply": HOSTILE},
        f"{shard}:2": {"reply": HOSTILE, "finish_reason": "repetition"},
        f"{shard}:3": {"fault": "row_error"},
    }
    place.sections["name"] = HOSTILE  # type: ignore[assignment]
    place.sections["model"] = {
        "name": HOSTILE,
        "extra": {"clock": "simulated", "script": script},
    }
    place.run()
    (place.out / "compare.json").write_text(
        json.dumps(
            {
                "kind": "compare",
                "ways": [{"name": HOSTILE, "rows_per_s": 1.0, HOSTILE: 1}],
                "notes": [HOSTILE],
                "created_at": HOSTILE,
            }
        )
    )
    return place
