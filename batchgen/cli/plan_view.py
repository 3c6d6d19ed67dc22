"""A capacity plan for people: fields, and a histogram of prompt lengths."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from batchgen.capacity.lengths import histogram
from batchgen.cli.output import Output
from batchgen.report.units import figure, size, span

if TYPE_CHECKING:
    from batchgen.run.capacity import CapacityPlan

BAR_WIDTH: Final = 40
LIMITS: Final = {
    "kv_cache": "what the KV cache holds",
    "slots": "the slots",
    "rows": "all rows",
}


def show_plan(plan: "CapacityPlan", output: Output) -> None:
    """The plan for people."""
    output.fields(_model_fields(plan))
    output.text()
    output.fields(_length_fields(plan))
    for line in histogram_lines(plan):
        output.text(line)
    output.text()
    output.fields(_fit_fields(plan))
    output.text()
    output.fields(_time_fields(plan))


def _model_fields(plan: "CapacityPlan") -> Iterator[tuple[str, str]]:
    geometry = plan.model.geometry
    yield "job", plan.job.name
    yield "model", geometry.name
    active = ""
    if geometry.num_experts:
        active = f", {geometry.num_active_params / 1e9:,.1f} billion of them for a token"
    yield "parameters", f"{_billions(geometry.num_params)}{active}"
    yield "weights", f"{size(geometry.weight_bytes)} ({geometry.weights})"
    per_token = f"{geometry.kv_bytes_per_token:,} bytes a token"
    in_kib = f"{geometry.kv_bytes_per_token / 1024:g} KiB"
    yield "KV cache", f"{per_token} ({in_kib}; {geometry.attention}, {geometry.kv_bits} bits)"


def _length_fields(plan: "CapacityPlan") -> Iterator[tuple[str, str]]:
    lengths, stats, outputs = plan.lengths, plan.stats, plan.outputs
    about = "about " if lengths.is_estimate else ""
    yield "rows", f"{about}{lengths.num_rows:,}, {lengths.num_sampled:,} looked at"
    if stats is not None:
        yield (
            "prompts",
            f"{stats.mean:,.0f} tokens on average, half up to {stats.p50:,.0f}, 95 % up to"
            f" {stats.p95:,.0f}, longest {stats.max:,} ({lengths.basis})",
        )
    if lengths.num_refused:
        yield "refused", f"{lengths.num_refused:,} rows looked at; `batchgen check` says why"
    if lengths.too_long is not None:
        number = lengths.num_too_long or lengths.num_cut
        what = "too long for" if lengths.num_too_long else "cut to fit"
        share = f"{number:,} of {lengths.num_sampled:,} rows looked at"
        share += f" ({number / lengths.num_sampled:.1%})"
        limit = f"{plan.model.max_model_len:,} tokens" if plan.model.max_model_len else "the model"
        yield "too long", f"{share} are {what} {limit}, first {lengths.too_long}"
    if outputs.mean is not None:
        word = {"bound": "at most", "given": "", "measured": "measured:"}[outputs.basis]
        yield (
            "completions",
            f"{word} {outputs.mean:,.0f} tokens on average ({outputs.source})".strip(),
        )


def histogram_lines(plan: "CapacityPlan") -> Iterator[str]:
    """Prompt lengths of the sample, a bar for each bin."""
    bins = histogram(plan.lengths.prompts)
    most = max((bin.num_rows for bin in bins), default=0)
    labels = [_range(bin.first, bin.last) for bin in bins]
    width = max((len(label) for label in labels), default=0)
    digits = len(f"{most:,}")
    for label, bin in zip(labels, bins, strict=True):
        bar = "#" * -(-bin.num_rows * BAR_WIDTH // most)
        yield f"  {label:>{width}}  {bin.num_rows:>{digits},}  {bar}".rstrip()


def _range(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} - {last:,}"


def _fit_fields(plan: "CapacityPlan") -> Iterator[tuple[str, str]]:
    fit, limits, rates = plan.fit, plan.model.setting.limits, plan.timing.rates
    number = limits.num_devices
    times = "" if number == 1 else f"{number} x "
    speed = ""
    if rates is not None:
        flops = figure(rates.matmul_flops_per_s / 1e12)
        speed = f": {flops} TFLOP/s, {size(rates.memory_bytes_per_s)}/s ({rates.source})"
    yield "device", f"{times}{plan.target.name}{speed}"
    each = "" if number == 1 else " on each device"
    if fit.usable_bytes is not None:
        shares = f"{limits.memory_share:.0%} of {size(plan.target.memory_bytes)}"
        yield "memory", f"{size(fit.usable_bytes)} usable ({shares}){each}"
        if limits.has_workspace:
            yield "workspace", f"{size(fit.workspace_bytes)}{each}, an estimate"
    room = f"{size(fit.kv_cache_bytes)}{each}"
    if fit.kv_cache_tokens is not None:
        room += f" for KV cache: {fit.kv_cache_tokens:,} tokens"
    yield "room", f"{room}, in blocks of {limits.block_tokens}"
    if fit.max_concurrent_sequences is not None and fit.kv_bytes_per_sequence is not None:
        at_max = ""
        if fit.max_concurrent_at_max_len is not None:
            at_max = f"; of {plan.model.max_model_len:,} tokens: {fit.max_concurrent_at_max_len:,}"
        each_s = f"{size(fit.kv_bytes_per_sequence)} each"
        yield "sequences", f"{fit.max_concurrent_sequences:,} at once ({each_s}){at_max}"


def _time_fields(plan: "CapacityPlan") -> Iterator[tuple[str, str]]:
    pace, found, efficiency = plan.timing.pace, plan.timing.estimate, plan.timing.efficiency
    if pace is not None:
        yield "prefill", f"at most {figure(pace.prefill_tokens_per_s)} tokens/s"
        why = LIMITS[pace.limited_by]
        yield (
            "decode",
            f"at most {figure(pace.decode_tokens_per_s)} tokens/s, {pace.num_running:,} sequences"
            f" at once ({why}), limited by {pace.decode_bound}",
        )
        yield "critical batch", f"{pace.critical_batch:,.0f} sequences, KV cache left out"
        assumed = ", if completions are as long as allowed" if plan.outputs.basis == "bound" else ""
        yield "time, bound", f"at least {span(pace.bound.total_s)}{assumed}"
    if found is not None and efficiency is not None:
        yield "time", f"{_span(span, found.low_s, found.high_s)}, an estimate"
        share = (
            f"{efficiency.low:.2f}"
            if efficiency.is_measured
            else f"{efficiency.low:.2g} to {efficiency.high:.2g}"
        )
        yield "efficiency", f"{share} of the roofline: {efficiency.source}"
        if plan.target.kind == "gpu":
            low, high = found.device_hours_low, found.device_hours_high
            yield "GPU-hours", f"{_span(figure, low, high)}, an estimate"
        if found.cost_low is not None and found.cost_high is not None:
            yield "cost", f"{_span(_money, found.cost_low, found.cost_high)}, an estimate"
        if plan.deadline_s is not None:
            each = plan.model.setting.limits.num_devices
            devices = f" of {each} devices" if each > 1 else ""
            number = "no number" if found.replicas is None else f"{found.replicas:,}{devices}"
            end = "" if efficiency.is_measured else ", by the slower end of the estimate"
            yield "replicas", f"{number} to be done in {span(plan.deadline_s)}{end}"
    if plan.output_bytes is not None:
        word = "at most about" if plan.outputs.basis == "bound" else "about"
        yield "output", f"{word} {size(plan.output_bytes)} in {plan.job.output.path}"


def _span(write: Callable[[float], str], low: float, high: float) -> str:
    first, last = write(low), write(high)
    return f"{first}" if first == last else f"{first} to {last}"


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 0.01 else f"{amount:.1g}"


def _billions(number: int) -> str:
    return f"{number / 1e9:,.2f} billion" if number >= 1e9 else f"{number / 1e6:,.1f} million"
