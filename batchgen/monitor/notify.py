"""Tells a dead man's switch and a webhook how a run goes, and can do the run no harm.

A dead man's switch (healthchecks.io and others with its convention) raises the alarm when a ping
does *not* come, so a machine that is off is noticed, too. A webhook gets the summary as JSON.

Each message has a thread of its own. A name that does not resolve or a reply that trickles in byte
by byte passes every time-out of a socket; here it costs its thread, while the run waits for its
time-out and no longer. A ping that fails is tried again within that time, since one lost packet
should wake nobody; a webhook is not, since it might have been heard.

The addresses are secrets: messages hold their host alone, and a redirect is no success. (Followed,
it would turn the POST into a GET without body, and show the secret to another host.)
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from batchgen import __version__
from batchgen.config.masking import MASK, masked_url
from batchgen.config.operation import NotifyConfig

PING_PAUSES_S: Final = (1.0, 2.0, 4.0)
"""Pauses before further tries of a ping."""
MAX_BODY_BYTES: Final = 10_000
"""Of a ping: services keep so much, or less, of it."""

MAX_REASON_CHARS: Final = 200


class NotSent(Exception):
    """A message did not arrive, in words without a secret. `may_pass`: another try may work."""

    def __init__(self, reason: str, *, may_pass: bool) -> None:
        super().__init__(reason)
        self.may_pass = may_pass


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent where; `key` is the job's key for the address."""

    key: str
    url: str
    content_type: str
    body: bytes


class Delivery:
    """One message on its way, in a thread of its own, for `timeout_s` at most."""

    def __init__(
        self, message: Message, timeout_s: float, *, pauses_s: Iterable[float] = ()
    ) -> None:
        self._message = message
        self._pauses_s = tuple(pauses_s)
        self._end = time.monotonic() + timeout_s
        self._problem: str | None = f"no answer within {timeout_s:g} s"
        self._is_last_try = threading.Event()
        self._thread = threading.Thread(target=self._deliver, name="batchgen-notify", daemon=True)
        self._thread.start()

    def problem(self, *, is_last_try: bool = False) -> str | None:
        """What kept it from arriving; None where it has arrived. Waits until its time is over.

        `is_last_try`: a try that is under way may end, another one is not made.
        """
        if is_last_try:
            self._is_last_try.set()
        self._thread.join(max(0.0, self._end - time.monotonic()))
        return self._problem

    def _deliver(self) -> None:
        for pause_s in (*self._pauses_s, None):
            left_s = self._end - time.monotonic()
            if left_s <= 0:
                return
            try:
                send(self._message, left_s)
            except TimeoutError:
                return
            except NotSent as exc:
                self._problem = str(exc)
                if pause_s is None or not exc.may_pass:
                    return
                if self._is_last_try.wait(min(pause_s, left_s)):
                    return
            else:
                self._problem = None
                return


class Notifier:
    """The messages of one run: `start`, then `end`. Neither raises; `warn` hears what failed."""

    def __init__(
        self,
        config: NotifyConfig,
        warn: Callable[[str], None],
        *,
        pauses_s: Iterable[float] = PING_PAUSES_S,
    ) -> None:
        self._config = config
        self._warn = warn
        self._pauses_s = tuple(pauses_s)
        self._start: Delivery | None = None

    def start(self, text: str) -> None:
        """A run has begun. Returns at once."""
        if self._config.ping_url is not None and self._config.ping_start:
            self._start = self._ping(self._config.ping_url, "start", text)

    def end(self, exit_code: int, text: str, summary: Mapping[str, Any]) -> None:
        """A run has ended. Waits for what is still on its way: twice the time-out at most.

        The webhook gets `summary`, the ping `text`, its success or failure by `exit_code`.
        """
        config = self._config
        webhook = None if config.webhook_url is None else self._post(config.webhook_url, summary)
        if config.ping_url is not None:
            is_success = exit_code in {0, *config.success_exit_codes}
            # A start that arrives behind the end would look like a run that hangs.
            start_problem = self._start.problem(is_last_try=True) if self._start else None
            ping = self._ping(config.ping_url, "" if is_success else "fail", text)
            self._report("ping_url", config.ping_url, ping.problem() or start_problem)
        if config.webhook_url is not None and webhook is not None:
            self._report("webhook_url", config.webhook_url, webhook.problem())

    def _ping(self, url: str, step: str, text: str) -> Delivery:
        body = text.encode("utf-8", "backslashreplace")[:MAX_BODY_BYTES]
        body = body.decode("utf-8", "ignore").encode()
        message = Message("ping_url", ping_address(url, step), "text/plain; charset=utf-8", body)
        return Delivery(message, self._config.timeout, pauses_s=self._pauses_s)

    def _post(self, url: str, summary: Mapping[str, Any]) -> Delivery:
        body = json.dumps(summary, default=str).encode()
        return Delivery(Message("webhook_url", url, "application/json", body), self._config.timeout)

    def _report(self, key: str, url: str, problem: str | None) -> None:
        if problem is not None:
            self._warn(
                f"notify.{key}: {masked_url(url)}: {problem}; the run itself is not affected"
            )


def ping_address(url: str, step: str) -> str:
    """The address for `start` or `fail`; for a success, the empty step, the URL as it is.

    >>> ping_address("https://host/ping/secret?rid=1", "fail")
    'https://host/ping/secret/fail?rid=1'
    """
    if not step:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{step}"))


def send(message: Message, timeout_s: float) -> None:
    """POST a message once; any status of 2xx is an arrival. Proxies come from the environment.

    `timeout_s` is for each operation on the socket. Raises TimeoutError or NotSent.
    """
    import http.client
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args: Any, **kwargs: Any) -> None:
            return None

    headers = {"Content-Type": message.content_type, "User-Agent": f"batchgen/{__version__}"}
    request = urllib.request.Request(message.url, message.body, headers, method="POST")
    try:
        urllib.request.build_opener(NoRedirect).open(request, timeout=timeout_s).close()
    except urllib.error.HTTPError as exc:
        exc.close()
        raise _refused(exc.code, http.client.responses.get(exc.code, "")) from None
    except urllib.error.URLError as exc:
        if isinstance(exc.reason, TimeoutError):
            raise exc.reason from None
        raise _unreachable(exc.reason, message.url) from None
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as exc:
        raise _unreachable(exc, message.url) from None


def _refused(status: int, phrase: str) -> NotSent:
    hint = "; write the address that it points to" if 300 <= status < 400 else ""
    may_pass = status >= 500 or status in (408, 429)
    return NotSent(f"answered {status} {phrase}".rstrip() + hint, may_pass=may_pass)


def _unreachable(reason: object, url: str) -> NotSent:
    words = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    parts = urlsplit(url)
    for secret in (url, f"{parts.path}?{parts.query}", parts.path, parts.query):
        if len(secret) > 1:
            words = words.replace(secret, MASK)
    text = f"cannot be reached: {words[:MAX_REASON_CHARS]}"
    return NotSent(text, may_pass=isinstance(reason, OSError))
