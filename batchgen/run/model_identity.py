"""What a model's name stands for on this machine, so that a rerun notices other weights.

For a local directory the digest covers the configuration and tokenizer files by content and the
weights by name and size: reading gigabytes of weights at every start would cost more than it
tells. A hub id is identified by its revision in the job file.
"""

from hashlib import blake2b
from pathlib import Path

_BY_CONTENT = {".json", ".jinja", ".model", ".txt"}
_BY_SIZE = {".safetensors", ".bin", ".gguf", ".pt", ".pth"}
_LARGEST_CONTENT_BYTES = 64 << 20


def model_digest(*names: str | None) -> str | None:
    """128 bits over the local directories among `names`, as hex; None when none is one."""
    directories = [Path(name) for name in names if name is not None and Path(name).is_dir()]
    if not directories:
        return None
    digest = blake2b(digest_size=16)
    for directory in directories:
        for path in sorted(directory.iterdir()):
            if path.is_file():
                digest.update(_signature(path))
    return digest.hexdigest()


def _signature(path: Path) -> bytes:
    size = path.stat().st_size
    if path.suffix in _BY_CONTENT and size <= _LARGEST_CONTENT_BYTES:
        content = blake2b(path.read_bytes(), digest_size=16).hexdigest()
        return f"{path.name}\0{content}\n".encode()
    if path.suffix in _BY_SIZE:
        return f"{path.name}\0{size}\n".encode()
    return b""
