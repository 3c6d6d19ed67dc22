"""The settings of a run that decide how fast it is, as flat names and values.

A night that got slower is explained by the ones that differ from the night before: the shape of
batches, the engine, the machine, and what rows are made of. The fingerprint guards the latter, but
a change can be accepted, and some rows can be made anew in another way.
"""

import json
import os
import platform
from collections.abc import Iterator, Mapping
from hashlib import blake2b
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
        **_making(job),
        **dict(_flat("versions", versions)),
        "machine.host": platform.node(),
        "machine.cpus": os.cpu_count(),
    }


def engine_settings(engine: Mapping[str, Any]) -> dict[str, Scalar]:
    """What a started engine made of them."""
    flat = _flat("engine", engine)
    return {key.replace("engine.settings.", "engine.", 1): value for key, value in flat}


def _making(job: Mapping[str, Any]) -> dict[str, Scalar]:
    """What completions are made of: prompts as a digest, and so each value that is not short."""
    found: dict[str, Scalar] = {"prompt.digest": _digest(job["prompt"])} if "prompt" in job else {}
    for section in ("sampling", "stop_early"):
        for key, value in (job.get(section) or {}).items():
            name = f"{section}.{key}"
            found |= dict(_flat(name, value)) or {name: _digest(value)}
    return found


def _digest(value: Any) -> str | None:
    """Of a value that is too long to be shown; None for an empty one."""
    text = json.dumps(value, sort_keys=True, default=str)
    return f"digest {blake2b(text.encode(), digest_size=8).hexdigest()}" if value else None


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
