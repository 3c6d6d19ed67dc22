"""Fixtures that several rooms share: shards on disk, a tiny model, the one real engine."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No deadline: the machine may be busy. In CI the same examples each time.
settings.register_profile("batchgen", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("batchgen")
# Drawing plots after each of the runs that tests make would take longer than the tests.
os.environ["BATCHGEN_NO_REPORT"] = "1"

Rows = Sequence[Mapping[str, Any]]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = (
    "the river keeps its name while the water in it changes every day",
    "a batch is closed by size or by a time-out, and a window is kept full",
    "reply to: summarize the following text in two sentences, then stop",
    "silver valley north garden small paper market coast seven early letter",
)


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[[str, Rows], Path]:
    """Write rows as a JSONL shard below `tmp_path`; its path."""

    def write(name: str, rows: Rows) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        path.write_bytes("".join(lines).encode())
        return path

    return write


@pytest.fixture
def write_parquet(tmp_path: Path) -> Callable[[str, Rows], Path]:
    """Write rows as a Parquet shard below `tmp_path`; its path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(name: str, rows: Rows) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
        return path

    return write


@pytest.fixture(scope="session")
def tiny_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer of some 400 tokens with a chat template, made on the spot."""
    path = tmp_path_factory.mktemp("tiny-tokenizer")
    save_tiny_tokenizer(path)
    return path


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers with that tokenizer: real files, a few hundred kilobytes."""
    path = tmp_path_factory.mktemp("tiny-model")
    vocab_size = save_tiny_tokenizer(path)
    save_tiny_model(path, vocab_size)
    return path


@pytest.fixture(scope="session")
def tiny_vllm(tiny_model_dir: Path) -> Iterator[Any]:
    """The one vLLM engine of the test session: tiny model, 256 tokens, 16 slots, in-process."""
    from batchgen.config.models import ModelConfig
    from batchgen.engine.clock import RealClock
    from batchgen.engine.vllm import VllmEngine

    model = ModelConfig(
        name=str(tiny_model_dir),
        engine="vllm",
        max_model_len=256,
        max_num_seqs=16,
        extra={"kv_cache_memory_bytes": 64 * 2**20, "block_size": 32},
    )
    engine = VllmEngine(model, clock=RealClock())
    yield engine
    engine.close()


def save_tiny_tokenizer(path: Path) -> int:
    """Train the tokenizer and save it in Hugging Face's form; its number of tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 2048,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return int(tokenizer.get_vocab_size())


def save_tiny_model(path: Path, vocab_size: int) -> None:
    """Random weights, the same ones each time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=vocab_size,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(path)
