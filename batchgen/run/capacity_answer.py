"""A capacity plan as the object that `batchgen plan --json` prints.

Keys are flat, so that a script takes what it needs without knowing how a plan is made. What is not
known is None.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from batchgen.capacity.lengths import histogram
from batchgen.run.capacity import CapacityPlan, Timing


def plan_answer(plan: CapacityPlan) -> dict[str, Any]:
    """The answer under the keys of docs/json-answers.md."""
    return {
        "job": plan.job.name,
        **_model(plan),
        **_device(plan),
        **_lengths(plan),
        **_work(plan),
        **_pace(plan.timing),
        **_estimate(plan),
        "output_bytes": plan.output_bytes,
        "measured": _measured(plan),
        "warnings": list(plan.warnings),
    }


def _model(plan: CapacityPlan) -> Mapping[str, Any]:
    geometry = plan.model.geometry
    return {
        "model": geometry.name,
        "config": None if plan.options.config is None else str(plan.options.config),
        "num_params": geometry.num_params,
        "num_active_params": geometry.num_active_params,
        "weight_bytes": geometry.weight_bytes,
        "weights": geometry.weights,
        "dtype": geometry.dtype,
        "attention": geometry.attention,
        "kv_bytes_per_token": geometry.kv_bytes_per_token,
        "max_model_len": plan.model.max_model_len,
    }


def _device(plan: CapacityPlan) -> Mapping[str, Any]:
    fit, limits, target = plan.fit, plan.model.setting.limits, plan.target
    rates = plan.timing.rates
    return {
        "device": target.name,
        "device_source": target.source,
        "memory_bytes": target.memory_bytes,
        "num_devices": limits.num_devices,
        "num_devices_needed": plan.num_devices_needed,
        "matmul_flops_per_s": rates.matmul_flops_per_s if rates else None,
        "memory_bytes_per_s": rates.memory_bytes_per_s if rates else None,
        "rates_source": rates.source if rates else None,
        "usable_bytes": fit.usable_bytes,
        "weight_bytes_per_device": fit.weight_bytes,
        "workspace_bytes": fit.workspace_bytes,
        "kv_cache_bytes": fit.kv_cache_bytes,
        "kv_cache_tokens": fit.kv_cache_tokens,
        "kv_block_tokens": limits.block_tokens,
        "kv_bytes_per_sequence": fit.kv_bytes_per_sequence,
        "max_concurrent_sequences": fit.max_concurrent_sequences,
        "max_concurrent_at_max_len": fit.max_concurrent_at_max_len,
        "max_num_seqs": limits.max_num_seqs,
    }


def _lengths(plan: CapacityPlan) -> Mapping[str, Any]:
    lengths = plan.lengths
    return {
        "num_rows": lengths.num_rows,
        "is_estimate": lengths.is_estimate,
        "num_sampled": lengths.num_sampled,
        "num_refused": lengths.num_refused,
        "num_too_long": lengths.num_too_long,
        "num_cut": lengths.num_cut,
        "lengths": lengths.basis,
        "prompt_tokens": None if plan.stats is None else asdict(plan.stats),
        "histogram": [asdict(bin) for bin in histogram(lengths.prompts)],
        "output_tokens": plan.outputs.mean,
        "output_tokens_basis": plan.outputs.basis,
        "output_tokens_source": plan.outputs.source,
    }


def _work(plan: CapacityPlan) -> Mapping[str, Any]:
    work = plan.work
    return {
        "num_prompt_tokens": work.num_prompt_tokens if work else None,
        "num_cached_tokens": work.num_cached_tokens if work else None,
        "num_output_tokens": work.num_output_tokens if work else None,
    }


def _pace(timing: Timing) -> Mapping[str, Any]:
    pace = timing.pace
    return {
        "num_running": pace.num_running if pace else None,
        "running_limited_by": pace.limited_by if pace else None,
        "prefill_tokens_per_s": pace.prefill_tokens_per_s if pace else None,
        "decode_tokens_per_s": pace.decode_tokens_per_s if pace else None,
        "decode_step_s": pace.decode_step_s if pace else None,
        "decode_limited_by": pace.decode_bound if pace else None,
        "critical_batch": pace.critical_batch if pace else None,
        "at_least_s": pace.bound.total_s if pace else None,
        "at_least_prefill_s": pace.bound.prefill_s if pace else None,
        "at_least_decode_s": pace.bound.decode_s if pace else None,
    }


def _estimate(plan: CapacityPlan) -> Mapping[str, Any]:
    efficiency, found = plan.timing.efficiency, plan.timing.estimate
    hours = found if plan.target.kind == "gpu" else None
    return {
        "efficiency_low": efficiency.low if efficiency else None,
        "efficiency_high": efficiency.high if efficiency else None,
        "efficiency_source": efficiency.source if efficiency else None,
        "is_measured": efficiency.is_measured if efficiency else None,
        "estimated_s_low": found.low_s if found else None,
        "estimated_s_high": found.high_s if found else None,
        "gpu_hours_low": hours.device_hours_low if hours else None,
        "gpu_hours_high": hours.device_hours_high if hours else None,
        "price_per_hour": plan.options.price,
        "cost_low": found.cost_low if found else None,
        "cost_high": found.cost_high if found else None,
        "deadline_s": plan.deadline_s,
        "replicas": found.replicas if found else None,
    }


def _measured(plan: CapacityPlan) -> Mapping[str, Any] | None:
    measured = plan.measured
    if measured is None:
        return None
    return {
        "path": measured.path,
        "what": measured.what,
        "ended_at": measured.ended_at,
        "num_rows": measured.work.num_rows,
        "took_s": measured.took_s,
        "output_tokens_per_s": measured.output_tokens_per_s,
        "output_tokens": measured.output_mean,
    }
