"""A first job file for the data at hand: its columns are read, the text column is guessed.

The file is meant to be edited, so every choice in it is explained where it stands, and what
was found in the data is said beside it.
"""

import json
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath
from statistics import median
from typing import Any, Final

from batchgen.config.models import InputConfig, ModelConfig, OutputConfig, SamplingConfig
from batchgen.corpus.parquet import ParquetShard
from batchgen.corpus.readers import PartLimits, ReadCounts, ReadPoint, read_blocks
from batchgen.corpus.shards import find_shards
from batchgen.corpus.text import TextRows
from batchgen.errors import DataError
from batchgen.output.columns import generated_names
from batchgen.records import RowError, Shard

SAMPLE_ROWS: Final = 50
LIMITS: Final = PartLimits(2**31, 2**31, 2**25, "error_row")
"""Of the sample; it is not cut into parts."""
TEXT_NAMES: Final = ("text", "content", "body", "document", "article", "abstract", "prompt")
LONG_TEXT_CHARS: Final = 200
"""A column whose texts are usually longer than this is not carried along by default."""
TEMPLATE_WORDS: Final = {
    *(word.lower() for word in keyword.kwlist),
    *("caller", "cycler", "dict", "joiner", "lipsum", "loop", "namespace", "range", "recursive"),
    "self",
}
"""Names that mean something else in a template, so that no column can be reached by them."""
DEFAULT_MODEL: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"
COLLISION_PREFIX: Final = "gen_"

TEMPLATE: Final = """\
# yaml-language-server: $schema=batchgen.schema.json
# Made for {origin}. Next: batchgen check THIS_FILE, then batchgen run THIS_FILE.

name: {name}

input:
  # Files, directories or globs. {found}
  paths: {paths}

prompt:
{prompt}

model:
  name: {model}    # a local directory, or a hub id
  engine: vllm           # simulated: no model and no GPU, to try the job out
  max_model_len: 2048    # prompt and completion together; a smaller value leaves room for more rows

sampling:            # any field of vLLM's SamplingParams
  max_tokens: 128
  temperature: 0.0   # greedy: equal prompts get equal completions
  seed: 0

output:
  path: {path}       # running the same command again resumes there
  # Input columns to carry along; null keeps all of them.
  keep: {keep}
{prefix}
errors:
  max_failed: 1%     # more failed rows than this make exit code 6; the run goes on to its end
  stop_at: 20%       # a run in which more than this fails is stopped early
"""

MESSAGES: Final = """\
  # Jinja2; the columns of a row are its variables. What all rows share comes first, so that
  # the prefix cache computes it only once.
  messages:
    - role: system
      content: You are a careful assistant.
    - role: user
      content: |-
        Summarize the following text in two sentences.

        {{{{ {column} }}}}
  on_overlong: error       # or truncate_end, truncate_middle, truncate_start: cuts the text"""

READY_MADE: Final = """\
  # This column holds {kind} for each row.
  column: {column}"""


@dataclass(frozen=True, slots=True)
class ColumnSample:
    """Some values of a column, nulls left out."""

    name: str
    values: tuple[Any, ...]

    @property
    def is_text(self) -> bool:
        """Whether all of it is text."""
        return bool(self.values) and all(isinstance(value, str) for value in self.values)

    @property
    def is_conversation(self) -> bool:
        """Whether it holds lists of messages; some rows may have none."""
        messages = [item for value in self.values if isinstance(value, list) for item in value]
        return (
            all(isinstance(value, list) for value in self.values)
            and bool(messages)
            and all(isinstance(item, dict) and "role" in item for item in messages)
        )

    @property
    def is_number(self) -> bool:
        """Whether all of it is whole numbers, which a template writes as they are."""
        return bool(self.values) and all(type(value) is int for value in self.values)

    @property
    def is_reachable(self) -> bool:
        """Whether a template can name it."""
        return self.name.isidentifier() and self.name.lower() not in TEMPLATE_WORDS

    @property
    def median_chars(self) -> float:
        """Usual length of its texts."""
        return median(len(value) for value in self.values) if self.is_text else 0.0


def starter_job(paths: Sequence[str]) -> str:
    """The text of a job file that runs over `paths` as it is, but for the model's name.

    Raises DataError where the paths match nothing, or hold no column with text.
    """
    shards = find_shards(InputConfig(paths=list(paths)))
    columns = _columns(shards)
    prompt_column = guess_prompt_column(columns)
    if prompt_column is None:
        names = ", ".join(f"'{column.name}'" for column in columns) or "no columns"
        raise DataError(
            f"{shards[0].path}: no column holds text in every row; it has {names};"
            " name a file with documents"
        )
    keep = [
        column.name
        for column in columns
        if column is not prompt_column and column.median_chars <= LONG_TEXT_CHARS
    ]
    name = job_name(paths[0])
    return TEMPLATE.format(
        origin=" ".join(_yaml(path) for path in paths),
        found=_found(shards, columns),
        name=_yaml(name),
        paths=_yaml(list(paths)),
        prompt=_prompt(prompt_column),
        model=_yaml(DEFAULT_MODEL),
        path=_yaml(f"runs/{name}"),
        keep=_yaml(keep),
        prefix=_prefix(keep),
    )


def _found(shards: Sequence[Shard], columns: Sequence[ColumnSample]) -> str:
    names = ", ".join(_yaml(column.name) for column in columns)
    return f"Found: {len(shards):,} {'shard' if len(shards) == 1 else 'shards'}, columns {names}."


def guess_prompt_column(columns: Sequence[ColumnSample]) -> ColumnSample | None:
    """The column to make prompts of: conversations, else a usual name, else the longest texts.

    Where there is no text at all, whole numbers will do.
    """
    for column in columns:
        if column.is_conversation:
            return column
    texts = [column for column in columns if column.is_text]
    for name in TEXT_NAMES:
        for column in texts:
            if column.name.lower() == name:
                return column
    numbers = (column for column in columns if column.is_number and column.is_reachable)
    return max(texts, key=lambda column: column.median_chars, default=next(numbers, None))


def job_name(path: str) -> str:
    """A name made of the first path.

    >>> job_name("data/My docs.parquet"), job_name("data/*.jsonl")
    ('my-docs', 'data')
    """
    plain = [part for part in PurePath(path).parts if not set(part) & set("*?[")]
    stem = plain[-1].partition(".")[0] if plain else ""
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "job"


def _columns(shards: Sequence[Shard]) -> list[ColumnSample]:
    """Columns of the first shard that has rows."""
    for shard in shards:
        is_parquet = shard.format == "parquet"
        values = _parquet_values(shard) if is_parquet else _text_values(shard)
        if any(values.values()):
            return [
                ColumnSample(name, tuple(value for value in column if value is not None))
                for name, column in values.items()
            ]
    raise DataError(f"{shards[0].path}: holds no rows to take columns from")


def _parquet_values(shard: Shard) -> dict[str, list[Any]]:
    file = ParquetShard(shard)
    file.close()
    blocks = read_blocks(shard, columns=file.schema.names, limits=LIMITS, max_rows=SAMPLE_ROWS)
    block = next(blocks)
    return block.columns


def _text_values(shard: Shard) -> dict[str, list[Any]]:
    rows = TextRows(shard, columns=None, limits=LIMITS, start=ReadPoint(), counts=ReadCounts())
    values: dict[str, list[Any]] = {name: [] for name in rows.columns}
    try:
        for record in islice(rows.records, SAMPLE_ROWS):
            if not isinstance(record, RowError):
                for name, value in record.items():
                    values.setdefault(name, []).append(value)
    finally:
        rows.source.close()
    return values


def _prompt(column: ColumnSample) -> str:
    if column.is_conversation:
        return READY_MADE.format(kind="a list of messages", column=_yaml(column.name))
    if not column.is_reachable:
        return READY_MADE.format(kind="the prompt", column=_yaml(column.name))
    return MESSAGES.format(column=column.name)


def _prefix(keep: Sequence[str]) -> str:
    added = generated_names(
        OutputConfig(path="runs/job"), SamplingConfig(), ModelConfig(name=DEFAULT_MODEL)
    )
    if not set(keep) & set(added):
        return ""
    return f"  prefix: {COLLISION_PREFIX}    # an input column is named like one that is added\n"


def _yaml(value: Any) -> str:
    """A string or list of strings in YAML: bare where that is safe, else quoted as in JSON."""
    if isinstance(value, list):
        return f"[{', '.join(_yaml(item) for item in value)}]"
    if re.fullmatch(r"[A-Za-z][\w./-]*", value, re.ASCII) and value.lower() not in _YAML_WORDS:
        return str(value)
    quoted = json.dumps(value, ensure_ascii=False)
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


_UNSEEN: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff]")
"""What a terminal would obey or not show, and JSON does not escape."""
_YAML_WORDS: Final = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
