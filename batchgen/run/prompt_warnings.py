"""What a look at some prompts says about all of them: worth a warning, no reason to refuse.

Most of it is about the prefix cache. An engine keeps the KV cache of what it has computed, and a
prompt that begins like an earlier one takes that part from there, in whole blocks. Instructions
that all rows share are free if they stand in front and fill a block; behind the row's own text
they are computed for every row.
"""

from collections.abc import Sequence
from typing import Final

from batchgen.config.models import JobConfig
from batchgen.engine.factory import kv_block_tokens
from batchgen.protocols import Tokenizer
from batchgen.records import Prompt

BLOCK_SIZES: Final = (64, 32)
"""Blocks smaller than the 128 tokens of the CPU build that it takes as well; GPUs have 16."""
LONG_TAIL_CHARS: Final = 80
"""Shared text behind the document that is worth a warning: about one KV block of 16 tokens."""


def prompt_warnings(
    job: JobConfig,
    prompts: Sequence[Prompt],
    tokenizer: Tokenizer | None,
    max_model_len: int | None,
) -> list[str]:
    """Warnings about these prompts; without a tokenizer, those that need no token counts."""
    warnings = _order_warnings(job)
    if tokenizer is not None:
        warnings = [
            *_bos_warnings(job, tokenizer),
            *(warnings or _block_warnings(job, prompts)),
            *_room_warnings(prompts, max_model_len),
        ]
    return warnings


def _prompt_source(job: JobConfig) -> tuple[str, str]:
    """The key of the job's own prompt text, and that text; empty for ready-made prompts."""
    if job.prompt.template is not None:
        return "prompt.template", job.prompt.template
    messages = job.prompt.messages or []
    return "prompt.messages", "\n".join(message.content for message in messages)


def _bos_warnings(job: JobConfig, tokenizer: Tokenizer) -> list[str]:
    key, text = _prompt_source(job)
    bos = tokenizer.bos_token
    if not bos or bos not in text:
        return []
    return [
        f"{job.where(key)}: holds '{bos}', the tokenizer's BOS text; BOS is added by itself, and"
        " only one is kept: leave it out"
    ]


def _order_warnings(job: JobConfig) -> list[str]:
    """Shared text behind the document costs a prefill for every row; before it, only for one."""
    key, text = _prompt_source(job)
    head, end = text.find("{{"), text.rfind("}}")
    if head < 0 or end < 0:
        return []
    behind = len(text) - end - 2
    if behind < LONG_TAIL_CHARS or behind <= head:
        return []
    return [
        f"{job.where(key)}: {behind} characters that all prompts share stand behind the row's own"
        " text; the prefix cache reuses only what stands before it: move the instructions to the"
        " front"
    ]


def _block_warnings(job: JobConfig, prompts: Sequence[Prompt]) -> list[str]:
    """A shared start that is shorter than a KV block is computed for every row."""
    num_shared, block = common_start(prompts), kv_block_tokens(job.model)
    smaller = next((size for size in BLOCK_SIZES if size <= num_shared < block), None)
    if smaller is None:
        return []
    key, _ = _prompt_source(job)
    setting = "block_size" if job.model.engine == "vllm" else "kv_block_tokens"
    return [
        f"{job.where(key)}: the prompts looked at share their first {num_shared} tokens, and the"
        f" prefix cache reuses whole blocks of {block}: nothing of it is reused; set"
        f" model.extra.{setting} to {smaller}"
    ]


def common_start(prompts: Sequence[Prompt]) -> int:
    """Tokens with which all of these prompts begin; 0 for fewer than two prompts."""
    if len(prompts) < 2:
        return 0
    rows = [prompt.token_ids for prompt in prompts]
    num_shared = 0
    for tokens in zip(*rows, strict=False):
        if any(token != tokens[0] for token in tokens):
            break
        num_shared += 1
    return num_shared


def _room_warnings(prompts: Sequence[Prompt], max_model_len: int | None) -> list[str]:
    if max_model_len is None:
        return []
    short = [
        prompt
        for prompt in prompts
        if len(prompt.token_ids) + (prompt.sampling.max_tokens or 0) > max_model_len
    ]
    if not short:
        return []
    first = short[0]
    return [
        f"{len(short)} of {len(prompts)} prompts looked at leave less room than sampling.max_tokens"
        f" in {max_model_len} tokens (first {first.key}: {len(first.token_ids)} prompt tokens,"
        f" max_tokens {first.sampling.max_tokens}): their completions are cut earlier; raise"
        " model.max_model_len or lower sampling.max_tokens"
    ]
