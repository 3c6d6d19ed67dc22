"""The job file as types: one frozen model per YAML section, `JobConfig` last.

Reading the file, and saying where in it a problem lies, is `config/loading.py`. Here stands what
a job may say and what each key means; the string under a field is its manual.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    WithJsonSchema,
)

from batchgen.config.amounts import ByteCount, RowsOrShare, share_of
from batchgen.config.extra import extra_problems
from batchgen.config.masking import masked
from batchgen.config.operation import MetricsConfig, NotifyConfig
from batchgen.config.sampling import NonEmpty, SamplingConfig
from batchgen.config.section import ColumnRef, PerRow, Problem, Section, refusal
from batchgen.config.simulated import SimulatedOptions
from batchgen.config.stop_early import StopEarlyConfig
from batchgen.config.wording import shown

__all__ = [
    "BatchConfig",
    "ColumnRef",
    "ErrorsConfig",
    "InputConfig",
    "JobConfig",
    "MessageConfig",
    "MetricsConfig",
    "ModelConfig",
    "NotifyConfig",
    "OutputConfig",
    "PerRow",
    "PromptConfig",
    "SamplingConfig",
    "Section",
    "StopEarlyConfig",
]


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


PathList = Annotated[
    list[NonEmpty],
    BeforeValidator(_one_or_more),
    Field(min_length=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
            ]
        }
    ),
]


def _check_window(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise refusal(f"must be 'auto' or a number of rows above 0, is {shown(value)}")


Window = Annotated[Literal["auto"] | PositiveInt, BeforeValidator(_check_window)]


class InputConfig(Section):
    """Which rows are read."""

    paths: PathList
    """Files, directories (with all that is below them) and globs (`**` crosses directories),
    relative to the working directory. Each file is a shard; shards are taken in the order of
    their names."""
    format: Literal[
        "auto", "parquet", "jsonl", "jsonl.gz", "jsonl.zst", "csv", "csv.gz", "csv.zst"
    ] = "auto"
    """How the shards are read; `auto` goes by each file's extension. Set it where the extension
    says nothing or something else."""
    on_bad_line: Literal["error_row", "skip", "fail"] = "error_row"
    """A line that cannot be read: it becomes a failed row (`bad_json`), is left out and counted,
    or stops the run."""
    unique: NonEmpty | None = None
    """A column whose values must not repeat; if one does, the run stops before the model loads."""
    max_line_bytes: ByteCount = 32 * 2**20
    """A longer line is taken for a bad one. Raise it for documents above 32 MiB."""


class MessageConfig(Section):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Who speaks, in the words of the model's chat template."""
    content: str
    """A Jinja2 template; columns of the row are its variables."""


class PromptConfig(Section):
    """How a row becomes a prompt: exactly one of `messages`, `template` and `column`."""

    messages: Annotated[list[MessageConfig], Field(min_length=1)] | None = None
    """A conversation: each content is rendered with Jinja2 (sandboxed; an unknown column is an
    error), then the model's chat template is applied."""
    template: NonEmpty | None = None
    """A raw prompt, rendered with Jinja2, without chat template: for base models."""
    column: NonEmpty | None = None
    """A column with ready-made prompts: text, or a list of messages for the chat template."""
    on_overlong: Literal["error", "truncate_start", "truncate_middle", "truncate_end"] = "error"
    """A prompt that leaves no room for output: a failed row (`prompt_too_long`), or the row's
    longest field is cut at its start, middle or end until `sampling.max_tokens` of output (half of
    the model's length at most) fit behind the prompt; the template's own words never are."""
    allow_blank: bool = False
    """Let prompts through that show no character."""
    chat_template: NonEmpty | None = None
    """A chat template to use instead of the model's own: the path of a file, or its text."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the chat template, such as `enable_thinking: false`."""

    kinds: ClassVar = ("messages", "template", "column")

    @classmethod
    def rules(cls, given: Mapping[str, Any], wrong: Collection[str]) -> Iterator[Problem]:
        """One way to make a prompt, no more and no less."""
        used = [kind for kind in cls.kinds if given.get(kind) is not None or kind in wrong]
        if len(used) > 1:
            yield (used[1],), f"cannot stand beside prompt.{used[0]}; keep one of them"
        if not used:
            yield (), f"needs one of {', '.join(cls.kinds)}"
        if used == ["template"]:
            for key in ("chat_template", "chat_template_kwargs"):
                if given.get(key):
                    yield (
                        (key,),
                        "has no effect with prompt.template, which is a raw prompt;"
                        " use prompt.messages",
                    )


class ModelConfig(Section):
    """The model, and the engine that runs it."""

    refused: ClassVar[Mapping[str, str]] = {
        "path": "no such key; write model.name, which takes a directory too",
        "dtype": "no such key; engine arguments of vLLM belong into model.extra",
        "quantization": "no such key; engine arguments of vLLM belong into model.extra",
        "gpu_memory_utilization": "no such key; engine arguments of vLLM belong into model.extra",
        "tensor_parallel_size": "no such key; engine arguments of vLLM belong into model.extra",
    }

    name: NonEmpty = "simulated"
    """A local directory or a hub id. Only `engine: simulated` goes without."""
    engine: Literal["vllm", "simulated"] = "vllm"
    """What runs the model. `simulated` needs no model and no GPU: for trying a job out."""
    revision: NonEmpty | None = None
    """Branch, tag or commit of a hub model. Set it, so that a rerun uses the same weights."""
    tokenizer: NonEmpty | None = None
    """A directory or hub id, where the tokenizer is not the model's own."""
    reasoning_parser: NonEmpty | None = None
    """vLLM's parser of this model's thinking: it goes to the column `reasoning`, off `output`."""
    max_model_len: PositiveInt | None = None
    """Most tokens of prompt and completion together. null: what the model allows. A smaller value
    leaves the KV cache room for more sequences."""
    max_num_seqs: PositiveInt | None = None
    """Slots: most sequences that the engine decodes at once. null: the engine's default. More
    slots mean more throughput until arithmetic or the KV cache is full."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Passed on to `vllm.LLM`: any engine argument that vLLM knows. With `engine: simulated`, its
    options (docs/simulated-engine.md)."""

    @classmethod
    def rules(cls, given: Mapping[str, Any], wrong: Collection[str]) -> Iterator[Problem]:
        """A model is named, and its engine knows what `extra` says."""
        engine = given.get("engine", "vllm")
        if engine == "vllm" and "name" not in {*given, *wrong}:
            yield ("name",), "is missing; give a local directory or a hub id"
        extra = given.get("extra")
        if isinstance(extra, dict):
            for path, message in extra_problems(engine, extra):
                yield ("extra", *path), message

    def simulated(self) -> SimulatedOptions:
        """`extra` as options of the simulated engine; arguments of vLLM are passed over."""
        known = SimulatedOptions.model_fields
        return SimulatedOptions.model_validate({k: v for k, v in self.extra.items() if k in known})


class BatchConfig(Section):
    """Which rows are committed and counted together, and how they reach the engine."""

    size: PositiveInt = 512
    """Rows per batch, the unit of statistics. In the `generate` feed also of one `LLM.generate`
    call: raise it if `drain_s` is much of a batch, lower it to save sooner."""
    feed: Literal["continuous", "generate", "sequential"] = "continuous"
    """`continuous` refills slots as rows finish and is the fast one; `generate` makes one
    `LLM.generate` call a batch; `sequential` does one row at a time, the baseline."""
    window: Window = "auto"
    """Rows in flight, for `continuous`; `auto` goes by the engine's slots. The other feeds
    ignore it."""
    order: Literal["input", "longest_first", "prefix"] = "longest_first"
    """Order in which rows enter the engine, within blocks of `look_ahead`; the output stays in
    input order. `longest_first` avoids a long tail, `prefix` reuses shared prompt starts."""
    look_ahead: PositiveInt = 4096
    """Rows that are read and ordered as a block. More order better and take more memory."""
    dedupe: bool = True
    """Generate identical prompts once, where sampling is deterministic, and copy the completion."""


class OutputConfig(Section):
    """What is written, and where."""

    refused: ClassVar[Mapping[str, str]] = {
        "dir": "no such key; write output.path",
        "overwrite": "no such key; run with --fresh to begin anew",
    }

    path: NonEmpty
    """The run's directory, relative to the working directory. The same command on it resumes."""
    keep: list[NonEmpty] | None = None
    """Input columns to carry along, in this order; null keeps all, [] none."""
    prefix: str = ""
    """Before the names of the columns that batchgen adds, where they collide with input columns."""
    prompt: bool = False
    """Also store the rendered prompt."""
    expects_json: Annotated[bool, Field(alias="json")] = False
    """The output is expected to be JSON: adds the column `json_valid`."""
    rows_per_part: PositiveInt = 10_000
    """Rows per output file. A part is published when its rows are complete."""
    bytes_per_part: ByteCount = 256 * 2**20
    """A part also closes when its input reaches this size: fewer rows where documents are long."""

    @classmethod
    def rules(cls, given: Mapping[str, Any], wrong: Collection[str]) -> Iterator[Problem]:
        """No two columns of a table have the same name."""
        keep = given.get("keep") or []
        for index, name in enumerate(keep):
            if name in keep[:index]:
                yield ("keep", index), f"'{name}' stands there twice; name each column once"


class ErrorsConfig(Section):
    """How many failures are tolerated, of rows and of the engine."""

    max_failed: RowsOrShare = 0
    """Failed rows that still make a success, as a number or a share of all rows (`1%`). It decides
    the exit code (6 beyond it) and never stops the run."""
    stop_at: RowsOrShare | None = "20%"
    """Stops feeding early when more than this fails: a job in which everything goes wrong should
    not take all night. null: never."""
    engine_restarts: NonNegativeInt = 3
    """Restarts of a dead engine in a row that may fail before the run gives up (exit 5)."""
    stall_timeout: PositiveFloat | None = 600.0
    """Seconds without any progress of the engine after which it counts as dead. null: never."""

    def failed_limit(self, num_rows: int) -> int:
        """`max_failed` in rows of an output of `num_rows`; shares are rounded down."""
        if isinstance(self.max_failed, int):
            return self.max_failed
        # Floats put 1% of 700 a hair under 7.
        return int(share_of(self.max_failed) * num_rows + 1e-9)

    @property
    def stop_share(self) -> float | None:
        """`stop_at` as a share, 0 to 1; None where it is a number of rows or null."""
        return share_of(self.stop_at) if isinstance(self.stop_at, str) else None

    @property
    def stop_count(self) -> int | None:
        """`stop_at` as a number of rows; None where it is a share or null."""
        return self.stop_at if isinstance(self.stop_at, int) else None


class JobConfig(Section):
    """A job: rows to prompts, prompts to completions, completions to a dataset."""

    refused: ClassVar[Mapping[str, str]] = {
        "engine": "no such key; the engine is model.engine",
        "inputs": "no such key; did you mean 'input'?",
    }

    name: NonEmpty = "job"
    """What reports call the job. Default: the file's name."""
    input: InputConfig
    prompt: PromptConfig
    model: ModelConfig
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    stop_early: StopEarlyConfig = Field(default_factory=StopEarlyConfig)
    batch: BatchConfig = Field(default_factory=BatchConfig)
    output: OutputConfig
    errors: ErrorsConfig = Field(default_factory=ErrorsConfig)
    notify: NotifyConfig = Field(default_factory=NotifyConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)

    _file: str | None = PrivateAttr(default=None)
    _places: Mapping[tuple[str | int, ...], str] = PrivateAttr(default_factory=dict)

    @classmethod
    def rules(cls, given: Mapping[str, Any], wrong: Collection[str]) -> Iterator[Problem]:
        """Rules between sections."""
        sampling, model = given.get("sampling"), given.get("model")
        if not isinstance(sampling, dict) or not isinstance(model, dict):
            return
        most = (model.get("extra") or {}).get("max_logprobs", 20)
        logprobs = sampling.get("logprobs")
        if not isinstance(logprobs, int) or not isinstance(most, int) or most < 0:
            return
        if logprobs > most or logprobs == -1:
            limit = f"model.extra.max_logprobs ({most})"
            yield ("sampling", "logprobs"), f"must be at most {limit}, is {logprobs}"

    def located(self, file: str, places: Mapping[tuple[str | int, ...], str]) -> "JobConfig":
        """The same job, which knows its file and where in it the keys stand."""
        self._file, self._places = file, places
        return self

    def where(self, key: str) -> str:
        """Place of a dotted key for a message, "jobs/x.yaml:12:3: prompt.template".

        A key that the file does not have gets the place of the nearest section above it. Without a
        file the answer is the key alone.
        """
        path = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
        for end in range(len(path), -1, -1):
            if path[:end] in self._places:
                return f"{self._places[path[:end]]}: {key}"
        return f"{self._file}: {key}" if self._file else key

    def masked(self) -> dict[str, Any]:
        """The whole job as JSON values, defaults included and secrets masked."""
        plain: dict[str, Any] = masked(self.model_dump(mode="json", by_alias=True))
        return plain
