"""The whole run on a GPU, with the settings that batchgen chooses there."""

import json
from pathlib import Path

import pytest

from batchgen import read_batches, read_outputs, run_job
from batchgen.config.loading import load_job

HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="this machine has no NVIDIA GPU")
def test_a_job_runs_on_a_gpu_in_throughput_mode(tmp_path, tiny_model_dir, write_jsonl):
    shard = write_jsonl("in/a.jsonl", [{"text": f"number {row}"} for row in range(500)])
    job = {
        "input": {"paths": [str(shard)]},
        "prompt": {"messages": [{"role": "user", "content": "Say {{ text }}"}]},
        "model": {"name": str(tiny_model_dir), "max_model_len": 256},
        "sampling": {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True},
        "output": {"path": str(tmp_path / "out")},
    }
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(job))
    summary = run_job(load_job(path))
    assert summary.num_ok == 500
    assert summary.engine is not None
    assert any("performance_mode" in note for note in summary.engine["settings"]["chosen"])
    assert read_outputs(tmp_path / "out")["num_output_tokens"].tolist() == [16] * 500
    assert read_batches(tmp_path / "out")["num_rows"].sum() == 500
