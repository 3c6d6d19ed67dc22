"""What must stay equal for a run to be resumed, and the difference in words.

Rows of one output directory belong together only if the same prompt, model, sampling and output
settings made them. These are fingerprinted key by key, so that a rerun with another job can say
which key changed, from what to what. Whatever cannot change a row's output (batch size, feed,
memory, logging, error budgets) is not part of it, so those may change between sittings.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batchgen.config.masking import masked
from batchgen.config.models import JobConfig, ModelConfig
from batchgen.config.section import ColumnRef
from batchgen.config.wording import shown

Fingerprint = dict[str, dict[str, Any]]
"""Section (`prompt`, `model`, `sampling`, `output`) to dotted job key to JSON value."""

FREE_MODEL_KEYS: Final = frozenset(
    {
        "aggregate_engine_logging",
        "async_scheduling",
        "block_size",
        "collect_detailed_traces",
        "compilation_config",
        "cpu_offload_gb",
        "cpu_offload_params",
        "cudagraph_capture_sizes",
        "cudagraph_metrics",
        "custom_histogram_buckets",
        "data_parallel_backend",
        "data_parallel_size",
        "data_parallel_size_local",
        "device_ids",
        "disable_custom_all_reduce",
        "disable_log_stats",
        "distributed_executor_backend",
        "download_dir",
        "enable_chunked_prefill",
        "enable_layerwise_nvtx_tracing",
        "enable_logging_iteration_details",
        "enable_mfu_metrics",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "hf_token",
        "jit_monitor_mode",
        "jit_monitor_verbose",
        "kv_cache_memory_bytes",
        "kv_cache_metrics",
        "kv_cache_metrics_sample",
        "log_config_file",
        "log_level",
        "logging_config",
        "long_prefill_token_threshold",
        "long_prefill_token_threshold_adaptive",
        "max_cudagraph_capture_size",
        "max_num_active_seqs",
        "max_num_batched_tokens",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        "max_num_scheduled_tokens",
        "max_num_seqs",
        "max_parallel_loading_workers",
        "num_gpu_blocks_override",
        "numa_bind",
        "numa_bind_cpus",
        "numa_bind_nodes",
        "offload_backend",
        "offload_group_size",
        "offload_num_in_group",
        "offload_params",
        "offload_prefetch_step",
        "optimization_level",
        "otlp_traces_endpoint",
        "performance_mode",
        "pipeline_parallel_size",
        "prefill_schedule_interval",
        "prefix_caching_hash_algo",
        "profiler_config",
        "ray_workers_use_nsight",
        "safetensors_load_strategy",
        "safetensors_prefetch_block_size",
        "safetensors_prefetch_num_threads",
        "scheduler_reserve_full_isl",
        "scheduling_policy",
        "show_hidden_metrics_for_version",
        "stream_interval",
        "tensor_parallel_size",
        "use_tqdm_on_load",
        "watermark",
    }
)
"""Keys of `model` and `model.extra` that may change before a resume: memory, parallelism,
scheduling and logging. (Another batch shape can still flip the last bit of a logit; that is
true of any two runs.) Everything in the simulated engine's `extra` is free as well."""


@dataclass(frozen=True, slots=True)
class Change:
    """One key that differs: what the output was made with, and what the job says now."""

    section: str
    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key}: {_in_words(self.old)} → {_in_words(self.new)}"


def fingerprint(job: JobConfig, *, model_digest: str | None) -> Fingerprint:
    """Every setting that can change outputs, flat and with secrets masked.

    `model_digest` stands for the model's files, where they can be told (a local directory); it
    appears as `model.digest`.
    """
    output = job.output.model_dump(mode="json", by_alias=True, exclude={"path"})
    reading = job.input.model_dump(mode="json", include={"on_bad_line", "max_line_bytes"})
    sections = {
        "prompt": _flat("prompt", _prompt(job)),
        "model": _flat("model", {**_model(job.model), "digest": model_digest}),
        "sampling": _flat("sampling", _sampling(job))
        | _flat("stop_early", job.stop_early.values()),
        "output": _flat("output", output) | _flat("input", reading),
    }
    return {
        name: {key: _without_secret(key, value) for key, value in values.items()}
        for name, values in sections.items()
    }


def differences(old: Mapping[str, Mapping[str, Any]], new: Fingerprint) -> list[Change]:
    """Keys whose values differ, in the order of the job file; absent and null are the same."""
    changes = []
    for section, values in new.items():
        before = old.get(section, {})
        for key in dict.fromkeys((*values, *before)):
            if before.get(key) != values.get(key):
                changes.append(Change(section, key, before.get(key), values.get(key)))
    return changes


def digest(values: Mapping[str, Any]) -> str:
    """Hash of a fingerprint, for the footer of a part: 32 hex digits."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _without_secret(key: str, value: Any) -> Any:
    """The value; where it holds a secret, its mask and 32 bits of its hash.

    A prompt may hold what looks like a secret, and a change of it must show all the same. So few
    bits tell two values apart, and confirm no guess at a good password.
    """
    shown_value = masked(value, key)
    if shown_value == value:
        return value
    text = json.dumps(value, sort_keys=True, default=str)
    mark = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    words = shown_value if isinstance(shown_value, str) else json.dumps(shown_value)
    return f"{words} (#{mark})"


def _prompt(job: JobConfig) -> dict[str, Any]:
    values = job.prompt.model_dump(mode="json", by_alias=True)
    values["chat_template_digest"] = _file_digest(job.prompt.chat_template)
    return values


def _file_digest(path_or_text: str | None) -> str | None:
    """Hash of the file that a chat template comes from; None where the text itself is given."""
    if path_or_text is None or "\n" in path_or_text or "{" in path_or_text:
        return None
    path = Path(path_or_text)
    if not path.is_file():
        return None
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _model(model: ModelConfig) -> dict[str, Any]:
    values = model.model_dump(
        mode="json", exclude=set(FREE_MODEL_KEYS & set(type(model).model_fields))
    )
    is_simulated = model.engine == "simulated"
    values["extra"] = {
        key: value
        for key, value in model.extra.items()
        if not is_simulated and key not in FREE_MODEL_KEYS
    }
    return values


def _sampling(job: JobConfig) -> dict[str, Any]:
    sampling = job.sampling
    values = sampling.constants()
    if not isinstance(sampling.seed, ColumnRef) and sampling.seed is not None:
        values["seed"] = sampling.seed
    return values | {name: {"column": column} for name, column in sampling.columns().items()}


def _flat(prefix: str, values: Any) -> dict[str, Any]:
    """Nested mappings and lists of mappings as dotted keys; other lists stay whole."""
    if isinstance(values, Mapping):
        items = [(str(key), value) for key, value in values.items()]
    elif isinstance(values, list) and values and isinstance(values[0], Mapping):
        items = [(str(index), value) for index, value in enumerate(values)]
    else:
        return {prefix: values}
    return {
        key: value
        for name, inner in items
        for key, value in _flat(f"{prefix}.{name}", inner).items()
    }


def _in_words(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, list) and value:
        return f"[{', '.join(shown(item) for item in value)}]"
    return shown(value)
