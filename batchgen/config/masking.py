"""Secrets never reach a manifest, a report or the terminal.

Masked are the values of keys that are named like a secret, and credentials within URLs.
"""

import re
from typing import Any

MASK = "***"
_SECRET_KEY = re.compile(
    r"(^|[_.-]|api|access|auth|secret)(key|token|secret|password|passwd)$", re.IGNORECASE
)
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")
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
    if isinstance(value, dict):
        return {name: masked(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    if isinstance(value, str):
        return _URL_SECRET.sub(rf"\1={MASK}", _URL_LOGIN.sub(f"{MASK}@", value))
    return value
