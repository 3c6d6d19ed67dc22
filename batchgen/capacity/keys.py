"""Typed reading of a model's config.json.

The same thing has several names there (`hidden_size`, `n_embd`, `d_model`), a key may be absent
because its value is the usual one, and a multi-modal model keeps its language part in a section of
its own. A value of the wrong type is an error that names the key: a plan from half-read numbers
would look as good as a right one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchgen.errors import DataError

TEXT_SECTIONS: Final = ("text_config", "llm_config", "language_config")
LARGEST: Final = 2**53
"""The last number up to which every whole number is a float, too."""
_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("n_head_kv", "num_kv_heads"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_topk", "top_k"),
    "shared_expert_intermediate_size": ("moe_shared_expert_intermediate_size",),
    "layer_types": ("layers_block_type",),
    "dtype": ("torch_dtype",),
    "hybrid_override_pattern": ("hybrid_layer_pattern",),
}


class ConfigKeys:
    """The language part of a config.json.

    `name` is the model's, for messages. `defaults` stand behind the file: what the model's own
    configuration class takes where the file is silent.
    """

    def __init__(
        self, config: Mapping[str, Any], *, name: str, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name
        self.whole = config
        self.section = text_section(config)
        self._text: Mapping[str, Any] = config[self.section] if self.section else config
        self._defaults = defaults or {}

    def with_defaults(self, defaults: Mapping[str, Any]) -> "ConfigKeys":
        """The same file with these values behind it."""
        return ConfigKeys(self.whole, name=self.name, defaults=defaults)

    @property
    def model_type(self) -> str:
        """`model_type` of the language part, else of the whole; empty where neither says."""
        for values in (self._text, self.whole):
            if isinstance(values.get("model_type"), str):
                return str(values["model_type"])
        return ""

    def value(self, key: str) -> Any:
        """The value under this key or another name of it; None where it is absent or null."""
        names = (key, *_ALIASES.get(key, ()))
        for values in (self._text, self._defaults):
            for name in names:
                if values.get(name) is not None:
                    return values[name]
        return None

    def shared(self, key: str) -> Any:
        """The same, looked for in the whole file too: what concerns all parts of a model."""
        value = self.value(key)
        if value is not None:
            return value
        return next(
            (
                self.whole[name]
                for name in (key, *_ALIASES.get(key, ()))
                if self.whole.get(name) is not None
            ),
            None,
        )

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of 0 or more. Raises DataError where it is none, or missing."""
        value = self.value(key)
        if value is None:
            if default is None:
                raise DataError(f"{self.name}: config.json has no '{key}', which a plan needs")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise DataError(
                f"{self.name}: config.json: {key}: must be a whole number, is {value!r}"
            )
        if value > LARGEST:
            raise DataError(f"{self.name}: config.json: {key}: is larger than any model's")
        return value

    def optional_integer(self, key: str) -> int | None:
        """The same, None where the key is absent or null."""
        return None if self.value(key) is None else self.integer(key)

    def positive(self, key: str) -> int:
        """A whole number above 0; sizes and counts that something is divided by."""
        value = self.integer(key)
        if value == 0:
            raise DataError(f"{self.name}: config.json: {key}: must be greater than 0, is 0")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """Whether something is so."""
        value = self.value(key)
        return default if value is None else bool(value)

    def texts(self, key: str) -> Sequence[str] | None:
        """A list of texts; None where it is absent. Raises DataError where it is no such list."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise DataError(f"{self.name}: config.json: {key}: must be a list of texts")
        return value

    def integers(self, key: str) -> Sequence[int] | None:
        """A list of whole numbers; None where it is absent. Raises DataError as `texts`."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            isinstance(item, int) and abs(item) <= LARGEST for item in value
        ):
            raise DataError(f"{self.name}: config.json: {key}: must be a list of whole numbers")
        return value


def text_section(config: Mapping[str, Any]) -> str | None:
    """The key under which a multi-modal model describes its language part; None: it is flat."""
    return next((key for key in TEXT_SECTIONS if isinstance(config.get(key), dict)), None)
