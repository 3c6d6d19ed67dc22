"""What devices can do according to their data sheets: arithmetic, memory bandwidth, memory.

Rates are those without structured sparsity (data sheets of NVIDIA state the doubled ones first).
They are peaks that no program reaches, which is what a bound needs. A decimal GB of memory is what
the sheets state and a little less than what a driver reports.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from batchgen.capacity.rates import Rates

_KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {"bfloat16": "16 bits", "float16": "16 bits", "float32": "float32"}
)
_SHEETS: Final = "https://www.nvidia.com/en-us/data-center"


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator."""

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    tflops: Mapping[str, float]
    """10^12 operations a second of dense matrix products: `16 bits`, `float32`, and where the
    device has them `fp8`, `int8`, `fp4`."""
    source: str
    """Where the numbers stand."""
    driver_names: tuple[str, ...] = ()
    """What `nvidia-smi` calls it."""

    def rates(self, matmul_dtype: str) -> Rates:
        """The peak rates for products in this format; 16 bits where it has no faster way."""
        kind = _KINDS.get(matmul_dtype, matmul_dtype)
        if kind not in self.tflops:
            kind = "16 bits"
        return Rates(
            self.tflops[kind] * 1e12, self.memory_bytes_per_s, f"data sheet of {self.name}, {kind}"
        )


def _device(
    name: str,
    gigabytes: float,
    bytes_per_s: float,
    tflops: Mapping[str, float],
    source: str,
    *driver_names: str,
) -> Device:
    rates = MappingProxyType(dict(tflops))
    return Device(name, round(gigabytes * 1e9), bytes_per_s, rates, source, driver_names)


_A100: Final = {"16 bits": 312, "float32": 19.5, "int8": 624}
_HOPPER: Final = {"16 bits": 989, "float32": 67, "fp8": 1979, "int8": 1979}

DEVICES: Final[tuple[Device, ...]] = (
    _device(
        "A100",
        80,
        2.039e12,
        _A100,
        f"{_SHEETS}/a100/",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA A100-SXM-80GB",
        "NVIDIA A100 80GB PCIe",
    ),
    _device(
        "A100-40GB",
        40,
        1.555e12,
        _A100,
        f"{_SHEETS}/a100/",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A100-PCIE-40GB",
    ),
    _device("H100", 80, 3.35e12, _HOPPER, f"{_SHEETS}/h100/", "NVIDIA H100 80GB HBM3"),
    _device("H200", 141, 4.8e12, _HOPPER, f"{_SHEETS}/h200/", "NVIDIA H200"),
    _device(
        "B200",
        180,
        8e12,
        {"16 bits": 2250, "float32": 75, "fp8": 4500, "int8": 4500, "fp4": 9000},
        f"{_SHEETS}/hgx/",
        "NVIDIA B200",
    ),
    _device(
        "L4",
        24,
        0.3e12,
        {"16 bits": 121, "float32": 30.3, "fp8": 242, "int8": 242},
        f"{_SHEETS}/l4/",
        "NVIDIA L4",
    ),
    _device(
        "L40S",
        48,
        0.864e12,
        {"16 bits": 362, "float32": 91.6, "fp8": 733, "int8": 733},
        f"{_SHEETS}/l40s/",
        "NVIDIA L40S",
    ),
    _device(
        "MI300X",
        192,
        5.3e12,
        {"16 bits": 1307, "float32": 163, "fp8": 2615, "int8": 2615},
        "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html",
    ),
    _device(
        "RTX 4090",
        24,
        1.008e12,
        {"16 bits": 165, "float32": 82.6, "fp8": 330, "int8": 661},
        "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
        "NVIDIA GeForce RTX 4090",
    ),
)


def find_device(name: str) -> Device | None:
    """The device of this name; case, blanks and dashes do not matter.

    >>> find_device("rtx4090").name
    'RTX 4090'
    """
    wanted = _plain(name)
    return next((device for device in DEVICES if _plain(device.name) == wanted), None)


def device_of_driver(name: str) -> Device | None:
    """The device that `nvidia-smi` calls so.

    >>> device_of_driver("NVIDIA L40") is None
    True
    """
    return next((device for device in DEVICES if name in device.driver_names), None)


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "").replace("_", "")
