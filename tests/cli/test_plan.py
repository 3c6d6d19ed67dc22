"""`batchgen plan` answers people and programs, quickly and without an engine."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchgen.cli.app import app

ROOT = Path(__file__).parents[2]
CONFIG = {
    "model_type": "opt",
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "ffn_dim": 20480,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 5120,
    "torch_dtype": "float16",
}


@pytest.fixture
def invoke():
    def run(*args):
        return CliRunner().invoke(app, ["plan", *map(str, args)], env={"COLUMNS": "100"})

    return run


@pytest.fixture
def job(tmp_path):
    """A job of 30 rows whose model is not here, and the config.json of one to plan for."""
    rows = [json.dumps({"text": "word " * (4 * number + 40)}) for number in range(30)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    (tmp_path / "opt.json").write_text(json.dumps(CONFIG))
    file = tmp_path / "job.yaml"
    file.write_text(
        f"input: {{paths: ['{tmp_path}/a.jsonl']}}\n"
        'prompt: {template: "Summarize: {{ text }}"}\n'
        "model: {name: missing/model}\n"
        "sampling: {max_tokens: 64}\n"
        f"output: {{path: {tmp_path}/out}}\n"
    )
    return file


@pytest.fixture
def asked(invoke, job):
    """Plan the job for OPT-13B, with more options."""

    def run(*args):
        return invoke(job, "--config", job.with_name("opt.json"), "--no-tokens", *args)

    return run


def test_the_answer_is_one_object(asked):
    result = asked("--device", "H100", "--price", "2.5", "--deadline", "8h", "--json")
    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()
    answer = json.loads(line)
    assert answer["kv_bytes_per_token"] == 819_200
    assert answer["weight_bytes"] == 25_706_946_560
    assert answer["max_concurrent_sequences"] > 0
    assert answer["lengths"] == "estimated from bytes"
    assert answer["cost_low"] > 0
    assert answer["replicas"] == 1
    assert result.stderr == ""


def test_every_key_is_documented(asked):
    answer = json.loads(asked("--device", "H100", "--json").stdout)
    page = (ROOT / "docs/json-answers.md").read_text()
    section = page.split("## batchgen plan\n")[1].split("\n## ")[0]
    assert set(answer) <= set(re.findall(r"`(\w+)`", section))


def test_people_get_fields_and_a_histogram(asked):
    result = asked("--device", "H100", "--price", "2.5")
    text = result.stdout
    assert "819,200 bytes a token (800 KiB; MHA, 16 bits)" in text
    assert "25.7 GB (float16, computed from config.json)" in text
    assert "estimated from bytes" in text
    assert "at most 64 tokens" in text
    assert "data sheet of H100" in text
    assert re.search(r"^ +\d+ - \d+ +\d+ +#+$", text, re.M)
    assert "at least" in text
    assert "an estimate" in text
    assert "\x1b" not in text


def test_memory_alone_tells_what_fits(asked):
    result = asked("--memory", "40GB")
    assert result.exit_code == 0
    assert "36.8 GB usable (92% of 40 GB)" in result.stdout
    assert "at once" in result.stdout
    assert "efficiency" not in result.stdout


@pytest.mark.parametrize("size", ["40", "40 gigabytes", "-1GB", "0GB"])
def test_a_size_that_is_none_is_exit_2(asked, size):
    result = asked("--memory", size)
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("args", "exit_code", "words"),
    [
        (("--device", "H1000"), 2, "did you mean 'H100'"),
        (("--device", "H100", "--deadline", "soon"), 2, "--deadline: 'soon'"),
        (("--device", "H100", "--deadline", "0h"), 2, "give a duration above 0"),
        (("--memory", "1KB"), 2, "MB, GB, KiB"),
        (("--device", "H100", "--price", "inf"), 2, "--price"),
        (("--device", "H100", "--price", "1e400"), 2, "--price"),
        (("--device", "H100", "--price", "nan"), 2, "--price"),
        (("--device", "H100", "-s", "sampling.max_tokens=-1"), 3, "sampling.max_tokens"),
        (("--device", "H100", "-s", "input.paths=missing.jsonl"), 4, "missing.jsonl"),
    ],
)
def test_a_mistake_is_a_line_and_an_exit_code(asked, args, exit_code, words):
    result = asked(*args)
    assert result.exit_code == exit_code
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_a_config_that_is_no_json_is_exit_4(invoke, job):
    job.with_name("opt.json").write_text("{")
    result = invoke(job, "--config", job.with_name("opt.json"))
    assert result.exit_code == 4
    assert "cannot be read as a model's config.json" in result.stderr


def test_a_model_that_is_not_here_is_exit_3(invoke, job, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = invoke(job, "--device", "H100")
    assert result.exit_code == 3
    assert "--config" in result.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_key_value_heads": 7}, "40 heads cannot share 7 KV heads"),
        ({"quantization_config": "x"}, "quantization_config: must be an object"),
        ({"hidden_size": 10**400}, "hidden_size: is larger than any model's"),
        ({"vocab_size": 2**53 + 1}, "vocab_size: is larger than any model's"),
    ],
)
def test_a_config_that_no_model_has_is_exit_4(invoke, job, change, words):
    job.with_name("opt.json").write_text(json.dumps({**CONFIG, **change}))
    result = invoke(job, "--config", job.with_name("opt.json"), "--no-tokens", "--memory", "80GB")
    assert result.exit_code == 4
    assert words in result.stderr


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("gpu_memory_utilization=5", "must be above 0 and at most 1, is 5"),
        ("gpu_memory_utilization=-1", "must be above 0 and at most 1, is -1"),
        ("tensor_parallel_size=0", "must be 1 or more, is 0"),
        ("tensor_parallel_size=3", "40 attention heads (1, 2, 4, 5, 8, 10, 20, 40), is 3"),
        ("block_size=7", "must be a multiple of 16 on a GPU, is 7"),
    ],
)
def test_an_engine_argument_that_cannot_be_is_exit_3(asked, override, words):
    result = asked("--device", "H100", "-s", f"model.extra.{override}")
    assert result.exit_code == 3
    assert f"model.extra.{override.partition('=')[0]}" in result.stderr
    assert words in result.stderr


def test_slots_that_leave_no_room_are_named(asked):
    result = asked("--device", "L4", "-s", "model.max_num_seqs=100000000")
    assert "of workspace for 100,000,000 model.max_num_seqs leave no room" in result.stderr


def test_a_run_of_another_engine_is_named_and_not_used(invoke, asked, job):
    simulated = ("-s", "model.engine=simulated", "-s", "model.extra.clock=simulated")
    run = CliRunner().invoke(app, ["run", str(job), *simulated, "--limit", "5", "--no-report"])
    assert run.exit_code == 0
    assert (
        "out-limit-5: what this run measured is not used: --config"
        in asked("--device", "H100").stderr
    )
    model = job.parent / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    result = invoke(job, "-s", f"model.name={model}", "--device", "H100", "--no-tokens")
    assert "its engine was 'simulated', the job's is 'vllm'" in result.stderr


def test_what_does_not_fit_is_a_warning(asked):
    result = asked("--memory", "20GB")
    assert result.exit_code == 0
    assert "warning: 20 GB: 25.7 GB of weights leave no room" in result.stderr


def test_a_hostile_name_is_shown_and_not_obeyed(asked, job):
    (job.parent / "\x1b[2Jevil.json").write_text(json.dumps(CONFIG))
    result = CliRunner().invoke(
        app,
        ["plan", str(job), "--config", str(job.parent / "\x1b[2Jevil.json"), "--memory", "80GB"],
    )
    assert "\x1b" not in result.output


def test_no_engine_and_no_torch_is_loaded(job):
    code = (
        "import sys\n"
        "from batchgen.cli.app import app\n"
        "try:\n"
        "    app(sys.argv[1:])\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(*sys.modules)\n"
    )
    options = ("--config", str(job.with_name("opt.json")), "--no-tokens", "--device", "H100")
    process = subprocess.run(
        [sys.executable, "-c", code, "plan", str(job), *options],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in process.stdout.splitlines()[-1].split()}
    assert loaded.isdisjoint({"vllm", "torch", "transformers", "tokenizers", "pandas", "rich"})


@pytest.mark.slow
def test_the_cpu_of_this_machine_is_measured(invoke, job, tiny_model_dir, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = f"model.name={tiny_model_dir}"
    result = invoke(job, "-s", model, "-s", "model.max_model_len=1000", "--device", "cpu", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["device"] == "cpu"
    assert answer["matmul_flops_per_s"] > 0
    assert answer["rates_source"].startswith("measured here")
    assert answer["estimated_s_high"] > answer["at_least_s"] > 0
    assert answer["gpu_hours_high"] is None
    assert answer["kv_block_tokens"] == 128
    assert answer["lengths"] == f"counted with the tokenizer of {tiny_model_dir}"
