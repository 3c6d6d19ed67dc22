"""Why vLLM does not start, in the user's words and with a remedy.

vLLM reports nearly everything as a ValueError, OSError or RuntimeError with a long text. The
table maps a piece of that text to what can be done; the first line of the text goes along.
"""

from collections.abc import Sequence
from typing import Final

_REMEDIES: Final[Sequence[tuple[tuple[str, ...], str]]] = (
    (
        ("no available memory for the cache", "no available memory for cache blocks"),
        "nothing is left for the KV cache: lower model.max_model_len, raise"
        " model.extra.gpu_memory_utilization, or use a smaller model",
    ),
    (
        ("kv cache is needed", "larger than the available kv cache memory", "to serve at least"),
        "the KV cache does not hold one sequence of full length: lower model.max_model_len, or"
        " raise model.extra.kv_cache_memory_bytes",
    ),
    (
        ("out of memory", "cannot allocate memory", "free memory on device", "available memory"),
        "the memory does not suffice: end what else uses it, lower"
        " model.extra.gpu_memory_utilization (or kv_cache_memory_bytes), or use a smaller model",
    ),
    (
        ("is greater than the derived max_model_len", "max_position_embeddings"),
        "the model cannot take that many tokens: lower model.max_model_len",
    ),
    (
        (
            "is not a local folder",
            "can't load the configuration",
            "couldn't connect to",
            "invalid repository id",
            "repository not found",
        ),
        "there is no such directory here, and no model of this name could be fetched: check"
        " model.name (paths are relative to the working directory)",
    ),
    (
        ("gated repo", "401 client error", "403 client error", "restricted"),
        "the hub refuses this model: accept its terms there and set HF_TOKEN",
    ),
    (
        ("cannot find any model weights", "no such file", "does not appear to have a file"),
        "the model directory is incomplete: it needs config.json, the tokenizer's files and"
        " *.safetensors",
    ),
    (
        ("model architectures", "not supported for now", "does not recognize this architecture"),
        "this vLLM does not know the model's architecture: use another model or a newer vLLM",
    ),
    (
        ("torchvision::nms",),
        "torchvision does not fit the installed torch: `pip uninstall torchvision` (text models"
        " do not need it)",
    ),
    (
        ("tensor parallel", "world size", "number of gpus", "cuda devices"),
        "model.extra.tensor_parallel_size must fit the number of devices",
    ),
    (
        ("device type", "no cuda", "nvidia driver", "found no nvidia"),
        "this vLLM needs a GPU and found none; on a CPU install the CPU build (see README,"
        " Installation)",
    ),
    (
        ("reasoning parser",),
        "set model.reasoning_parser to one of these, or leave it out",
    ),
    (
        ("engine core initialization failed", "failed core proc", "workerproc"),
        "an engine process ended while it started; what it said stands above or in the log",
    ),
)


def start_failure(model_name: str, error: BaseException) -> list[str]:
    """Lines for an EngineError: what failed, vLLM's own words, and what to do."""
    text = str(error) or type(error).__name__
    lowered = text.lower()
    remedy = next(
        (advice for signs, advice in _REMEDIES if any(sign in lowered for sign in signs)),
        "BATCHGEN_DEBUG=1 and VLLM_LOGGING_LEVEL=INFO show more",
    )
    return [f"vLLM cannot start model {model_name!r}: {first_sentence(text)}", remedy]


def first_sentence(text: str, most: int = 300) -> str:
    """The first line that says something, cut to a readable length."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return text
    line = lines[0]
    if "validation error" in line and len(lines) > 1:
        line = lines[1].partition(" [type=")[0].removeprefix("Value error, ")
    return line if len(line) <= most else line[: most - 3] + "..."
