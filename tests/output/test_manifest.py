from typing import Any

import pytest

from batchgen.errors import DataError
from batchgen.output.manifest import clear_success, mark_success, read_manifest, write_manifest


def test_a_manifest_comes_back(world: Any) -> None:
    world.layout.path.mkdir()
    assert read_manifest(world.layout) is None
    write_manifest(world.layout, {"job": {"name": "ü"}, "counts": {"num_rows": 3}})
    assert read_manifest(world.layout) == {"job": {"name": "ü"}, "counts": {"num_rows": 3}}


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_a_damaged_manifest_is_named(world: Any, content: str) -> None:
    world.layout.path.mkdir()
    world.layout.manifest.write_text(content)
    with pytest.raises(DataError, match=r"manifest\.json: cannot be read"):
        read_manifest(world.layout)


def test_success_goes_and_comes_back(world: Any) -> None:
    world.layout.path.mkdir()
    clear_success(world.layout)
    mark_success(world.layout)
    before = world.layout.success.stat().st_mtime_ns
    mark_success(world.layout)
    assert world.layout.success.stat().st_mtime_ns == before
    clear_success(world.layout)
    assert not world.layout.success.exists()
