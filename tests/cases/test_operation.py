"""A nightly job: nothing new most nights, nobody at a terminal, ids that repeat."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cases import inputs
from cases.harness import SCRIPT, Case

ENGINE_MODULES = ("vllm", "torch", "transformers", "tokenizers", "batchgen.engine.simulated")
LIST_MODULES = """
import sys
from batchgen.cli.app import app
try:
    app(["run", "job.yaml"])
finally:
    print(*sys.modules, file=sys.stderr)
"""


def x1_finished(case: Case) -> None:
    inputs.x1(case.input)
    assert case.run().exit_code == 0


def stamps(case: Case) -> dict[str, tuple[bytes, int]]:
    """Content and modification time of each file beside the manifest."""
    files = (path for path in case.output.rglob("*") if path.is_file())
    return {
        str(path.relative_to(case.output)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in files
        if path.name not in ("manifest.json", "lock", "log")
    }


def test_x1_a_night_without_news_touches_nothing(case: Case) -> None:
    x1_finished(case)
    before, manifest = stamps(case), case.manifest()
    assert {Path(name).parts[0] for name in before} >= {"outputs", "batches", "_SUCCESS"}
    result = case.run()
    assert (result.exit_code, result.created_engine) == (0, False)
    assert result.summary["nothing_new"] is True
    assert stamps(case) == before
    changed = {name for name, value in case.manifest().items() if manifest[name] != value}
    assert changed <= {"checked_at"}


@pytest.mark.parametrize("feed", ["continuous"])
def test_x1_a_night_without_news_moves_the_time_of_the_last_check(case: Case) -> None:
    x1_finished(case)
    checked_at = case.manifest()["checked_at"]
    while case.manifest()["checked_at"] == checked_at:
        assert case.run().exit_code == 0


def test_x1_a_night_without_news_imports_no_engine(case: Case) -> None:
    x1_finished(case)
    done = subprocess.run([sys.executable, "-c", LIST_MODULES], capture_output=True, text=True)
    assert done.returncode == 0
    assert set(ENGINE_MODULES).isdisjoint(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("feed", ["continuous"])
def test_x1_a_night_without_news_takes_less_than_a_second(case: Case) -> None:
    x1_finished(case)
    case.write_job()
    began = time.perf_counter()
    process = subprocess.Popen([SCRIPT, "run", "job.yaml"], stdout=subprocess.DEVNULL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    seconds = time.perf_counter() - began
    # Others may keep the machine busy: time that it waited for a processor is not its own.
    waited_s = int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e9
    assert process.wait() == 0
    assert seconds - waited_s < 1


def test_x2_without_a_terminal_there_are_whole_lines_on_a_clock(case: Case) -> None:
    inputs.x2(case.input)
    # Few slots, so that rows have finished before row 12 enters.
    case.job["model"]["max_num_seqs"] = 4
    case.job["batch"]["window"] = 8
    case.write_job()
    with Path("stdout").open("wb") as stdout, Path("stderr").open("wb") as stderr:
        code = subprocess.call([SCRIPT, "run", "job.yaml"], stdout=stdout, stderr=stderr)
    data, text = Path("stdout").read_bytes(), Path("stderr").read_bytes().decode()
    assert code == 0, text
    assert len(case.assert_sound()) == 20
    lines = [line for line in text.splitlines() if line.startswith("progress")]
    assert [line.split()[1] for line in lines] == [f"00:0{n}:00:" for n in range(1, len(lines) + 1)]
    assert len(lines) >= 5
    ages = [int(age) for age in re.findall(r"last completion (\d+) s ago", text)]
    assert max(ages) > 200
    assert text.endswith("\n")
    assert not re.search("[\r\x1b]", text)
    assert not re.search(b"[\r\x1b]", data)
    assert b"progress" not in data
    assert b"last completion" not in data


def test_x4_equal_ids_are_legal(case: Case) -> None:
    inputs.x4(case.input)
    outputs = case.assert_finished(case.run(), 0)
    assert outputs["id"].tolist() == list("abac")
    for prompt, output in zip(outputs["prompt"], outputs["output"], strict=True):
        assert output.startswith(f"Reply to: {prompt}")


def test_x4_equal_ids_can_be_refused_before_the_engine(case: Case) -> None:
    inputs.x4(case.input)
    case.job["input"]["unique"] = "id"
    result = case.run()
    assert (result.exit_code, result.created_engine) == (4, False)
    assert "'a'" in result.stderr
    assert "rows.jsonl row 0 and rows.jsonl row 2" in result.stderr
    assert case.written() == {}
