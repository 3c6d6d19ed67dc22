"""The job that all cases share, the ways to run it, and what has to hold afterwards."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from cases import inputs
from typer.testing import CliRunner

import batchgen
from batchgen.cli.app import app
from batchgen.records import ERROR_TYPES

SCRIPT = Path(sys.executable).with_name("batchgen")
FROM_ENGINE = {"engine_error", "engine_crash", "timeout"}
Key = tuple[str, int]


@dataclass(frozen=True)
class Result:
    """One execution of the job, from outside."""

    exit_code: int
    stdout: str
    stderr: str
    received: list[Key]
    """Rows that reached the engine, in the order of arrival."""
    created_engine: bool

    @property
    def summary(self) -> dict[str, Any]:
        """The answer of `run --json`."""
        answer: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return answer


@dataclass
class Case:
    """A case in a folder of its own, which is the working directory: `in/` to `out/`."""

    folder: Path
    job: dict[str, Any]
    script: Callable[[], dict[str, dict[str, Any]]] = field(init=False)
    """What the simulated engine is told about single rows."""
    num_runs: int = 0

    def __post_init__(self) -> None:
        self.input.mkdir()
        self.script = lambda: inputs.directions(self.input)

    @property
    def input(self) -> Path:
        return self.folder / "in"

    @property
    def output(self) -> Path:
        return self.folder / self.job["output"]["path"]

    @property
    def extra(self) -> dict[str, Any]:
        """Options of the simulated engine."""
        options: dict[str, Any] = self.job["model"]["extra"]
        return options

    def write_job(self) -> Path:
        """The job file, and a new record of what reaches the engine."""
        self.num_runs += 1
        if self.job["model"].get("engine") == "simulated":
            (self.folder / "script.json").write_text(json.dumps(self.script()))
            self.extra["script"] = "script.json"
            self.extra["record"] = self.record.name
        (self.folder / "job.yaml").write_text(yaml.safe_dump(self.job, sort_keys=False))
        return self.folder / "job.yaml"

    @property
    def record(self) -> Path:
        return self.folder / f"received-{self.num_runs}.jsonl"

    def run(self, *args: str) -> Result:
        """`batchgen run job.yaml --json`, in this process."""
        self.write_job()
        result = CliRunner().invoke(app, ["run", "job.yaml", "--json", *args])
        return self._result(result.exit_code, result.stdout, result.stderr)

    def process(self, *args: str, **environment: str) -> Result:
        """The same in a process of its own, which may be killed."""
        self.write_job()
        done = subprocess.run(
            [SCRIPT, "run", "job.yaml", "--json", *args],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )
        return self._result(done.returncode, done.stdout, done.stderr)

    def check(self, *args: str) -> Result:
        """`batchgen check job.yaml --json`."""
        self.write_job()
        result = CliRunner().invoke(app, ["check", "job.yaml", "--json", *args])
        return self._result(result.exit_code, result.stdout, result.stderr)

    def check_for_people(self) -> Result:
        """`batchgen check job.yaml`."""
        self.write_job()
        result = CliRunner().invoke(app, ["check", "job.yaml"])
        return self._result(result.exit_code, result.stdout, result.stderr)

    def _result(self, exit_code: int, stdout: str, stderr: str) -> Result:
        return Result(exit_code, stdout, stderr, self.received(), self.record.exists())

    def received(self, *numbers: int) -> list[Key]:
        """What reached the engine in these runs (default: in the last); probes are no rows."""
        found: list[Key] = []
        for number in numbers or (self.num_runs,):
            path = self.folder / f"received-{number}.jsonl"
            text = path.read_text() if path.exists() else ""
            # A kill may leave the last line torn; it is no request that was received.
            lines = text[: text.rfind("\n") + 1].splitlines()
            requests = [json.loads(line) for line in lines]
            found += [(line["shard"], line["row"]) for line in requests if line["shard"] != "probe"]
        return found

    def outputs(self) -> pd.DataFrame:
        """All output rows, in the order of the parts."""
        return batchgen.read_outputs(self.output)

    def batches(self) -> pd.DataFrame:
        """All batch records."""
        return batchgen.read_batches(self.output)

    def manifest(self) -> dict[str, Any]:
        """`manifest.json`."""
        values: dict[str, Any] = json.loads((self.output / "manifest.json").read_bytes())
        return values

    def written(self) -> dict[str, bytes]:
        """Every file of the output directory, with its content; lock, progress and log are none."""
        files = (path for path in self.output.rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.output)): path.read_bytes()
            for path in files
            if path.name not in ("lock", "progress.json", "log")
        }

    def input_rows(self) -> dict[Key, dict[str, Any]]:
        """The input rows by (shard, row), in input order."""
        return {
            (shard.name, number): row
            for shard in sorted(self.input.iterdir())
            for number, row in enumerate(inputs.read_rows(shard))
        }

    def assert_sound(self, keys: Iterable[Key] | None = None) -> pd.DataFrame:
        """What holds after every finished case; the outputs, by (shard, row)."""
        outputs = self.outputs()
        expected = list(self.input_rows() if keys is None else keys)
        assert list(zip(outputs["shard"], outputs["row"], strict=True)) == expected
        proof = CliRunner().invoke(app, ["verify", self.job["output"]["path"], "--json"])
        assert proof.exit_code == 0, proof.stderr
        assert json.loads(proof.stdout.splitlines()[-1])["problems"] == []
        failed = outputs["error_type"].notna()
        bad = outputs[failed]
        assert bad["error_type"].isin(list(ERROR_TYPES)).all()
        assert bad["error"].str.len().gt(0).all()
        assert bad[["output", "finish_reason"]].isna().all(axis=None)
        assert outputs[~failed][["output", "finish_reason"]].notna().all(axis=None)
        assert outputs[~failed]["error"].isna().all()
        self._assert_own_texts(outputs[~failed], expected)
        refused = bad[~bad["error_type"].isin(FROM_ENGINE)]
        reached = self.received(*range(1, self.num_runs + 1))
        assert not set(zip(refused["shard"], refused["row"], strict=True)) & set(reached)
        return outputs.set_index(["shard", "row"])

    def _assert_own_texts(self, good: pd.DataFrame, keys: list[Key]) -> None:
        """A completion that was not scripted begins with the prompt of its own row."""
        rows = self.input_rows()
        if self.job["prompt"].get("column") != "prompt" or list(rows) != keys:
            return
        for shard, row, text in zip(good["shard"], good["row"], good["output"], strict=True):
            if isinstance(text, str) and text.startswith("Reply to: "):
                named = f"Reply to: {rows[shard, row]['prompt']}".rstrip()
                assert text[: len(named)] == named[: len(text)]

    def assert_finished(self, result: Result, exit_code: int) -> pd.DataFrame:
        """A sound output, and the same exit code again from a run that finds nothing to do."""
        assert result.exit_code == exit_code, result.stderr
        outputs = self.assert_sound()
        again = self.run()
        assert (again.exit_code, again.created_engine) == (exit_code, False), again.stderr
        return outputs

    def completions_alone(self, prompts: list[str]) -> list[str]:
        """What these prompts get in a job that holds nothing else."""
        folder = self.folder / "alone"
        folder.mkdir()
        inputs.jsonl(folder / "rows.jsonl", [{"prompt": prompt} for prompt in prompts])
        job = {**self.job, "input": {"paths": ["alone"]}, "output": {"path": "out-alone"}}
        job["prompt"] = {"column": "prompt"}
        job["sampling"] = {"max_tokens": 16, "temperature": 0.0}
        job["model"] = {**job["model"], "extra": {"clock": "simulated"}}
        (self.folder / "alone.yaml").write_text(yaml.safe_dump(job))
        summary = batchgen.run_job(batchgen.load_job("alone.yaml"))
        texts: list[str] = batchgen.read_outputs(summary.output_path)["output"].tolist()
        return texts


def shared_job(feed: str) -> dict[str, Any]:
    """What a case does not list."""
    return {
        "input": {"paths": ["in"]},
        "prompt": {"column": "prompt", "on_overlong": "error"},
        "model": {"engine": "simulated", "max_model_len": 64, "extra": {"clock": "simulated"}},
        "sampling": {"max_tokens": 16, "temperature": 0.0},
        "batch": {"size": 8, "feed": feed, "dedupe": False},
        "output": {"path": "out"},
        "errors": {"max_failed": 0, "stop_at": None},
    }


def types_of(outputs: pd.DataFrame) -> Mapping[Key, str]:
    """`error_type` of each row, "ok" where there is none."""
    types: dict[Key, str] = outputs["error_type"].fillna("ok").to_dict()
    return types
