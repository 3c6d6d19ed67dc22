"""Addresses are checked before a run needs them, and no message quotes one."""

import pytest

from batchgen.config.models import NotifyConfig


def test_nothing_is_told_by_default(load):
    job = load()
    assert (job.notify.ping_url, job.notify.webhook_url, job.metrics.textfile) == (None, None, None)


@pytest.mark.parametrize(
    "url",
    [
        "https://hc-ping.com/0b1c",
        "HTTP://host/x",
        "http://127.0.0.1:8000/ping",
        "https://[::1]:8443/ping",
        "https://host",
        "https://host/a%20b?x=1",
    ],
)
def test_http_and_https_urls_are_taken(load, url):
    assert load(notify={"ping_url": url, "webhook_url": url}).notify.webhook_url == url


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/hunter2", "must begin with http:// or https://"),
        ("hunter2", "must begin with http:// or https://"),
        ("file:///hunter2", "must begin with http:// or https://"),
        ("https:///hunter2", "is no whole URL"),
        ("https://host:port/hunter2", "is no whole URL"),
        ("https://host:99999/hunter2", "is no whole URL"),
        ("https://[::1/hunter2", "is no whole URL"),
        ("https://host/hunter2 x", "must not hold spaces or characters beyond ASCII"),
        ("https://host/hunter2\n", "must not hold spaces or characters beyond ASCII"),
        ("https://host/hunter2-ü", "must not hold spaces or characters beyond ASCII"),
        ("https://me:hunter2@host/", "must not hold a user name or password"),
        (["https://host/hunter2"], "must be text, a whole URL"),
    ],
)
@pytest.mark.parametrize("key", ["ping_url", "webhook_url"])
def test_any_other_url_is_refused_without_quoting_it(section_problems, key, url, words):
    (problem,) = section_problems(notify={key: url})
    assert problem.startswith(f"notify.{key}: {words}")
    assert "hunter2" not in problem


def test_a_url_in_place_of_the_section_is_not_quoted(section_problems):
    (problem,) = section_problems(notify="https://host/hunter2")
    assert problem == "notify: must be a mapping of keys and values, such as {ping_url: ...}"


def test_a_variable_that_is_not_set_means_no_url(problems, load, monkeypatch):
    monkeypatch.delenv("PING_URL", raising=False)
    assert load(notify={"ping_url": "${PING_URL:-}"}).notify.ping_url is None


def test_problems_have_their_place(problems):
    text = (
        "input: {paths: [x]}\nprompt: {column: a}\nmodel: {engine: simulated}\n"
        "output: {path: o}\nnotify:\n  ping_url: nowhere\n  timeout: 0\n"
        "  success_exit_codes: [256]\nmetrics:\n  textfile: metrics.txt\n"
    )
    assert problems(text) == [
        "job.yaml:6:13: notify.ping_url: must begin with http:// or https://",
        "job.yaml:7:12: notify.timeout: must be greater than 0, is 0",
        "job.yaml:8:24: notify.success_exit_codes.0: must be at most 255, is 256",
        "job.yaml:10:13: metrics.textfile: must end in '.prom', node_exporter reads no other "
        "files, is 'metrics.txt'",
    ]


@pytest.mark.parametrize("timeout", [-1, float("inf"), float("nan"), 601, "10"])
def test_a_time_out_is_a_number_of_seconds(section_problems, timeout):
    (problem,) = section_problems(notify={"timeout": timeout})
    assert problem.startswith("notify.timeout: must be ")


def test_a_job_shows_no_address():
    config = NotifyConfig(ping_url="https://host/hunter2", webhook_url="https://host/hunter2")
    assert "hunter2" not in repr(config)
