"""What batchgen chooses for vLLM, and what it leaves to the user."""

from typing import Any

import pytest

from batchgen.engine.vllm_settings import (
    GIB,
    ChosenSettings,
    Machine,
    choose_settings,
    kv_bytes_per_token,
    kv_cache_bytes,
)

SMOLLM2 = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
SMOLLM2 |= {"hidden_size": 576, "max_position_embeddings": 8192}


def choose(
    given: dict[str, Any] | None = None,
    *,
    is_cpu: bool = True,
    flags: frozenset[str] = frozenset({"avx2"}),
    environment: dict[str, str] | None = None,
) -> ChosenSettings:
    return choose_settings(
        given or {},
        max_num_seqs=64,
        max_model_len=2048,
        model_config=SMOLLM2,
        machine=Machine(is_cpu, flags, num_cpus=4, available_bytes=16 * GIB),
        environment=environment or {},
    )


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [({"avx2"}, "float32"), ({"avx512_bf16"}, "bfloat16"), ({"amx_bf16"}, "bfloat16")],
)
def test_a_cpu_gets_the_number_format_that_it_is_fast_with(flags: set[str], dtype: str) -> None:
    chosen = choose(flags=frozenset(flags))
    assert chosen.arguments["dtype"] == dtype
    assert any(note.startswith(f"dtype={dtype}: ") for note in chosen.notes)


@pytest.mark.parametrize(
    ("name", "value"),
    [("dtype", "float16"), ("enforce_eager", False), ("kv_cache_memory_bytes", 5)],
)
def test_the_users_arguments_win(name: str, value: Any) -> None:
    chosen = choose({name: value})
    assert chosen.arguments[name] == value
    assert not any(note.startswith(f"{name}=") for note in chosen.notes)


def test_the_users_environment_wins() -> None:
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "OMP_NUM_THREADS": "3"}
    chosen = choose(environment=environment)
    assert not set(environment) & set(chosen.environment)
    assert not any("MULTIPROCESSING" in note or "OMP" in note for note in chosen.notes)


def test_a_cpu_engine_runs_in_process_with_all_cores() -> None:
    environment = choose().environment
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environment["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize(
    ("given", "environment"),
    [({}, {"VLLM_CPU_KVCACHE_SPACE": "2"}), ({"gpu_memory_utilization": 0.5}, {})],
)
def test_another_way_to_size_the_cache_is_respected(
    given: dict[str, Any], environment: dict[str, str]
) -> None:
    assert "kv_cache_memory_bytes" not in choose(given, environment=environment).arguments


def test_a_gpu_is_asked_for_throughput_and_nothing_else_is_touched() -> None:
    chosen = choose(is_cpu=False)
    assert chosen.arguments == {
        "disable_log_stats": False,
        "use_tqdm_on_load": False,
        "performance_mode": "throughput",
    }
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in chosen.environment


def test_compilation_asked_for_by_the_user_stays_possible() -> None:
    assert "TORCHDYNAMO_DISABLE" in choose().environment
    assert "TORCHDYNAMO_DISABLE" not in choose({"enforce_eager": False}).environment


@pytest.mark.parametrize("name", ["VLLM_LOGGING_LEVEL", "VLLM_CONFIGURE_LOGGING"])
def test_logging_asked_for_by_the_user_stays_vllms_own(name: str) -> None:
    assert "VLLM_CONFIGURE_LOGGING" not in choose(environment={name: "1"}).environment


def test_kv_bytes_of_known_models() -> None:
    opt_13b = {"num_hidden_layers": 40, "num_attention_heads": 40, "hidden_size": 5120}
    assert kv_bytes_per_token(opt_13b, "float16") == 819_200
    assert kv_bytes_per_token(SMOLLM2, "float32") == 46_080
    assert kv_bytes_per_token({}, "float32") is None


@pytest.mark.parametrize(
    ("token_bytes", "length", "slots", "available", "expected"),
    [
        (46_080, 1024, 16, 64 * GIB, 16 * 46_080 * 1152),  # what all slots can need
        (46_080, 8192, 256, 16 * GIB, 4 * GIB),  # a quarter of the memory
        (46_080, 8192, 256, 256 * GIB, 8 * GIB),  # no more than that
        (819_200, 8192, 4, 8 * GIB, 819_200 * 8320),  # one sequence has to fit
        (512, 256, 4, 8 * GIB, GIB // 4),  # the least
        (None, None, 256, 8 * GIB, 2 * GIB),
    ],
)
def test_the_cache_fits_the_slots_and_the_memory(
    token_bytes: int | None, length: int | None, slots: int, available: int, expected: int
) -> None:
    num_bytes = kv_cache_bytes(
        token_bytes, max_model_len=length, max_num_seqs=slots, available_bytes=available
    )
    assert expected <= num_bytes < expected + 2**20
