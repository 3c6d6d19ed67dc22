"""What operators want from a run that nobody watches: pings, a webhook, metrics.

Nothing here changes an output, so nothing here is part of a fingerprint. The addresses in `notify`
are secrets, since whoever knows one may send to it: messages about them never quote a value, and
`config/masking.py` leaves only their host wherever a job is saved or printed.
"""

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from batchgen.config.section import Section, refusal
from batchgen.config.wording import shown

_PRINTABLE_ASCII = re.compile(r"[!-~]+")


def _check_url(value: Any) -> Any:
    if value is None or value == "":
        return None  # an environment variable that is not set, in quotes: "${PING_URL:-}"
    problem = url_problem(value) if isinstance(value, str) else "must be text, a whole URL"
    if problem is not None:
        raise refusal(problem)
    return value


def url_problem(url: str) -> str | None:
    """Why nothing can be sent to this URL, in words that do not repeat it; None where one can.

    >>> url_problem("ftp://host/secret")
    'must begin with http:// or https://'
    """
    if not re.match("https?://", url, re.IGNORECASE):
        return "must begin with http:// or https://"
    if not _PRINTABLE_ASCII.fullmatch(url):
        return "must not hold spaces or characters beyond ASCII; write them percent-encoded"
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_whole = False
    if not is_whole:
        return "is no whole URL; write it as https://host/path"
    if "@" in parts.netloc:
        return "must not hold a user name or password; use an address with its key in the path"
    return None


def _check_textfile(value: Any) -> Any:
    if isinstance(value, str) and not value.endswith(".prom"):
        raise refusal(
            f"must end in '.prom', node_exporter reads no other files, is {shown(value)}",
        )
    return value


SecretUrl = Annotated[
    str | None,
    BeforeValidator(_check_url),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://"}, {"type": "null"}]}
    ),
    Field(repr=False),
]
"""An http or https URL that must not be shown."""

ExitCode = Annotated[int, Field(ge=0, le=255)]
Textfile = Annotated[
    str | None,
    BeforeValidator(_check_textfile),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": r"\.prom$"}, {"type": "null"}]}),
]


class NotifyConfig(Section):
    """Who is told how a run goes. A failure to tell is one warning and never fails the run."""

    ping_url: SecretUrl = None
    """The ping URL of a dead man's switch (healthchecks.io and others with its convention): a POST
    to `<url>/start` when a run begins, to `<url>` after a success, to `<url>/fail` after any other
    end, each with a body that says more. A run that finds the directory locked (exit 75) pings
    nothing. The URL is a secret: write `${PING_URL:-}` and set it where the job runs."""
    ping_start: bool = True
    """Also ping `<url>/start`. Set it to false for a service that does not know this address."""
    webhook_url: SecretUrl = None
    """Gets the run's summary as JSON by POST at every end: the keys of `run --json` without
    `samples`, and `text`, one line that chat services (Slack, Mattermost) show. A secret, too."""
    timeout: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Most seconds that each of these may take, tries after a failure included. The start ping
    goes out beside the run's work and delays nothing."""
    success_exit_codes: list[ExitCode] = Field(default_factory=list)
    """Exit codes that count as a success beside 0: `[7]` for a corpus of many nights, where a
    deadline with rows left is no failure."""

    @model_validator(mode="before")
    @classmethod
    def _is_mapping(cls, value: Any) -> Any:
        if isinstance(value, dict | NotifyConfig):
            return value
        raise refusal("must be a mapping of keys and values, such as {ping_url: ...}")


class MetricsConfig(Section):
    """Metrics for Prometheus."""

    textfile: Textfile = None
    """A file for node_exporter's textfile collector, such as
    `/var/lib/node_exporter/textfile/summaries.prom`: rows, tokens, rates, phase, last success,
    replaced as a whole each second while a run works and once at its end. Each job needs a file of
    its own. A file that cannot be written is one warning."""
