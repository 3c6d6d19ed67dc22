"""A disk that is full or not writable, and an input that goes away: a sentence, and no loss."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def mount(path, *options):
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(path)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def small_disk(tmp_path):
    """An empty file system of 96 megabytes, in memory."""
    path = tmp_path / "disk"
    path.mkdir()
    if not mount(path, "size=96m"):
        pytest.skip("mounting a file system needs root")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk: Path, free_bytes: int) -> Path:
    """Leave so much space on the disk; the file that takes the rest."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 2**20)
    os.truncate(ballast, ballast.stat().st_size - free_bytes)
    return ballast


def check_refused(run, reason):
    """The exit code of data and disk, a sentence, and no traceback of any kind."""
    assert run.code == 4, run.stderr
    assert reason in run.stderr
    assert "Traceback" not in run.stderr
    assert "Logging error" not in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize("free_pages", [0, 3, 6, 10, 16])
def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_space(
    free_pages, small_disk, make_desk, slower, check_finished, undisturbed
):
    desk = make_desk(model=slower(0.005), output={"path": str(small_disk / "out")})
    run = desk.start()
    desk.await_rows(1, run)
    ballast = fill(small_disk, free_pages * 4096)
    run.wait()
    check_refused(run, "the disk is full; free some space")
    ballast.unlink()
    durable, before = desk.durable(), len(desk.received())
    desk.finish()
    assert [row for row in desk.received()[before:] if row in durable] == []
    check_finished(desk, undisturbed)


@pytest.mark.parametrize("free_bytes", [0, 2**20])
def test_a_disk_that_is_full_from_the_start_is_named(
    free_bytes, small_disk, make_desk, check_finished, undisturbed
):
    desk = make_desk(output={"path": str(small_disk / "out")})
    ballast = fill(small_disk, free_bytes)
    check_refused(desk.run(), "free some space")
    assert desk.received() == []
    ballast.unlink()
    desk.finish()
    check_finished(desk, undisturbed)


@pytest.mark.parametrize("file_bytes", [900, 3000, 5000])
def test_a_limit_of_file_sizes_is_named_and_no_row_is_lost(
    file_bytes, make_desk, slower, check_finished, undisturbed
):
    desk = make_desk(model=slower(0.002, record=None))
    run = desk.run(file_bytes=file_bytes)
    check_refused(run, "ulimit -f")
    desk.finish()
    check_finished(desk, undisturbed)


def test_a_disk_that_is_read_only_is_named(small_disk, make_desk, check_finished, undisturbed):
    desk = make_desk(output={"path": str(small_disk / "out")})
    remount = ["mount", "-o", "remount", str(small_disk)]
    subprocess.run([*remount[:2], "remount,ro", str(small_disk)], check=True)
    check_refused(desk.run(), "read-only")
    subprocess.run([*remount[:2], "remount,rw", str(small_disk)], check=True)
    desk.crash("part_renamed:2")
    subprocess.run([*remount[:2], "remount,ro", str(small_disk)], check=True)
    check_refused(desk.run(), "read-only")
    subprocess.run([*remount[:2], "remount,rw", str(small_disk)], check=True)
    desk.finish()
    check_finished(desk, undisturbed)


def test_a_folder_without_permission_is_named(tmp_path, make_desk):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    desk = make_desk(output={"path": str(locked / "out")})
    check_refused(desk.run(may_all=False), "permission denied")
    assert list(locked.iterdir()) == []


@pytest.mark.parametrize("place", ["", "outputs", "batches", ".batchgen", ".batchgen/journal"])
def test_a_run_directory_without_permission_is_named_and_loses_nothing(
    place, make_desk, check_finished, undisturbed
):
    desk = make_desk()
    desk.crash("part_renamed:2")
    folder = desk.layout.path / place
    durable = desk.durable()
    folder.chmod(0o555)
    check_refused(desk.run(may_all=False), "permission denied")
    folder.chmod(0o755)
    assert desk.durable() == durable
    desk.finish()
    check_finished(desk, undisturbed)


def test_an_input_without_permission_is_named(make_desk):
    desk = make_desk()
    (desk.path / "data" / "b.jsonl").chmod(0o200)
    check_refused(desk.run(may_all=False), "b.jsonl: cannot read this file")


@pytest.mark.parametrize("shard", ["a.parquet", "b.jsonl"])
def test_a_shard_that_vanishes_in_mid_run_is_named_and_its_rows_are_kept(
    shard, make_desk, slower, check_finished, undisturbed
):
    desk = make_desk(model=slower(0.03))
    run = desk.start()
    desk.await_rows(8, run)
    (desk.path / "data" / shard).rename(desk.path / shard)
    run.wait()
    check_refused(run, f"{shard}: its columns cannot be read again")
    durable, before = desk.durable(), len(desk.received())
    assert durable
    (desk.path / shard).rename(desk.path / "data" / shard)
    desk.finish()
    assert [row for row in desk.received()[before:] if row in durable] == []
    check_finished(desk, undisturbed)


def test_the_other_shards_are_finished_while_one_is_gone(
    make_desk, slower, check_finished, undisturbed
):
    desk = make_desk()
    desk.crash("journal_append:3")
    (desk.path / "data" / "a.parquet").rename(desk.path / "a.parquet")
    run = desk.run()
    assert "a.parquet" in run.stderr
    (desk.path / "a.parquet").rename(desk.path / "data" / "a.parquet")
    desk.finish()
    check_finished(desk, undisturbed)
