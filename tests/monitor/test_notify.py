"""Whatever a server does, a run hears one warning at most, and no message shows a secret."""

import json
from contextlib import contextmanager

import pytest
from monitor.receiver import http_receiver, raw_server, refusing_url

from batchgen.config.models import NotifyConfig
from batchgen.monitor.notify import Notifier, ping_address

SECRET = "hunter2-f00"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def receiver():
    with http_receiver() as server:
        yield server


class Run:
    """A notifier whose warnings are kept."""

    def __init__(self, *, pauses_s=(), **config):
        self.warnings = []
        self.notifier = Notifier(NotifyConfig(**config), self.warnings.append, pauses_s=pauses_s)

    def end(self, exit_code=0, text="it is over", **summary):
        self.notifier.end(exit_code, text, summary)
        return self.warnings


def test_a_success_pings_start_and_the_url_itself(receiver):
    run = Run(ping_url=f"{receiver.url}/ping/{SECRET}")
    run.notifier.start("it begins")
    assert run.end() == []
    assert [request[:2] for request in receiver.received] == [
        ("POST", f"/ping/{SECRET}/start"),
        ("POST", f"/ping/{SECRET}"),
    ]
    assert [request.body for request in receiver.received] == ["it begins", "it is over"]


@pytest.mark.parametrize("exit_code", [1, 3, 4, 5, 6, 7, 130, 143])
def test_any_other_exit_code_pings_fail(receiver, exit_code):
    run = Run(ping_url=f"{receiver.url}/{SECRET}/")
    assert run.end(exit_code) == []
    assert receiver.paths == [f"/{SECRET}/fail"]


def test_an_exit_code_may_be_declared_a_success(receiver):
    Run(ping_url=f"{receiver.url}/{SECRET}", success_exit_codes=[7]).end(7)
    assert receiver.paths == [f"/{SECRET}"]


def test_the_start_ping_can_be_left_out(receiver):
    run = Run(ping_url=f"{receiver.url}/{SECRET}", ping_start=False)
    run.notifier.start("it begins")
    run.end()
    assert receiver.paths == [f"/{SECRET}"]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://host/a", "https://host/a/fail"),
        ("https://host/a/", "https://host/a/fail"),
        ("https://host", "https://host/fail"),
        ("https://host:8443/a?rid=1", "https://host:8443/a/fail?rid=1"),
    ],
)
def test_the_step_is_added_to_the_path(url, address):
    assert ping_address(url, "fail") == address
    assert ping_address(url, "") == url


def test_a_webhook_gets_the_summary_as_json_at_the_end_alone(receiver):
    run = Run(webhook_url=f"{receiver.url}/{SECRET}")
    run.notifier.start("it begins")
    assert run.end(num_rows=5, text_of_a_row="ä\ud800", rate=None) == []
    (request,) = receiver.received
    assert request.content_type == "application/json"
    assert json.loads(request.body) == {"num_rows": 5, "text_of_a_row": "ä\ud800", "rate": None}


def test_a_long_body_is_cut_between_characters(receiver):
    Run(ping_url=f"{receiver.url}/{SECRET}").end(text="x" + "ä" * 9_000)
    assert receiver.received[0].body == "x" + "ä" * 4_999


def test_nothing_is_sent_where_nothing_is_configured():
    run = Run()
    run.notifier.start("it begins")
    assert run.end() == []


def test_a_ping_is_tried_again_after_a_failure_that_may_pass(receiver):
    receiver.statuses = [503, 503, 200]
    run = Run(ping_url=f"{receiver.url}/{SECRET}", pauses_s=(0.01, 0.01))
    assert run.end() == []
    assert receiver.paths == [f"/{SECRET}"] * 3


def test_a_ping_that_is_refused_for_good_is_not_tried_again(receiver):
    receiver.statuses = [404]
    run = Run(ping_url=f"{receiver.url}/{SECRET}", pauses_s=(0.01, 0.01))
    assert len(run.end()) == 1
    assert len(receiver.received) == 1


def test_a_webhook_is_sent_once(receiver):
    receiver.statuses = [500]
    run = Run(webhook_url=f"{receiver.url}/{SECRET}", pauses_s=(0.01, 0.01))
    assert len(run.end()) == 1
    assert len(receiver.received) == 1


def test_a_redirect_is_not_followed(receiver):
    receiver.statuses, receiver.headers = [301], {"Location": f"{receiver.url}/elsewhere"}
    (warning,) = Run(webhook_url=f"{receiver.url}/{SECRET}").end()
    assert "answered 301 Moved Permanently; write the address that it points to" in warning
    assert receiver.paths == [f"/{SECRET}"]


def test_the_end_waits_for_a_slow_start(receiver):
    receiver.may_answer.clear()
    run = Run(ping_url=f"{receiver.url}/{SECRET}", timeout=30)
    run.notifier.start("it begins")
    receiver.may_answer.set()
    run.end()
    assert receiver.paths == [f"/{SECRET}/start", f"/{SECRET}"]


def test_a_start_that_failed_is_told_at_the_end(receiver):
    receiver.statuses = [404, 200]
    run = Run(ping_url=f"{receiver.url}/{SECRET}")
    run.notifier.start("it begins")
    (warning,) = run.end()
    assert "answered 404" in warning


def test_proxies_come_from_the_environment(receiver, monkeypatch):
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", receiver.url)
    assert Run(ping_url=f"http://nowhere.invalid/{SECRET}").end() == []
    assert receiver.paths == [f"http://nowhere.invalid/{SECRET}"]


@contextmanager
def answering(status):
    with http_receiver() as server:
        server.statuses = [status]
        yield server.url


@contextmanager
def at(url):
    yield url


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (lambda: answering(500), "answered 500 Internal Server Error"),
        (lambda: answering(403), "answered 403 Forbidden"),
        (lambda: answering(799), "answered 799"),
        (lambda: at(refusing_url()), "cannot be reached: Connection refused"),
        (lambda: raw_server(), "no answer within 0.5 s"),
        (lambda: raw_server(b"HTTP/1.1 200 OK\r\nX: ", b"x", repeats=500), "no answer within 0.5"),
        (lambda: raw_server(b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000), "cannot be reached: "),
        (lambda: raw_server(f"go to /{SECRET}\r\n\r\n".encode()), "cannot be reached: "),
    ],
    ids=["500", "403", "799", "refused", "silent", "trickle", "endless", "no-http"],
)
@pytest.mark.parametrize("key", ["ping_url", "webhook_url"])
def test_every_failure_is_one_warning_without_secret(server, words, key):
    with server() as url:
        run = Run(**{key: f"{url}/{SECRET}?{SECRET}=1"}, timeout=0.5)
        run.notifier.start("it begins")
        (warning,) = run.end()
    assert warning.startswith(f"notify.{key}: {url}/***: {words}")
    assert SECRET not in warning
