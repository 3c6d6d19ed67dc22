"""vLLM in processes of its own: a killed engine is noticed, and nothing outlives batchgen."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(400)]

SCRIPT = """
import json, os, signal, sys, time

def say(**facts):
    print(json.dumps(facts), flush=True)

def request(number):
    from batchgen.records import Request, RowKey, Sampling
    sampling = Sampling({"max_tokens": 200, "temperature": 0.0, "ignore_eos": True}, b"s")
    return Request(f"r{number}", [5, 6, 7 + number], "", sampling, None, RowKey("a", number))

def main():
    import psutil
    from batchgen.config.models import ModelConfig
    from batchgen.engine.clock import RealClock
    from batchgen.engine.vllm import VllmEngine
    from batchgen.errors import EngineDied

    model = ModelConfig(name=sys.argv[1], engine="vllm", max_model_len=256, max_num_seqs=16,
                        # vLLM's worker dies of bfloat16 on some CPUs with AMX, by itself.
                        extra={"kv_cache_memory_bytes": 67108864, "block_size": 32,
                               "dtype": "float32"})
    def start():
        began = time.monotonic()
        engine = VllmEngine(model, clock=RealClock())
        children = [p for p in psutil.Process().children(recursive=True)
                    if "VLLM::" in "".join(p.cmdline())]
        say(start_s=time.monotonic() - began, children=[p.pid for p in children],
            groups=[os.getpgid(p.pid) for p in children])
        return engine, children

    engine, children = start()
    for number in range(40):
        engine.add(request(number))
    engine.step()
    core = next(p for p in children if "EngineCore" in "".join(p.cmdline()))
    os.kill(core.pid, signal.SIGKILL)
    killed = time.monotonic()
    try:
        while True:
            engine.step()
    except EngineDied as death:
        say(noticed_s=time.monotonic() - killed, message=str(death))
    engine.close()
    say(left=[p.pid for p in children if p.is_running() and p.status() != "zombie"])

    engine, children = start()
    say(finished=len(engine.generate([request(number) for number in range(4)])))
    for number in range(40):
        engine.add(request(number))
    engine.step()
    say(ready=True)
    while True:
        time.sleep(1)

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def story(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process that starts an engine, kills it, starts another, and is killed itself."""
    folder = tmp_path_factory.mktemp("processes")
    script = folder / "engine.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = dict(os.environ, VLLM_ENABLE_V1_MULTIPROCESSING="1", OMP_NUM_THREADS="1")
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(script), str(tiny_model_dir)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        facts = read_facts(process.stdout)
        facts["batchgen_group"] = os.getpgid(process.pid)
    finally:
        process.kill()
        process.wait()
    facts["orphans_s"] = seconds_until(lambda: not alive(facts["children"]))
    for pid in alive(facts["children"]):
        os.kill(pid, signal.SIGKILL)
    return facts


def read_facts(stream: IO[bytes]) -> dict[str, Any]:
    """All facts that the process tells up to `ready`; it must print nothing else."""
    facts: dict[str, Any] = {}
    for line in stream:
        facts.update(json.loads(line))
        if "ready" in facts:
            return facts
    raise AssertionError(f"the process ended after telling {facts}")


def alive(pids: list[int]) -> list[int]:
    """Those of the processes that still run."""
    return [
        pid
        for pid in pids
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


def seconds_until(condition: Callable[[], bool], limit_s: float = 30.0) -> float:
    """Seconds until the condition holds, `limit_s` if it never does."""
    began = time.monotonic()
    while not condition() and time.monotonic() - began < limit_s:
        time.sleep(0.02)
    return time.monotonic() - began


def test_a_killed_engine_process_is_noticed_within_seconds(story: dict[str, Any]) -> None:
    assert story["noticed_s"] < 5
    assert story["message"].startswith("vLLM died")


def test_close_after_a_death_leaves_no_process(story: dict[str, Any]) -> None:
    assert story["left"] == []


def test_another_engine_starts_in_the_same_process(story: dict[str, Any]) -> None:
    assert story["finished"] == 4


def test_engine_processes_do_not_outlive_a_killed_batchgen(story: dict[str, Any]) -> None:
    assert story["children"]
    assert story["orphans_s"] < 10


def test_engine_processes_are_out_of_reach_of_the_terminal(story: dict[str, Any]) -> None:
    assert story["batchgen_group"] not in story["groups"]
