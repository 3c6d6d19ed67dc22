"""Each way in which vLLM refuses to start comes with a remedy."""

import pytest

from batchgen.engine.vllm_failures import first_sentence, start_failure


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("No available memory for the cache blocks.", "gpu_memory_utilization"),
        ("To serve at least one request (2.0 GiB KV cache is needed", "lower model.max_model_len"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "smaller model"),
        ("max_model_len (9) is greater than the derived max_model_len (8)", "max_model_len"),
        ("models/x is not a local folder and is not a valid model identifier", "model.name"),
        ("We couldn't connect to 'https://hub' to load the files", "model.name"),
        ("Cannot access gated repo for url", "HF_TOKEN"),
        ("Cannot find any model weights with `models/x`", "incomplete"),
        ("Model architectures ['XForCausalLM'] are not supported for now.", "architecture"),
        ("operator torchvision::nms does not exist", "pip uninstall torchvision"),
        ("Reasoning parser 'x' not found.", "model.reasoning_parser"),
        ("Engine core initialization failed. See root cause above.", "engine process ended"),
        ("something never seen", "BATCHGEN_DEBUG"),
    ],
)
def test_a_failed_start_names_the_model_the_cause_and_a_remedy(text: str, remedy: str) -> None:
    cause, advice = start_failure("models/x", ValueError(text))
    assert cause == f"vLLM cannot start model 'models/x': {text}"
    assert remedy in advice


def test_a_validation_error_is_told_without_its_frame() -> None:
    text = (
        "1 validation error for ModelConfig\n  Value error, too long [type=value_error, input=1]\n"
        "    For further information visit"
    )
    assert first_sentence(text) == "too long"


def test_long_texts_are_cut() -> None:
    assert len(first_sentence("x" * 5000)) == 300


def test_an_error_without_text_is_told_by_its_type() -> None:
    assert "AssertionError" in start_failure("m", AssertionError())[0]
