"""One writer per run directory, and no output among the inputs."""

import signal
import socket

import pytest

pytestmark = pytest.mark.slow


def traces(desk):
    """Every file of the run directory, as it was last changed."""
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns, path.stat().st_ctime_ns)
        for path in desk.layout.path.rglob("*")
    }


def test_a_second_run_is_refused_and_touches_nothing(
    make_desk, slower, check_finished, undisturbed
):
    desk = make_desk(model=slower(0.01))
    first = desk.start()
    desk.await_rows(20, first)
    first.kill(signal.SIGSTOP)
    before = traces(desk)
    second = desk.run()
    assert second.code == 75
    assert f"process {first.pid} on {socket.gethostname()} since 20" in second.stderr
    assert second.stdout == ""
    assert traces(desk) == before
    first.kill(signal.SIGCONT)
    assert first.wait() == 0
    check_finished(desk, undisturbed)


@pytest.mark.parametrize("option", ["--fresh", "--retry-failed"])
def test_options_do_not_get_around_the_lock(option, make_desk, slower):
    desk = make_desk(model=slower(0.01))
    first = desk.start()
    desk.await_rows(20, first)
    assert desk.run(option).code == 75
    assert first.wait() == 0
    desk.verify()


def test_the_lock_of_a_killed_run_is_taken_over(make_desk, check_finished, undisturbed):
    desk = make_desk()
    desk.crash("journal_append:2")
    assert (desk.layout.hidden / "holder.json").exists()
    desk.finish()
    check_finished(desk, undisturbed)


@pytest.mark.parametrize(
    ("paths", "output"),
    [
        (["data"], "data/out"),
        (["**/*.parquet"], "out"),
        (["data/**/*.parquet", "data/b.jsonl"], "data/deep/out"),
    ],
)
def test_an_output_directory_among_the_inputs_is_refused(paths, output, make_desk):
    desk = make_desk(input={"paths": paths}, output={"path": output})
    run = desk.run()
    assert run.code == 4
    assert output in run.stderr
    assert not desk.layout.path.exists()
