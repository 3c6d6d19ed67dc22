"""Settings that batchgen chooses for vLLM, each with its reason, before vLLM is imported.

The user's own settings (`model.extra`, environment variables) always win; what is chosen here
fills the gaps. On a GPU vLLM's defaults are good, and one switch asks for throughput rather than
latency. On a CPU they are not: they take 92 % of the memory, compile for minutes at the first
start, and use a number format that most CPUs are slow with.

OpenMP reads its variables when torch is first imported, which already the tokenizer does; so the
environment has to be set before (`factory.prepare_environment`).
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from batchgen.config.models import ModelConfig

MIB: Final = 2**20
GIB: Final = 2**30
MULTIPROCESSING: Final = "VLLM_ENABLE_V1_MULTIPROCESSING"
KV_CACHE_SPACE: Final = "VLLM_CPU_KVCACHE_SPACE"
_CPU_SLOTS: Final = 256
_KV_MEMORY_SHARE: Final = 0.25
_MOST_KV_BYTES: Final = 8 * GIB
_LEAST_KV_BYTES: Final = 256 * MIB


@dataclass(slots=True)
class ChosenSettings:
    """What goes to `vllm.LLM` and into the environment, and why."""

    arguments: dict[str, Any]
    environment: dict[str, str]
    """Variables to set where the user has not set them."""
    notes: list[str] = field(default_factory=list)
    """One line for each choice: `name=value: reason`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the choice depends on."""

    is_cpu: bool
    """vLLM is a CPU build."""
    cpu_flags: frozenset[str]
    num_cpus: int
    available_bytes: int


def choose_settings(
    given: Mapping[str, Any],
    *,
    max_num_seqs: int | None,
    max_model_len: int | None,
    model_config: Mapping[str, Any] | None,
    machine: Machine,
    environment: Mapping[str, str],
) -> ChosenSettings:
    """Fill the gaps in `given`, the engine arguments of the job.

    `model_config` is the model's config.json where it is known; `environment` is the process's.
    """
    chosen = ChosenSettings(dict(given), _common_environment(environment))
    _add(chosen, "disable_log_stats", False, "batchgen needs times and counters of each request")
    _add(chosen, "use_tqdm_on_load", False, "no bar of its own beside that of the run")
    if machine.is_cpu:
        _choose_for_cpu(
            chosen, max_num_seqs, max_model_len, model_config or {}, machine, environment
        )
    else:
        _add(
            chosen,
            "performance_mode",
            "throughput",
            "nobody waits for a single row; doubles vLLM's own limits",
        )
    for name in [name for name in chosen.environment if name in environment]:
        del chosen.environment[name]
    return chosen


def _common_environment(environment: Mapping[str, str]) -> dict[str, str]:
    common = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    if not wants_own_logging(environment):
        common["VLLM_CONFIGURE_LOGGING"] = "0"
    return common


def wants_own_logging(environment: Mapping[str, str]) -> bool:
    """Whether the user has said how vLLM should log; else batchgen takes its warnings in."""
    return any(
        name.startswith("VLLM_LOGGING_") or name == "VLLM_CONFIGURE_LOGGING" for name in environment
    )


def _choose_for_cpu(
    chosen: ChosenSettings,
    max_num_seqs: int | None,
    max_model_len: int | None,
    model_config: Mapping[str, Any],
    machine: Machine,
    environment: Mapping[str, str],
) -> None:
    chosen.environment[MULTIPROCESSING] = "0"
    if environment.get(MULTIPROCESSING, "0") == "0":
        chosen.notes.append(f"{MULTIPROCESSING}=0: one process starts in a third of the time")
        threads = {"OMP_NUM_THREADS": str(machine.num_cpus), "OMP_WAIT_POLICY": "PASSIVE"}
        chosen.environment |= threads
        if all(environment.get(name, value) == value for name, value in threads.items()):
            chosen.notes.append(
                f"OMP_NUM_THREADS={machine.num_cpus}, OMP_WAIT_POLICY=PASSIVE: all cores compute,"
                " and threads that wait leave theirs to others"
            )
    _add(chosen, "dtype", *_cpu_dtype(machine.cpu_flags))
    if "enforce_eager" not in chosen.arguments:
        # Else vLLM still has one small function compiled, for logprobs, which takes a C++
        # compiler and some 17 s.
        chosen.environment["TORCHDYNAMO_DISABLE"] = "1"
    _add(chosen, "enforce_eager", True, "compiling takes minutes at the first start")
    if KV_CACHE_SPACE not in environment and "gpu_memory_utilization" not in chosen.arguments:
        length = max_model_len or model_config.get("max_position_embeddings")
        num_bytes = kv_cache_bytes(
            kv_bytes_per_token(model_config, chosen.arguments.get("dtype", "float32")),
            max_model_len=length,
            max_num_seqs=max_num_seqs or _CPU_SLOTS,
            available_bytes=machine.available_bytes,
        )
        _add(
            chosen,
            "kv_cache_memory_bytes",
            num_bytes,
            f"{num_bytes / GIB:.1f} GiB, at most a quarter of the free memory"
            " (vLLM would take 92 % of all)",
        )


def _add(chosen: ChosenSettings, name: str, value: Any, reason: str) -> None:
    if name not in chosen.arguments:
        chosen.arguments[name] = value
        chosen.notes.append(f"{name}={value}: {reason}")


def _cpu_dtype(flags: frozenset[str]) -> tuple[str, str]:
    if flags & {"amx_bf16", "avx512_bf16"}:
        return "bfloat16", "this CPU multiplies bfloat16 in hardware"
    return "float32", "bfloat16 is 3-4x slower on CPUs without AVX512_BF16 or AMX"


def kv_bytes_per_token(model_config: Mapping[str, Any], dtype: str) -> int | None:
    """KV cache of one token over all layers, in bytes; None where the config does not say.

    Two vectors (key and value) a layer and KV head.
    """
    config = model_config.get("text_config") or model_config
    num_layers = config.get("num_hidden_layers")
    num_heads = config.get("num_attention_heads")
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    head_dim = config.get("head_dim")
    if head_dim is None and config.get("hidden_size") and num_heads:
        head_dim = config["hidden_size"] // num_heads
    if not (num_layers and num_kv_heads and head_dim):
        return None
    value_bytes = 4 if dtype in ("float32", "float") else 2
    return 2 * int(num_layers) * int(num_kv_heads) * int(head_dim) * value_bytes


def kv_cache_bytes(
    token_bytes: int | None,
    *,
    max_model_len: int | None,
    max_num_seqs: int,
    available_bytes: int,
) -> int:
    """A KV cache for all slots at full length, but never more than a fair share of the memory.

    It always holds one sequence of full length, without which vLLM does not start.
    """
    share = int(available_bytes * _KV_MEMORY_SHARE)
    limit = max(_LEAST_KV_BYTES, min(share, _MOST_KV_BYTES))
    if token_bytes is None or max_model_len is None:
        return _round_up(min(limit, 4 * GIB))
    sequence_bytes = token_bytes * (max_model_len + 128)
    wanted = sequence_bytes * max_num_seqs
    return _round_up(max(min(wanted, limit), sequence_bytes, _LEAST_KV_BYTES))


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // MIB) * MIB


def settings_for(model: ModelConfig, environment: Mapping[str, str]) -> ChosenSettings:
    """What this machine needs for a job's model section."""
    given = dict(model.extra)
    for name in ("tokenizer", "revision", "max_model_len", "max_num_seqs", "reasoning_parser"):
        value = getattr(model, name)
        if value is not None:
            given[name] = value
    chosen = choose_settings(
        given,
        max_num_seqs=model.max_num_seqs,
        max_model_len=model.max_model_len,
        model_config=read_model_config(model.name),
        machine=this_machine(),
        environment=environment,
    )
    is_local = all(Path(name).is_dir() for name in (model.name, model.tokenizer) if name)
    if is_local and "HF_HUB_OFFLINE" not in environment:
        chosen.environment["HF_HUB_OFFLINE"] = "1"
    return chosen


def read_model_config(name: str) -> dict[str, Any] | None:
    """`config.json` of a local model directory; None for a hub id or without that file."""
    path = Path(name) / "config.json"
    if not path.is_file():
        return None
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return config


def this_machine() -> Machine:
    """The machine that runs this process, and the vLLM that is installed on it."""
    import psutil

    return Machine(
        is_cpu=is_cpu_build(),
        cpu_flags=_cpu_flags(),
        num_cpus=len(os.sched_getaffinity(0)),
        available_bytes=psutil.virtual_memory().available,
    )


def default_block_tokens() -> int:
    """vLLM's KV block where a job sets none: 16 tokens on GPUs, 128 on CPUs (vLLM 0.32)."""
    return 128 if is_cpu_build() else 16


def is_cpu_build() -> bool:
    """Whether the installed vLLM is a CPU build, told from package metadata as vLLM itself does."""
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        return True
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return True


def _cpu_flags() -> frozenset[str]:
    path = Path("/proc/cpuinfo")
    lines: Iterable[str] = path.read_text(encoding="utf-8").splitlines() if path.exists() else ()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(flags.partition(":")[2].split())
