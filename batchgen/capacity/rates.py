"""How fast a machine multiplies matrices and reads memory: the two rates under the roofline.

They are measured once and kept in the user's cache directory, under what they depend on: processor,
number format, threads, version of torch. The measurement is a process of its own (`measuring.py`)
that takes two or three seconds on a CPU. It should have the machine for itself: ask for it when no
engine runs.
"""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from batchgen.capacity.measuring import BUDGET_S
from batchgen.errors import EngineError, EngineNotInstalled

TIMEOUT_S: Final = 30.0
DTYPES: Final = {
    "float32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
}
"""Names that vLLM takes for a number format, and torch's own."""
MEASURED: Final = ("matmul_flops_per_s", "memory_bytes_per_s")


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine can do at most."""

    matmul_flops_per_s: float
    """Floating-point operations of matrix products; a multiplication and an addition are two."""
    memory_bytes_per_s: float
    """Bytes read from memory."""
    source: str
    """Where the numbers come from, in words: measured (dtype and threads), or a data sheet."""

    def __str__(self) -> str:
        flops, num_bytes = self.matmul_flops_per_s, self.memory_bytes_per_s
        return f"{self.source}: {flops / 1e12:.3g} TFLOP/s, {num_bytes / 1e9:.3g} GB/s"

    def times(self, num_devices: int) -> "Rates":
        """The rates of several such devices together, nothing lost between them."""
        if num_devices == 1:
            return self
        return Rates(
            self.matmul_flops_per_s * num_devices,
            self.memory_bytes_per_s * num_devices,
            f"{num_devices} x {self.source}",
        )


def measured_rates(
    dtype: str,
    num_threads: int | None,
    *,
    device: str = "cpu",
    cpus: Sequence[int] | None = None,
    again: bool = False,
    budget_s: float = BUDGET_S,
    cache: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Rates:
    """The rates of this machine, from the cache or measured now (about three seconds).

    `num_threads` None leaves the number to torch. `cpus` are the cores to measure on: needed where
    an engine has bound this process to fewer. `again` measures although the cache knows; of
    both answers the faster one is kept, as other programs only make a machine look slower.
    `budget_s` is spent on each of the two rates. `device` `cuda` measures the first GPU. `cache` is
    the file to use instead of the user's.

    Raises EngineNotInstalled without torch, EngineError where the measurement fails.
    """
    number_format, path = _number_format(dtype), cache or cache_path()
    key = _cache_key(number_format, num_threads, device, cpus)
    answer = _read_cache(path).get(key)
    if answer is None or again:
        found = _measure(number_format, num_threads, device, cpus, budget_s, timeout_s)
        answer = _faster(found, answer)
        _write_cache(path, key, answer)
    return _rates(number_format, answer)


def known_rates(
    dtype: str,
    num_threads: int | None,
    *,
    device: str = "cpu",
    cpus: Sequence[int] | None = None,
    cache: Path | None = None,
) -> Rates:
    """The same from the cache alone. Raises EngineError where they have not been measured yet."""
    number_format = _number_format(dtype)
    key = _cache_key(number_format, num_threads, device, cpus)
    answer = _read_cache(cache or cache_path()).get(key)
    if answer is None:
        raise EngineError(
            "the rates of this machine have not been measured yet; `batchgen doctor --measure` does"
        )
    return _rates(number_format, answer)


def cache_path() -> Path:
    """The file in the user's cache directory (XDG_CACHE_HOME, else ~/.cache)."""
    folder = os.environ.get("XDG_CACHE_HOME")
    return (Path(folder) if folder else Path.home() / ".cache") / "batchgen" / "rates.json"


def _number_format(dtype: str) -> str:
    number_format = DTYPES.get(dtype.removeprefix("torch."))
    if number_format is None:
        known = ", ".join(sorted(set(DTYPES.values())))
        raise EngineError(f"the rate of '{dtype}' cannot be measured; what can: {known}")
    return number_format


def _rates(dtype: str, answer: dict[str, Any]) -> Rates:
    return Rates(answer["matmul_flops_per_s"], answer["memory_bytes_per_s"], _source(dtype, answer))


def _source(dtype: str, answer: dict[str, Any]) -> str:
    if answer["device"] != "cpu":
        return f"measured here, {dtype}, {answer['device']}"
    threads = answer["num_threads"]
    return f"measured here, {dtype}, {threads} thread{'' if threads == 1 else 's'}"


def _measure(
    dtype: str,
    num_threads: int | None,
    device: str,
    cpus: Sequence[int] | None,
    budget_s: float,
    timeout_s: float,
) -> dict[str, Any]:
    if _torch_version() is None:
        raise EngineNotInstalled(
            "the rates of this machine are measured with torch, which is not installed; "
            "`batchgen doctor` names the command that installs it"
        )
    command = [sys.executable, "-m", "batchgen.capacity.measuring"]
    command += ["--dtype", dtype, "--device", device, "--budget", str(budget_s)]
    environment = dict(os.environ)
    if num_threads is not None:
        command += ["--threads", str(num_threads)]
        environment["OMP_NUM_THREADS"] = str(num_threads)
    if cpus:
        command += ["--cpus", ",".join(map(str, cpus))]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=True, env=environment
        )
        return _checked(json.loads(answer.stdout.splitlines()[-1]))
    except subprocess.CalledProcessError as exc:
        words = (exc.stderr.strip().splitlines() or [f"exit code {exc.returncode}"])[-1]
        raise EngineError(f"the rates of this machine could not be measured: {words}") from exc
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError) as exc:
        raise EngineError(f"the rates of this machine could not be measured: {exc}") from exc


def _checked(answer: Any) -> dict[str, Any]:
    """The answer of the measuring process, or an entry of the cache. Raises ValueError."""
    is_sound = (
        isinstance(answer, dict)
        and all(isinstance(answer.get(name), (int, float)) for name in MEASURED)
        and all(answer[name] > 0 for name in MEASURED)
        and isinstance(answer.get("num_threads"), int)
        and isinstance(answer.get("device"), str)
    )
    if not is_sound:
        raise ValueError(f"unusable rates: {answer!r}")
    checked: dict[str, Any] = answer
    return checked


def _faster(found: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    if before is None:
        return found
    return found | {name: max(found[name], before[name]) for name in MEASURED}


def _cache_key(dtype: str, num_threads: int | None, device: str, cpus: Sequence[int] | None) -> str:
    cores = len(cpus) if cpus else len(os.sched_getaffinity(0))
    hardware = _gpu_names() if device == "cuda" else f"{_cpu_name()}, {cores} cores"
    threads = "default" if num_threads is None else num_threads
    return f"{hardware}; {dtype}; {threads} threads; torch {_torch_version()}"


def _cpu_name() -> str:
    """Model and stepping: virtual machines share a model name with other generations."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    names = ("model name", "model", "stepping", "CPU part")
    found = [re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE) for name in names]
    return " ".join(match[1] for match in found if match) or platform.machine()


def _gpu_names() -> str:
    """Models of the GPUs as the NVIDIA driver lists them, and which of them are visible."""
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with suppress(OSError):
            match = re.search(r"^Model:\s*(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            names.append(match[1] if match else "?")
    return f"GPUs {', '.join(names)} visible {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}"


def _torch_version() -> str | None:
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def _read_cache(path: Path) -> dict[str, dict[str, Any]]:
    """What the cache holds; whatever is broken in it counts as not there."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    entries: dict[str, dict[str, Any]] = {}
    for key, entry in values.items() if isinstance(values, dict) else ():
        with suppress(ValueError):
            entries[key] = _checked(entry)
    return entries


def _write_cache(path: Path, key: str, answer: dict[str, Any]) -> None:
    """Add an entry. A cache that cannot be written costs the next run some seconds, no more."""
    entries = _read_cache(path) | {key: answer}
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(entries, indent=1), encoding="utf-8")
        temporary.replace(path)
