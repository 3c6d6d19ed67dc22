"""Rates are measured once by a process of their own, and a broken cache only costs time."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from batchgen.capacity.rates import known_rates, measured_rates
from batchgen.errors import EngineError, EngineNotInstalled

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
NO_TIME = {"timeout_s": 0.001}
"""A measurement with it fails; so whatever answers has not measured."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The rates of this machine, and the cache that holds them."""
    cache = tmp_path_factory.mktemp("rates") / "deep" / "rates.json"
    return measured_rates("float32", 1, budget_s=0.01, cache=cache), cache


@needs_torch
def test_both_rates_are_those_of_a_machine(measured):
    rates, _ = measured
    assert 1e9 < rates.matmul_flops_per_s < 1e15
    assert 1e8 < rates.memory_bytes_per_s < 1e13
    assert rates.source == "measured here, float32, 1 thread"


@needs_torch
def test_a_second_question_is_answered_from_the_cache(measured):
    rates, cache = measured
    assert measured_rates("float", 1, cache=cache, **NO_TIME) == rates
    assert known_rates("torch.float32", 1, cache=cache) == rates


@needs_torch
@pytest.mark.parametrize("other", [("bfloat16", 1), ("float32", 2), ("float32", None)])
def test_another_format_or_number_of_threads_is_another_question(measured, other):
    with pytest.raises(EngineError, match="not been measured yet"):
        known_rates(*other, cache=measured[1])


@needs_torch
def test_of_two_measurements_the_faster_rates_are_kept(measured, tmp_path):
    entries = json.loads(measured[1].read_text())
    (key,) = entries
    entries[key]["matmul_flops_per_s"] = 1e18
    entries[key]["memory_bytes_per_s"] = 1.0
    cache = tmp_path / "rates.json"
    cache.write_text(json.dumps(entries))
    rates = measured_rates("float32", 1, again=True, budget_s=0.01, cache=cache)
    assert rates.matmul_flops_per_s == 1e18
    assert rates.memory_bytes_per_s > 1e8


@needs_torch
@pytest.mark.parametrize(
    "text", ["{", "[]", '{"a": 1}', '{"a": {"matmul_flops_per_s": "fast"}}', "\udcff"]
)
def test_a_broken_cache_counts_as_empty(tmp_path, text):
    cache = tmp_path / "rates.json"
    cache.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(EngineError, match="not been measured yet"):
        known_rates("float32", 1, cache=cache)


@needs_torch
def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path):
    (tmp_path / "file").write_text("")
    rates = measured_rates("float32", 1, budget_s=0.01, cache=tmp_path / "file" / "rates.json")
    assert rates.memory_bytes_per_s > 0


@needs_torch
def test_a_measurement_that_takes_too_long_is_given_up(tmp_path):
    with pytest.raises(EngineError, match="could not be measured"):
        measured_rates("float32", 1, cache=tmp_path / "rates.json", **NO_TIME)


@needs_torch
def test_a_device_that_is_not_there_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(EngineError, match="could not be measured"):
        measured_rates("float32", 1, device="cuda", cache=tmp_path / "rates.json")


def test_a_format_that_cannot_be_measured_is_named(tmp_path):
    with pytest.raises(EngineError, match="'fp8' cannot be measured"):
        measured_rates("fp8", 1, cache=tmp_path / "rates.json")


def test_without_torch_the_message_names_the_way_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr("batchgen.capacity.rates._torch_version", lambda: None)
    with pytest.raises(EngineNotInstalled, match="doctor"):
        measured_rates("float32", 1, cache=tmp_path / "rates.json")


def test_measuring_leaves_torch_out_of_this_process():
    code = (
        "import sys; import batchgen.capacity.rates, batchgen.capacity.roofline\n"
        "assert not {'torch', 'numpy', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
