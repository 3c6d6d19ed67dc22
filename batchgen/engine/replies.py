"""What the simulated engine says: deterministic texts that name their prompt.

A reply begins with `Reply to:` and the start of its prompt, so that a text which was joined to the
wrong row shows. One word between blanks is one token. Lengths are skewed as those of real models
are (log-normal), and fixed by the prompt. With a temperature a reply also depends on the seed, or
on the row where there is none, and each of `n` samples is another.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import cycle, islice
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import orjson
from pydantic import ValidationError

from batchgen.config.simulated import ScriptedReply, SimulatedOptions
from batchgen.errors import JobFileError
from batchgen.records import Request, RowKey, Sample

_NAMED_WORDS: Final = 24
"""Words of the prompt that a reply repeats at most."""
_FILLER: Final = ("and", "the", "river", "keeps", "its", "name", "while", "water", "goes", "by")
_NORMAL: Final = NormalDist()
_NOTHING: Final = ScriptedReply()


@dataclass(frozen=True, slots=True)
class Script:
    """What to do with single rows; rows that it does not name get a reply of their own."""

    rows: Mapping[str, ScriptedReply]

    def of(self, row: RowKey) -> ScriptedReply:
        """The directions for a row."""
        return self.rows.get(f"{row.shard}:{row.row}", _NOTHING) if self.rows else _NOTHING


def load_script(script: str | Mapping[str, ScriptedReply] | None) -> Script:
    """The script of a job: given inline, or the path of a JSON or JSONL file.

    Raises JobFileError for a file that cannot be read or holds something else.
    """
    if not isinstance(script, str):
        return Script(script or {})
    path = Path(script)
    try:
        content = path.read_bytes()
        rows = _jsonl_rows(content) if path.suffix == ".jsonl" else orjson.loads(content)
        return Script({key: ScriptedReply.model_validate(row) for key, row in rows.items()})
    except OSError as exc:
        raise JobFileError(
            f"model.extra.script: cannot read {script!r}: {exc.strerror}; paths are relative to"
            " the working directory"
        ) from exc
    except (ValidationError, ValueError, KeyError, AttributeError) as exc:
        raise JobFileError(
            f"model.extra.script: {script!r} is no script: {exc}; a JSON file maps 'shard:row'"
            " to reply, reply_tokens, finish_reason, fault or stall_s, and a line of a JSONL"
            " file holds these beside 'shard' and 'row'"
        ) from exc


def _jsonl_rows(content: bytes) -> dict[str, dict[str, Any]]:
    rows = {}
    for line in content.split(b"\n"):
        if line.strip():
            row = orjson.loads(line)
            rows[f"{row.pop('shard')}:{row.pop('row')}"] = row
    return rows


def write_samples(
    request: Request, script: ScriptedReply, options: SimulatedOptions, max_model_len: int
) -> tuple[Sample, ...]:
    """The `n` samples of a request, each cut at `max_tokens` and at the model's length."""
    values = request.sampling.values
    limit = max_model_len - len(request.token_ids)
    max_tokens = request.sampling.max_tokens
    if max_tokens is not None:
        limit = min(limit, max_tokens)
    return tuple(
        _write_sample(request, index, script, options, values, limit)
        for index in range(request.sampling.n)
    )


def _write_sample(
    request: Request,
    index: int,
    script: ScriptedReply,
    options: SimulatedOptions,
    values: Mapping[str, Any],
    limit: int,
) -> Sample:
    tag = _tag(request, index)
    fixed = script.reply if script.reply is not None else _structured(values, request)
    text = fixed if fixed is not None else _lead(request.text, tag)
    num_words = max(1, len(text.split()))
    num_tokens = num_words
    if script.reply_tokens is not None:
        num_tokens = script.reply_tokens
    elif fixed is None:
        num_tokens = max(num_words, _natural_length(request, tag, options))
        num_tokens = max(num_tokens, values.get("min_tokens") or 0)
        if values.get("ignore_eos"):
            num_tokens = limit + 1
    reason = script.finish_reason or ("length" if num_tokens > limit else "stop")
    num_tokens = min(num_tokens, limit)
    if fixed is None:
        text = _fill(text, num_tokens - num_words, tag)
    if fixed is None or num_words > limit:
        text = first_words(text, num_tokens)
    return Sample(text, num_tokens, reason, logprobs=_logprobs(text, values.get("logprobs")))


def _tag(request: Request, index: int) -> bytes:
    """What makes a sample differ from others of the same prompt; empty where nothing does."""
    if request.sampling.is_deterministic or request.sampling.values.get("temperature") == 0:
        return b""
    source = request.seed if request.seed is not None else request.row
    return blake2b(f"{source}/{index}".encode("utf-8", "surrogatepass"), digest_size=4).digest()


def _lead(prompt: str, tag: bytes) -> str:
    named = first_words(prompt, _NAMED_WORDS)
    return f"Reply {tag.hex()} to: {named}" if tag else f"Reply to: {named}"


def _natural_length(request: Request, tag: bytes, options: SimulatedOptions) -> int:
    text = request.text.encode("utf-8", "surrogatepass")
    number = int.from_bytes(blake2b(text, digest_size=6, key=tag).digest(), "big")
    deviation = _NORMAL.inv_cdf((number + 0.5) / 2**48)
    return max(1, round(options.reply_tokens * math.exp(options.reply_sigma * deviation)))


def _fill(text: str, num_words: int, tag: bytes) -> str:
    if num_words <= 0:
        return text
    start = tag[0] % len(_FILLER) if tag else 0
    words = islice(cycle(_FILLER), start, start + num_words)
    return f"{text} {' '.join(words)}"


def first_words(text: str, num_words: int) -> str:
    """The start of a text up to the end of a word; the whole text where it is shorter.

    >>> first_words("a  b c", 2)
    'a  b'
    """
    word = next(islice(re.finditer(r"\S+", text), num_words, None), None)
    return text if word is None else text[: word.start()].rstrip()


def is_json_object(text: str) -> bool:
    """Whether the text is a JSON object."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _logprobs(text: str, num_candidates: int | None) -> list[list[dict[str, Any]]] | None:
    if num_candidates is None:
        return None
    return [
        [
            {"token_id": rank, "token": word, "logprob": -0.5 * rank, "rank": rank}
            for rank in range(1, max(1, num_candidates) + 1)
        ]
        for word in text.split()
    ]


def _structured(values: Mapping[str, Any], request: Request) -> str | None:
    schema = values.get("json_schema")
    if schema is None:
        return None
    root = orjson.loads(schema)
    return json.dumps(_instance(root, root, request.text, 0), ensure_ascii=False)


def _instance(schema: Any, root: Any, prompt: str, depth: int) -> Any:
    """A small value that fits the common keywords of a JSON schema."""
    if not isinstance(schema, dict) or depth > 16:
        return None
    if "$ref" in schema:
        return _instance(_resolve(schema["$ref"], root), root, prompt, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _instance(schema[key][0], root, prompt, depth + 1)
    if "const" in schema or schema.get("enum"):
        return schema["const"] if "const" in schema else schema["enum"][0]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            properties = schema.get("properties", {})
            return {k: _instance(v, root, prompt, depth + 1) for k, v in properties.items()}
        case "array":
            item = schema.get("items", {})
            return [_instance(item, root, prompt, depth + 1)] * schema.get("minItems", 1)
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return f"Reply to: {first_words(prompt, _NAMED_WORDS)}"


def _resolve(reference: str, root: Any) -> Any:
    target = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        target = target.get(step) if isinstance(target, dict) and step else target
    return target
