"""Where a model's config.json is on this machine: its directory, or the cache of the hub.

Nothing is downloaded unless it is asked for, and then config.json and the index of the weights
alone: some kilobytes.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from batchgen.capacity.checkpoint import INDEX
from batchgen.errors import JobFileError

CONFIG: Final = "config.json"
SIMULATED: Final = "simulated"
"""`model.name` of a job that names none."""
ENDPOINT: Final = "https://huggingface.co"
TIMEOUT_S: Final = 5.0


def find_model_folder(
    name: str, revision: str | None = None, *, may_download: bool = False
) -> Path:
    """The directory that holds a model's config.json.

    Raises JobFileError where there is none on this machine, and it is not to be, or cannot be,
    downloaded.
    """
    folder = Path(name).expanduser()
    if name == SIMULATED and not folder.is_dir():
        raise JobFileError(
            "model.name: the simulated engine has no model to plan for; name the config.json of"
            " one (batchgen plan --config FILE)"
        )
    if folder.is_dir():
        if (folder / CONFIG).is_file():
            return folder
        raise JobFileError(
            f"model.name '{name}': the directory holds no config.json, so it is no model that vLLM"
            " can load"
        )
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise JobFileError(
            f"model.name '{name}': no such directory; to plan for a model that is not here, name"
            " its config.json (batchgen plan --config FILE)"
        )
    cached = _in_cache(name, revision)
    if cached is not None:
        return cached
    if not may_download:
        raise _absent(name, "it is not in the hub's cache")
    return _download(name, revision)


def _absent(name: str, reason: str) -> JobFileError:
    return JobFileError(
        f"model.name '{name}': no such directory, and as a hub id: {reason}; download it"
        f" (hf download {name}), or name its config.json (batchgen plan --config FILE)"
    )


def _in_cache(name: str, revision: str | None) -> Path | None:
    """The snapshot of a hub model in the cache, laid out as huggingface_hub documents it."""
    model = _cache_root() / f"models--{name.replace('/', '--')}"
    reference = model / "refs" / (revision or "main")
    try:
        commit = reference.read_text(encoding="utf-8").strip()
    except OSError:
        commit = revision or ""
    folder = model / "snapshots" / commit
    return folder if commit and (folder / CONFIG).is_file() else None


def _cache_root() -> Path:
    root = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if root:
        return Path(root).expanduser()
    home = os.environ.get("HF_HOME")
    if home is None:
        cache = os.environ.get("XDG_CACHE_HOME")
        home = str((Path(cache) if cache else Path.home() / ".cache") / "huggingface")
    return Path(home).expanduser() / "hub"


def hub_problem() -> str | None:
    """Why nothing can be fetched from the hub just now; None: it can be tried.

    The hub's own library tries for half a minute before it gives up on a machine without network.
    """
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return None
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or ENDPOINT)
    address = (endpoint.hostname or "", endpoint.port or 443)
    try:
        socket.create_connection(address, timeout=TIMEOUT_S).close()
    except OSError as exc:
        return f"{endpoint.hostname} cannot be reached ({exc.strerror or exc})"
    return None


def is_cached(name: str, revision: str | None) -> bool:
    """Whether a hub model's config.json is on this machine."""
    return _in_cache(name, revision) is not None


def _download(name: str, revision: str | None) -> Path:
    problem = hub_problem()
    if problem is not None:
        raise _absent(name, f"it is not in the hub's cache, and {problem}")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError as exc:
        raise _absent(name, "huggingface_hub, which could fetch it, is not installed") from exc
    try:
        path = hf_hub_download(name, CONFIG, revision=revision, etag_timeout=TIMEOUT_S)
        with suppress(EntryNotFoundError):  # a model in one file has no index
            hf_hub_download(name, INDEX, revision=revision, etag_timeout=TIMEOUT_S)
    except Exception as exc:
        words = next(iter(str(exc).strip().splitlines()), "") or type(exc).__name__
        raise _absent(name, f"its config.json cannot be fetched ({words.rstrip('.')})") from exc
    return Path(path).parent
