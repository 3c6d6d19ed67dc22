"""Secrets never reach a manifest, a report or the terminal.

Masked are the values of keys that are named like a secret, credentials within URLs, and all but
the host of a URL that is a secret itself: whoever knows the address of a webhook may send to it.
"""

import re
from typing import Any

MASK = "***"
_SECRET_KEY = re.compile(
    r"(^|[_.-]|api|access|auth|secret)(key|token|secret|password|passwd)$", re.IGNORECASE
)
_SECRET_URL_KEY = re.compile(r"(^|[_.-])(ping|webhook)_?url$", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")
_URL = re.compile(r"\w+://[^\s,}\"']+")
_URL_HOST = re.compile(r"(\w+://)(?:[^/?#@]*@)?([^/?#@]+)")
_URL_SECRET = re.compile(
    r"(?<=[?&])([\w-]*(?:key|token|secret|password|signature))=[^&\s]+", re.IGNORECASE
)


def masked(value: Any, key: str = "") -> Any:
    """The same JSON value with secrets replaced.

    >>> masked({"hf_token": "abc", "url": "s3://me:pw@host/x", "max_tokens": 3})
    {'hf_token': '***', 'url': 's3://***@host/x', 'max_tokens': 3}
    """
    if _SECRET_KEY.search(key) and value is not None and not isinstance(value, bool):
        return MASK
    if _SECRET_URL_KEY.search(key) and isinstance(value, str):
        return masked_url(value)
    if isinstance(value, dict):
        return {name: masked(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    if isinstance(value, str):
        return _URL_SECRET.sub(rf"\1={MASK}", _URL_LOGIN.sub(f"{MASK}@", value))
    return value


def masked_url(url: str) -> str:
    """Scheme and host of a URL whose path is a secret; no more than a mask where it has none.

    >>> masked_url("https://hooks.example.org/services/T1/B2/secret")
    'https://hooks.example.org/***'
    """
    match = _URL_HOST.match(url)
    return f"{match[1]}{match[2]}/{MASK}" if match else MASK


def masked_override(override: str) -> str:
    """An override `key=value` as it may be shown.

    >>> masked_override("notify.ping_url=https://host/secret")
    'notify.ping_url=https://host/***'
    """
    key, equals, value = override.partition("=")
    if key.strip().split(".")[0] == "notify":
        return key + equals + _URL.sub(lambda match: masked_url(match[0]), value)
    return f"{key}{equals}{masked(value, key)}"
