"""The whole command on real vLLM: a plain run, a killed run, a killed engine process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen import read_batches, read_outputs
from batchgen.run.verifying import verify_run

pytestmark = [pytest.mark.cpu, pytest.mark.timeout(280)]

WORDS = ["river", "stone", "cloud", "paper", "green", "quiet", "seven", "market", "winter", "lamp"]


def texts(count: int) -> list[str]:
    return [f"{number} " + " ".join(WORDS[number % 5 : number % 5 + 6]) for number in range(count)]


@pytest.fixture
def job(tmp_path: Path, tiny_model_dir: Path) -> Path:
    """A job of 400 rows in two shards, with a column of output lengths."""
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [
        {"id": number, "text": text, "length": 8 + 40 * (number % 7 == 0)}
        for number, text in enumerate(texts(400))
    ]
    pq.write_table(pa.Table.from_pylist(rows[:250]), folder / "a.parquet")
    lines = [json.dumps(row) for row in rows[250:]]
    lines[3] = '{"id": 253, "text": '
    (folder / "b.jsonl").write_text("\n".join(lines))
    path = tmp_path / "job.yaml"
    path.write_text(
        json.dumps(
            {
                "input": {"paths": [str(folder)]},
                "prompt": {"messages": [{"role": "user", "content": "Say {{ text }}"}]},
                "model": {
                    "name": str(tiny_model_dir),
                    "max_model_len": 256,
                    "max_num_seqs": 16,
                    "extra": {"kv_cache_memory_bytes": 64 * 2**20, "block_size": 32},
                },
                "sampling": {
                    "temperature": 0.0,
                    "ignore_eos": True,
                    "max_tokens": {"column": "length"},
                },
                "batch": {"size": 50},
                "output": {"path": str(tmp_path / "out"), "rows_per_part": 100},
                "errors": {"max_failed": 1},
            }
        )
    )
    return path


def start(job: Path, *arguments: str, **environment: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "batchgen", "run", str(job), "--json", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def finish(process: subprocess.Popen) -> dict:
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    return json.loads(stdout.splitlines()[-1])


def wait_for_rows(process: subprocess.Popen, out: Path) -> None:
    """Until the journal holds finished rows."""
    while process.poll() is None:
        if any(b'"rows"' in path.read_bytes() for path in out.glob(".batchgen/journal/*.log")):
            return
        time.sleep(0.01)
    raise AssertionError(f"the run ended early: {process.stderr.read()}")


def assert_complete(out: Path, num_rows: int = 400) -> None:
    frame = read_outputs(out)
    assert len(frame) == num_rows
    assert frame["row"].tolist() == [*range(250), *range(150)]
    assert frame["error_type"].value_counts().to_dict() == {"bad_json": 1}
    assert frame["num_output_tokens"].dropna().astype(int).tolist() == [
        int(length) for length in frame["length"].dropna()
    ]
    assert verify_run(out).problems == ()


def test_the_whole_command_on_real_vllm(job, tmp_path):
    summary = finish(start(job))
    assert summary["num_ok"] == 399
    assert summary["finish_reasons"] == {"length": 399}
    assert_complete(tmp_path / "out")
    batches = read_batches(tmp_path / "out")
    assert batches["num_rows"].sum() == 400
    assert batches["num_output_tokens"].sum() == summary["num_output_tokens"]
    assert (batches["ttft_s_p50"] > 0).all()
    assert (batches["num_running_mean"].iloc[:-1] > 8).all()
    assert (batches["num_steps"] > 0).all()
    assert summary["roofline_fraction"] > 0
    assert summary["roofline_source"].startswith("measured here")
    assert summary["diagnosis"]
    again = finish(start(job))
    assert again["nothing_new"]
    assert again["engine"] is None


def test_one_call_per_batch_gives_the_same_lengths(job, tmp_path):
    finish(start(job, "-s", "batch.feed=generate", "-s", "batch.order=input"))
    assert_complete(tmp_path / "out")
    batches = read_batches(tmp_path / "out")
    assert batches["num_rows"].tolist() == [50] * 8
    assert (batches["drain_s"] > 0).all()


def test_a_killed_run_is_continued_without_loss_or_doubles(job, tmp_path):
    process = start(job)
    wait_for_rows(process, tmp_path / "out")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    summary = finish(start(job))
    assert 0 < summary["rows_this_run"] < 400
    assert_complete(tmp_path / "out")


def test_a_killed_engine_process_is_replaced_and_no_row_blamed(job, tmp_path):
    process = start(job, VLLM_ENABLE_V1_MULTIPROCESSING="1")
    wait_for_rows(process, tmp_path / "out")
    cores = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "EngineCore" in " ".join(child.cmdline())
    ]
    assert cores
    cores[0].kill()
    summary = finish(process)
    assert summary["engine_restarts"] == 1
    assert_complete(tmp_path / "out")
    left = [p for p in psutil.process_iter() if str(job.parent) in " ".join(_command(p))]
    assert left == []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
