"""What `run` and `doctor` say about speed."""

import json
from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from batchgen.cli.app import app
from batchgen.cli.run import summary_fields
from batchgen.run.summary import RunSummary


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """A command, with a cache directory of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, list(args))


@pytest.fixture
def job(tmp_path):
    """A job whose feed leaves most slots free."""
    rows = (json.dumps({"prompt": f"row number {n}"}) + "\n" for n in range(40))
    (tmp_path / "docs.jsonl").write_text("".join(rows))
    (tmp_path / "job.yaml").write_text(
        "input: {paths: [docs.jsonl]}\n"
        "prompt: {column: prompt}\n"
        "model: {engine: simulated, max_num_seqs: 8, extra: {clock: simulated}}\n"
        "sampling: {temperature: 0.0}\n"
        "batch: {feed: sequential}\n"
        "output: {path: out}\n"
    )


@pytest.mark.usefixtures("job")
def test_a_run_names_its_limit_in_one_line_with_the_key_to_change(invoke):
    result = invoke("run", "job.yaml")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("limit ")]
    assert "the engine waits for rows" in line
    assert "batch.feed: continuous" in line
    assert "roofline" not in result.stdout


@pytest.mark.usefixtures("job")
def test_json_holds_every_verdict(invoke):
    answer = json.loads(invoke("run", "job.yaml", "--json").stdout.splitlines()[-1])
    assert [verdict["kind"] for verdict in answer["diagnosis"]] == ["feed"]
    assert answer["roofline_fraction"] is None


def test_the_roofline_stands_beside_the_time_that_was_taken():
    values = dict.fromkeys(RunSummary.__dataclass_fields__, 0) | {
        "failed_by_type": {},
        "finish_reasons": {},
        "num_invalid_json": None,
        "rows_per_s": None,
        "num_cached_tokens": None,
        "generate_s": 18.0,
        "roofline_s": 14.2,
        "roofline_fraction": 14.2 / 18,
        "roofline_source": "measured here, bfloat16, 2 threads: 1.9 TFLOP/s, 38 GB/s",
    }
    fields = dict(summary_fields(RunSummary(**values)))
    assert fields["roofline"] == (
        "at least 14.2 s for this work on this machine (measured here, bfloat16, 2 threads:"
        " 1.9 TFLOP/s, 38 GB/s), took 18.0 s: 0.79 of the roofline"
    )


def test_the_doctor_measures_only_when_asked(invoke, tmp_path):
    answer = json.loads(invoke("doctor", "--json").stdout.splitlines()[-1])
    assert answer["rates"] is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_doctor_keeps_what_it_measures(invoke, tmp_path):
    answer = json.loads(invoke("doctor", "--measure", "--json").stdout.splitlines()[-1])
    assert answer["rates"]["matmul_flops_per_s"] > 1e9
    assert (tmp_path / "cache" / "batchgen" / "rates.json").is_file()
