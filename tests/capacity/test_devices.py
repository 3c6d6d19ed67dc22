"""The table of devices: found by name or by what the driver says, each with a source."""

from pathlib import Path

import pytest

from batchgen.capacity.devices import DEVICES, device_of_driver, find_device

WANTED = ["A100", "H100", "H200", "B200", "L4", "L40S", "MI300X", "RTX 4090"]


@pytest.mark.parametrize("name", WANTED)
def test_the_usual_devices_are_there(name):
    device = find_device(name)
    assert device.name == name
    assert device.source.startswith("https://")


@pytest.mark.parametrize("name", ["rtx4090", "RTX-4090", "rtx_4090", "Rtx 4090"])
def test_spelling_does_not_matter(name):
    assert find_device(name).name == "RTX 4090"


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ],
)
def test_the_driver_s_name_is_known(driver, name):
    assert device_of_driver(driver).name == name


@pytest.mark.parametrize(
    "driver", ["NVIDIA L40", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100 PCIe", "Tesla T4"]
)
def test_a_similar_device_is_not_taken_for_it(driver):
    assert device_of_driver(driver) is None


def test_an_unknown_name_finds_nothing():
    assert find_device("H1000") is None


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("H100", "bfloat16", 989),
        ("H100", "fp8", 1979),
        ("H100", "float32", 67),
        ("A100", "float16", 312),
        ("A100", "fp8", 312),
        ("H100", "fp4", 989),
        ("B200", "fp4", 9000),
    ],
)
def test_a_format_that_the_device_lacks_is_multiplied_in_16_bits(name, dtype, tflops):
    assert find_device(name).rates(dtype).matmul_flops_per_s == tflops * 1e12


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_numbers_are_those_of_an_accelerator(device):
    assert 20e9 <= device.memory_bytes <= 300e9
    assert 0.2e12 <= device.memory_bytes_per_s <= 10e12
    assert 100 <= device.tflops["16 bits"] <= 3000
    assert device.tflops["float32"] < device.tflops["16 bits"]
    assert device.name in device.rates("bfloat16").source


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_the_table_in_the_docs_is_that_of_the_program(device):
    page = (Path(__file__).parents[2] / "docs/capacity.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| {device.name} |"))
    assert f"{device.memory_bytes / 1e9:g} GB" in row
    assert f"{device.memory_bytes_per_s / 1e12:g} TB/s" in row
    assert f"{device.tflops['16 bits']:,g} TFLOP/s" in row
    assert device.source in row
