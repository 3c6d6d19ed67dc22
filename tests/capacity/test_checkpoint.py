"""The files of a model say how large it is; their weights are not read."""

import json
from math import prod

import pytest
from capacity import model_configs as models

from batchgen.capacity.geometry import load_geometry, read_geometry
from batchgen.config.models import ModelConfig
from batchgen.errors import DataError

TINY = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "vocab_size": 32,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
LAYER = {
    "self_attn.q_proj": [8, 8],
    "self_attn.k_proj": [4, 8],
    "self_attn.v_proj": [4, 8],
    "self_attn.o_proj": [8, 8],
    "mlp.gate_proj": [16, 8],
    "mlp.up_proj": [16, 8],
    "mlp.down_proj": [8, 16],
    "input_layernorm": [8],
    "post_attention_layernorm": [8],
}
TENSORS = {
    "model.embed_tokens.weight": [32, 8],
    "lm_head.weight": [32, 8],
    "model.norm.weight": [8],
    **{
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(2)
        for name, shape in LAYER.items()
    },
}
NUM_PARAMS = sum(prod(shape) for shape in TENSORS.values())


@pytest.fixture
def model(tmp_path):
    """A model directory with these tensors, without their data, in files of these names."""

    def make(tensors=TENSORS, config=TINY, dtype="F32", files=("model.safetensors",)):
        (tmp_path / "config.json").write_text(json.dumps(config))
        names = list(tensors)
        for number, file in enumerate(files):
            header = {
                name: {"dtype": dtype, "shape": tensors[name], "data_offsets": [0, 0]}
                for name in names[number :: len(files)]
            }
            text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
            (tmp_path / file).write_bytes(len(text).to_bytes(8, "little") + text)
        return ModelConfig(name=str(tmp_path))

    return make


def test_the_headers_are_added_up(model):
    found = load_geometry(model())
    assert found.num_params == NUM_PARAMS
    assert found.weight_bytes == 2 * NUM_PARAMS
    assert "safetensors headers" in found.weights
    assert found.notes == ()


def test_several_files_are_one_model(model):
    files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    assert load_geometry(model(files=files)).num_params == NUM_PARAMS


def test_the_type_that_the_engine_loads_decides(model):
    assert load_geometry(model(), dtype="float32").weight_bytes == 4 * NUM_PARAMS


@pytest.mark.parametrize(
    "name",
    ["model.layers.2.mlp.up_proj.weight", "mtp.fc.weight", "model.layers.0.attn.masked_bias"],
)
def test_what_an_engine_does_not_load_is_left_out(model, name):
    assert load_geometry(model({**TENSORS, name: [1000, 8]})).num_params == NUM_PARAMS


def test_a_copy_of_a_tied_embedding_is_left_out(model):
    found = load_geometry(model(config={**TINY, "tie_word_embeddings": True}))
    assert found.num_params == NUM_PARAMS - 32 * 8


def test_a_part_that_the_config_does_not_make_is_noted(model):
    found = load_geometry(model({**TENSORS, "model.adapter.weight": [100, 100]}))
    assert found.num_params == NUM_PARAMS + 10_000
    assert "not known here" in found.notes[0]


def test_the_bytes_of_quantized_files_are_taken_as_they_are(model):
    config = {**TINY, "quantization_config": {"quant_method": "novel"}}
    found = load_geometry(model(config=config, dtype="I8"))
    assert found.weight_bytes == NUM_PARAMS
    assert found.num_params == NUM_PARAMS


def test_an_index_alone_gives_the_total(model, tmp_path):
    job_model = model(files=())
    index = {"metadata": {"total_size": 4 * NUM_PARAMS}, "weight_map": {"a": "x.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = load_geometry(job_model)
    assert found.weight_bytes == 2 * NUM_PARAMS
    assert "index" in found.weights


@pytest.mark.parametrize(
    "content", [b"", b"short", (2**60).to_bytes(8, "little"), (5).to_bytes(8, "little") + b"{nope"]
)
def test_a_damaged_file_leaves_the_config_to_tell(model, tmp_path, content):
    job_model = model()
    (tmp_path / "model.safetensors").write_bytes(content)
    found = load_geometry(job_model)
    assert found.num_params == NUM_PARAMS
    assert "computed from config.json" in found.weights


def test_an_unknown_family_is_taken_for_a_plain_decoder_where_the_files_agree(model):
    found = load_geometry(model(config={**TINY, "model_type": "brandnew"}))
    assert found.num_params == NUM_PARAMS
    assert "'brandnew' is not known here" in found.notes[0]


def test_an_unknown_family_is_refused_where_the_files_do_not_agree(model):
    tensors = {**TENSORS, "model.extra.weight": [100, 8]}
    with pytest.raises(DataError, match="brandnew"):
        load_geometry(model(tensors, config={**TINY, "model_type": "brandnew"}))


def test_config_overrides_of_the_job_count(model):
    extra = {"hf_overrides": {"num_key_value_heads": 2}}
    changed = load_geometry(model().model_copy(update={"extra": extra}))
    assert changed.kv_bytes_per_token == 2 * load_geometry(model()).kv_bytes_per_token


def test_engine_arguments_of_the_job_count(model):
    extra = {"dtype": "float32", "kv_cache_dtype": "fp8"}
    found = load_geometry(model().model_copy(update={"extra": extra}))
    assert found.weight_bytes == 4 * NUM_PARAMS
    assert found.kv_bytes_per_token == 2 * 2 * 4


def test_a_published_config_needs_no_files():
    assert "computed" in read_geometry(models.LLAMA_31_8B, name="model").weights
