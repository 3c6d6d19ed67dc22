"""`sampling`: the fields of vLLM's SamplingParams, each a value or a column, plus `json_schema`.

vLLM does not check the types of these values: a text in place of a number blocks its engine for
ever, with all rows in flight. So types are strict here, and the rules that vLLM applies to values
are applied when the job file is read. Names, meanings and defaults are vLLM's.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema

from batchgen.config.json_schema import resolve_schema
from batchgen.config.section import ColumnRef, PerRow, Problem, Section, is_column_ref, refusal
from batchgen.config.wording import shown

DEFAULT_MAX_TOKENS = 16

_BY_BATCHGEN = "is set by batchgen itself; leave it out"
_NO_COLUMN = "cannot be used: the output has no column for its results; leave it out"


def _texts(value: Any) -> Any:
    if isinstance(value, str | list):
        return [value] if isinstance(value, str) else value
    hint = "; put it in quotes" if isinstance(value, bool | int | float) else ""
    raise refusal(f"must be text or a list of texts, is {shown(value)}{hint}")


def _token_keys(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        int(key) if isinstance(key, str) and key.isdecimal() else key: bias
        for key, bias in value.items()
    }


def _extra_args(value: Any) -> Any:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, int) and not -(2**63) <= item < 2**64:
            raise refusal(f"integers must fit in 64 bits, {item} does not")
        if isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list):
            pending += item
    return value


Finite = Annotated[float, Field(allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0)]
NonEmpty = Annotated[str, Field(min_length=1)]
Texts = Annotated[
    list[NonEmpty],
    BeforeValidator(_texts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}},
            ]
        }
    ),
]
SchemaText = Annotated[
    str,
    BeforeValidator(resolve_schema),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string", "minLength": 1}]}),
]


class RepetitionDetection(Section):
    """Ends a completion that repeats a pattern of tokens (`finish_reason` repetition)."""

    max_pattern_size: Annotated[int, Field(ge=0)] = 0
    """Longest pattern to look for, in tokens; 0 looks for none."""
    min_pattern_size: Annotated[int, Field(ge=0)] = 0
    """Shortest pattern to look for, in tokens; 0 means 1."""
    min_count: Annotated[int, Field(ge=0)] = 0
    """Repetitions that end the completion, at least 2."""

    @classmethod
    def rules(cls, given: Mapping[str, Any], wrong: Collection[str]) -> Iterator[Problem]:
        """vLLM's rules on the three numbers."""
        if wrong:
            return
        longest = given.get("max_pattern_size", 0)
        shortest = given.get("min_pattern_size", 0)
        if shortest > longest:
            yield (
                ("min_pattern_size",),
                f"must not be above max_pattern_size ({longest}), is {shortest}",
            )
        if longest > 0 and given.get("min_count", 0) < 2:
            yield ("min_count",), f"must be at least 2, is {given.get('min_count', 0)}"


class StructuredOutputs(Section):
    """A form that the completion must have; exactly one of the first six."""

    json_: Annotated[SchemaText | None, Field(alias="json")] = None
    """A JSON schema, as in `sampling.json_schema`, which is the shorter way."""
    regex: NonEmpty | None = None
    """A regular expression that the whole completion matches."""
    choice: Annotated[list[NonEmpty], Field(min_length=1)] | None = None
    """The completion is one of these texts."""
    grammar: NonEmpty | None = None
    """A grammar in EBNF."""
    json_object: bool | None = None
    """Any JSON object."""
    structural_tag: NonEmpty | None = None
    """A structural tag, as JSON text."""
    disable_any_whitespace: bool = False
    """JSON without free whitespace."""
    disable_additional_properties: bool = False
    """JSON objects without keys that the schema does not list."""
    whitespace_pattern: str | None = None
    """A regular expression for the whitespace in JSON."""

    kinds: ClassVar = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

    @classmethod
    def rules(cls, given: Mapping[str, Any], wrong: Collection[str]) -> Iterator[Problem]:
        """One kind of constraint, no more and no less."""
        used = [kind for kind in cls.kinds if given.get(kind) is not None or kind in wrong]
        if len(used) != 1:
            has = f"has {' and '.join(used)}" if used else "has none"
            yield (), f"needs exactly one of {', '.join(cls.kinds)}; it {has}"


class SamplingConfig(Section):
    """How tokens are chosen and when a completion ends: the fields of vLLM's SamplingParams.

    Any of them may be `{column: name}`, a value that each row brings along.
    """

    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("output_kind", "stream_interval", "skip_clone", "detokenize", "flat_logprobs"),
            _BY_BATCHGEN,
        ),
        "output_text_buffer_length": _BY_BATCHGEN,
        **dict.fromkeys(
            (
                "prompt_logprobs",
                "prompt_logprob_token_ids",
                "prompt_logprob_start",
                "routed_experts_prompt_start",
            ),
            _NO_COLUMN,
        ),
    }

    max_tokens: PerRow[Annotated[int, Field(gt=0)] | None] = DEFAULT_MAX_TOKENS
    """Most tokens of a completion. vLLM's default is small: set it. `null`: up to the model's
    length. A completion that reaches it has `finish_reason` length."""
    temperature: PerRow[Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None] = None
    """Randomness: 0 takes the most probable token each time, so that equal prompts get equal
    completions; higher values vary more. vLLM's default is 1.0, and it raises what is
    between 0 and 0.01 to 0.01."""
    seed: PerRow[Annotated[int, Field(ge=0, lt=2**63)] | None] = None
    """Makes random sampling repeatable: each row gets its own seed, derived from this one, its
    shard and its row number. It has no effect at temperature 0."""
    n: PerRow[Annotated[int, Field(ge=1, le=16384)] | None] = None
    """Completions per row. Above 1 the columns of a completion become lists, and temperature must
    be above 0. Default 1."""
    top_p: PerRow[Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None] = None
    """Sample from the most probable tokens that together have this share. Default 1.0: all."""
    top_k: PerRow[Annotated[int, Field(ge=-1)] | None] = None
    """Sample from this many of the most probable tokens. Default 0: all."""
    min_p: PerRow[Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None] = None
    """Leave out tokens less probable than this share of the most probable one. Default 0.0."""
    presence_penalty: PerRow[Penalty | None] = None
    """Above 0, tokens that the completion has already become less probable. Default 0.0."""
    frequency_penalty: PerRow[Penalty | None] = None
    """The same, growing with the number of times. Default 0.0."""
    repetition_penalty: PerRow[Annotated[float, Field(gt=0, allow_inf_nan=False)] | None] = None
    """Above 1, tokens that prompt or completion have already become less probable. Default 1.0."""
    stop: PerRow[Texts | None] = None
    """Texts that end a completion; they are not part of it unless `include_stop_str_in_output`."""
    stop_token_ids: PerRow[list[TokenId] | None] = None
    """Token ids that end a completion, beside the model's own end token."""
    include_stop_str_in_output: PerRow[bool | None] = None
    """Keep the stop text at the end of the completion. Default false."""
    ignore_eos: PerRow[bool | None] = None
    """Go on after the model's end token, up to `max_tokens`: for measurements. Default false."""
    min_tokens: PerRow[Annotated[int, Field(ge=0)] | None] = None
    """No end before this many tokens. Default 0."""
    json_schema: PerRow[SchemaText | None] = None
    """The completion is JSON of this schema: a mapping written here, the path of a .json file, or
    JSON text. As `{column: name}`, null in a row means free text."""
    structured_outputs: PerRow[StructuredOutputs | None] = None
    """Another form that the completion must have: a choice, a regular expression, a grammar."""
    logprobs: PerRow[Annotated[int, Field(ge=-1)] | None] = None
    """Also store, in the column `logprobs`, this many of the most probable tokens at each position.
    At most `model.extra.max_logprobs` (20); -1 is the whole vocabulary."""
    logprob_token_ids: PerRow[Annotated[list[TokenId], Field(max_length=128)] | None] = None
    """Also store the log probabilities of exactly these tokens, 128 at most: for scoring labels."""
    logit_bias: PerRow[Annotated[dict[TokenId, Finite], BeforeValidator(_token_keys)] | None] = None
    """Added to the logits of token ids: `{50256: -100}`."""
    allowed_token_ids: PerRow[Annotated[list[TokenId], Field(min_length=1)] | None] = None
    """Only these token ids can be generated."""
    bad_words: PerRow[list[NonEmpty] | None] = None
    """Texts that are never generated."""
    thinking_token_budget: PerRow[Annotated[int, Field(ge=-1)] | None] = None
    """Most tokens of a reasoning model's thinking; -1: unlimited."""
    repetition_detection: PerRow[RepetitionDetection | None] = None
    """End a completion that goes round in circles."""
    skip_special_tokens: PerRow[bool | None] = None
    """Leave special tokens out of the text. Default true."""
    spaces_between_special_tokens: PerRow[bool | None] = None
    """Blanks between special tokens in the text. Default true."""
    skip_reading_prefix_cache: PerRow[bool | None] = None
    """Compute the whole prompt, whatever the prefix cache holds: for measurements."""
    watermarking: PerRow[bool | None] = None
    """Apply the engine's watermark, where one is configured. Default true."""
    trace_decode_token_ids: PerRow[Annotated[list[TokenId], Field(min_length=1)] | None] = None
    """Emit exactly these tokens: for debugging; needs `model.extra.enable_trace_replay`."""
    extra_args: PerRow[Annotated[dict[str, Any], BeforeValidator(_extra_args)] | None] = None
    """Arguments of custom logits processors."""

    @classmethod
    def rules(cls, given: Mapping[str, Any], wrong: Collection[str]) -> Iterator[Problem]:
        """vLLM's rules between fields, where both are constants."""
        fixed = {key: value for key, value in given.items() if not is_column_ref(value)}
        if "max_tokens" not in wrong:
            yield from _length_rules(given, fixed)
        if (fixed.get("n") or 1) > 1 and fixed.get("temperature") == 0:
            yield ("n",), _greedy_message(fixed["n"])
        if given.get("json_schema") is not None and given.get("structured_outputs") is not None:
            yield ("structured_outputs",), "cannot stand beside json_schema; keep one of them"
        ids, logprobs = fixed.get("logprob_token_ids"), fixed.get("logprobs")
        if ids is not None and logprobs is not None and logprobs != len(ids):
            yield (
                ("logprobs",),
                f"must be the number of logprob_token_ids ({len(ids)}) or left out, is {logprobs}",
            )

    def constants(self) -> dict[str, Any]:
        """Plain values of the fields that the job sets, without `seed`; `max_tokens` always.

        Nested sections are plain dicts in vLLM's form; a None (`max_tokens: null` apart) is left
        out, so vLLM's default holds. `json_schema` is compact JSON text.
        """
        values: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name == "seed" or isinstance(value, ColumnRef):
                continue
            if value is not None or name == "max_tokens":
                values[name] = _plain(value)
        return values

    def columns(self) -> dict[str, str]:
        """Field name to the column that holds its value, `seed` among them."""
        fields = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: value.column for name, value in fields if isinstance(value, ColumnRef)}


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.model_dump(by_alias=True, exclude_none=True)
    return value


def _greedy_message(n: int) -> str:
    return f"must be 1 with temperature 0 (all completions would be equal), is {n}"


def _length_rules(given: Mapping[str, Any], fixed: Mapping[str, Any]) -> Iterator[Problem]:
    least = fixed.get("min_tokens") or 0
    most = fixed.get("max_tokens") if "max_tokens" in given else DEFAULT_MAX_TOKENS
    if most is not None and least > most:
        origin = "" if "max_tokens" in given else ", its default"
        yield ("min_tokens",), f"must not be above max_tokens ({most}{origin}), is {least}"
