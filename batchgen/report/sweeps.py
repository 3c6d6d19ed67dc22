"""Results of `batchgen compare` and `batchgen tune` that lie in a directory.

They are files that anyone may have put there, so what does not look like a result is a note in
the report and nothing more.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from batchgen.report.records import Sweep

POINTS: Final = {"compare": "ways", "tune": "points"}
"""Kind, which is also the file's name, and the key of its list."""


def read_sweeps(folder: Path) -> tuple[tuple[Sweep, ...], tuple[str, ...]]:
    """The results in this folder, and a sentence for each file that holds none."""
    sweeps: list[Sweep] = []
    notes: list[str] = []
    for kind in POINTS:
        path = folder / f"{kind}.json"
        try:
            sweeps.append(read_sweep(path, kind))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as exc:
            notes.append(f"{path}: is no result of batchgen {kind}, it is left out ({exc})")
    return tuple(sweeps), tuple(notes)


def read_sweep(path: Path, kind: str) -> Sweep:
    """One result. Raises OSError or ValueError where the file holds none."""
    values = orjson.loads(path.read_bytes())
    points = _objects(values, POINTS[kind]) if isinstance(values, dict) else ()
    if not points:
        raise ValueError(f"no list of objects under '{POINTS[kind]}'")
    recommended, created_at = values.get("recommended"), values.get("created_at")
    facts = (fact.get("text") for fact in _objects(values, "facts"))
    return Sweep(
        kind=kind,
        created_at=created_at if isinstance(created_at, str) else None,
        points=points,
        steps=_objects(values, "steps"),
        step_law=_step_law(values.get("step_law")),
        recommended=_flat(recommended) if isinstance(recommended, dict) else None,
        overrides=_texts(values.get("overrides")),
        remarks=(*_texts([*facts]), *_texts(values.get("notes"))),
    )


def number(point: Mapping[str, Any], name: str) -> float | None:
    """A number of a point; None where it has none under this name."""
    value = point.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _objects(values: Mapping[str, Any], key: str) -> tuple[dict[str, Any], ...]:
    """The objects of a list; none where there is anything else in it, or no list."""
    found = values.get(key)
    is_fit = isinstance(found, list) and all(isinstance(item, dict) for item in found)
    return tuple(_flat(item) for item in found) if is_fit and found else ()


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(v for v in values if isinstance(v, str)) if isinstance(values, list) else ()


def _flat(point: Mapping[str, Any]) -> dict[str, Any]:
    """What can be shown in a cell, under keys that can be shown above it."""
    return {
        key: value
        for key, value in point.items()
        if key.isidentifier() and isinstance(value, str | int | float | bool | None)
    }


def _step_law(value: Any) -> Mapping[str, float] | None:
    if not isinstance(value, dict):
        return None
    law = {name: number(value, name) for name in ("a_s", "b_s")}
    known = {name: seconds for name, seconds in law.items() if seconds is not None}
    return known if len(known) == len(law) else None
