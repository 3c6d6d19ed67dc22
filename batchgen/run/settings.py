"""What may change from one run to the next without changing the outputs, as flat names and values.

The fingerprint guards what the rows are made of. These settings are the rest: they decide how fast
a run is, so a night that got slower is explained by the ones that differ from the night before.
"""

import os
import platform
from collections.abc import Iterator, Mapping
from typing import Any

Scalar = str | int | float | bool | None

LONGEST_TEXT = 200
MOST_KEYS = 40
"""Longer values and larger sections are scripts and templates, not settings."""


def job_settings(job: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, Scalar]:
    """Settings that are known when a run begins; `job` is the resolved, masked job."""
    return {
        **dict(_flat("batch", job["batch"])),
        **dict(_flat("model", job["model"])),
        **dict(_flat("versions", versions)),
        "machine.host": platform.node(),
        "machine.cpus": os.cpu_count(),
    }


def engine_settings(engine: Mapping[str, Any]) -> dict[str, Scalar]:
    """What a started engine made of them."""
    flat = _flat("engine", engine)
    return {key.replace("engine.settings.", "engine.", 1): value for key, value in flat}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Scalar]]:
    match value:
        case Mapping() if len(value) <= MOST_KEYS:
            for key, inner in value.items():
                yield from _flat(f"{name}.{key}", inner)
        case list() | tuple() if len(value) <= MOST_KEYS:
            yield from _flat(name, "; ".join(str(item) for item in value))
        case str() if len(value) <= LONGEST_TEXT:
            yield name, value
        case bool() | int() | float() | None:
            yield name, value
