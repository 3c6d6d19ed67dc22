"""`batchgen plan`: what fits, how long it takes, what it costs, before an engine is started."""

from pathlib import Path
from typing import Annotated, Final

import typer

from batchgen.cli.options import AsJson, JobPath, Overrides, finite_price, output_of

EPILOG: Final = """\b
Examples:
  batchgen plan job.yaml --device H100 --price 2.50 --deadline 8h
  batchgen plan job.yaml --memory 40GB -s model.extra.kv_cache_dtype=fp8
  batchgen plan job.yaml --config llama-70b/config.json --device H200 --json
  batchgen plan job.yaml --output-tokens 80
"""


def memory_bytes(text: str | None) -> int | None:
    """Bytes of `40GB` or `24 GiB`; a mistake is one on the command line."""
    if text is None:
        return None
    from pydantic import TypeAdapter, ValidationError

    from batchgen.config.amounts import ByteCount

    try:
        number: int = TypeAdapter(ByteCount).validate_python(text)
    except ValidationError as exc:
        raise typer.BadParameter(
            f"'{text}' is no size above 0: write a whole number and a unit (B, kB, MB, GB, KiB,"
            " MiB, GiB), as in 40GB"
        ) from exc
    return number


def plan(
    ctx: typer.Context,
    job: JobPath,
    overrides: Overrides = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Plan for the model of this config.json; it need not be here.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A100, H100, H200, B200, L4, L40S, MI300X, 'RTX 4090', …, or cpu;"
            " default: what this machine has.",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            callback=memory_bytes,
            help="Memory of one device (40GB); without --device what fits, and no times.",
            show_default=False,
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite_price,
            help="Price of one device for an hour.",
            show_default=False,
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Replicas needed until then: a duration (8h, 90m) or a time of day (06:00).",
            show_default=False,
        ),
    ] = None,
    output_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Tokens of a completion; default: as measured by a run, else the most allowed.",
            show_default=False,
        ),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rows of the corpus to look at.")
    ] = 1024,
    no_tokens: Annotated[
        bool,
        typer.Option("--no-tokens", help="Load no tokenizer: lengths are estimated from bytes."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan a job's capacity: what fits, how long it takes, what it costs.

    Needs no engine, only the model's config.json and tokenizer. A run of the job (with --limit,
    for example) or a comparison corrects the estimate by what it measured.
    """
    from batchgen.config.loading import load_job

    output = output_of(ctx)
    output.set_mode(as_json=as_json)
    loaded = load_job(job, overrides or ())
    from batchgen.run.capacity import PlanOptions, plan_job

    found = plan_job(
        loaded,
        PlanOptions(
            config=config,
            device=device,
            memory_bytes=memory,  # type: ignore[arg-type]
            price=price,
            deadline=deadline,
            output_tokens=output_tokens,
            max_rows=sample,
            tokens=not no_tokens,
        ),
    )
    if as_json:
        from batchgen.run.capacity_answer import plan_answer

        output.json(plan_answer(found))
        return
    from batchgen.cli.plan_view import show_plan

    show_plan(found, output)
    for warning in found.warnings:
        output.warn(warning)
