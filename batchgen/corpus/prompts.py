"""Rows to prompts: rendered, judged, tokenized, block by block.

A row is judged in a fixed order, and the first thing wrong is its error: unreadable line, missing
column, null, wrong type, failing template, nothing visible, sampling, JSON schema, length. What
passes is sound: the engine never sees a row that could be refused by looking at it, and one bad
row leaves its neighbors as they are. Tokenizing is one call for all rows of a block.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

from batchgen.config.models import PromptConfig, SamplingConfig
from batchgen.corpus.overlong import CuttingTokenizer, cut_text, output_room
from batchgen.corpus.sampling import RowSampling
from batchgen.corpus.sources import Texts, make_source
from batchgen.corpus.templates import RowRefused
from batchgen.corpus.tokenizing import WordTokenizer
from batchgen.protocols import Tokenizer
from batchgen.records import Prompt, Refusal, RowBlock, RowError, Sampling

_MOST_CUTS = 12


def column_uses(
    prompt: PromptConfig, sampling: SamplingConfig, where: Callable[[str], str] = str
) -> dict[str, str]:
    """The columns that prompts need, each with the job key that uses it first.

    Raises JobFileError for a template that cannot be compiled or uses no column; `where` gives a
    key's place in the job file.
    """
    source = make_source(prompt, where, WordTokenizer())
    kind = next(kind for kind in PromptConfig.kinds if getattr(prompt, kind) is not None)
    uses = dict.fromkeys(source.columns, f"prompt.{kind}")
    for field, column in sampling.columns().items():
        uses.setdefault(column, f"sampling.{field}")
    return uses


def needed_columns(
    prompt: PromptConfig, sampling: SamplingConfig, where: Callable[[str], str] = str
) -> tuple[str, ...]:
    """The columns that prompts and sampling need. Raises as `column_uses`."""
    return tuple(column_uses(prompt, sampling, where))


class PromptBuilder:
    """Makes prompts of blocks of rows.

    `max_model_len` is the most tokens of prompt and completion together; a prompt may have one
    less. Raises JobFileError for templates and schemas that cannot be used, at the place that
    `where` gives for a key.
    """

    def __init__(
        self,
        prompt: PromptConfig,
        sampling: SamplingConfig,
        tokenizer: Tokenizer,
        *,
        max_model_len: int,
        where: Callable[[str], str],
    ) -> None:
        self.needed_columns = needed_columns(prompt, sampling, where)
        self._source = make_source(prompt, where, tokenizer)
        self._sampling = RowSampling(sampling, where)
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._on_overlong = prompt.on_overlong

    def build(self, block: RowBlock, rows: Collection[int] | None = None) -> list[Prompt | Refusal]:
        """A prompt or a refusal for each row, in order; `rows` names those wanted (None: all)."""
        start = block.start_row
        offsets: Sequence[int] = range(block.num_rows)
        if rows is not None:
            offsets = [offset for offset in offsets if start + offset in rows]
        sound: Sequence[int] = offsets
        if block.errors:
            sound = [offset for offset in offsets if offset not in block.errors]
        texts = self._source.render(block, sound)
        texts.errors.update(block.errors)
        self._refuse_surrogates(texts)
        samplings = self._sample(block, texts)
        ids = self._tokenize(texts)
        self._judge_lengths(block, texts, ids, samplings)
        return self._assemble(block, offsets, texts, ids, samplings)

    def _refuse_surrogates(self, texts: Texts) -> None:
        for offset, text in texts.by_offset.items():
            if not text.isascii() and not _is_unicode(text):
                texts.errors[offset] = RowError(
                    "bad_type", "the prompt is not valid Unicode (a lone surrogate)"
                )

    def _sample(
        self, block: RowBlock, texts: Texts
    ) -> Mapping[int, tuple[Sampling, int | None]] | None:
        """Sampling and seed by row; None where all rows share one and have no seed."""
        shared = self._sampling.shared
        if shared is not None and (
            self._sampling.is_seedless or shared.values.get("temperature") == 0
        ):
            return None
        samplings: dict[int, tuple[Sampling, int | None]] = {}
        for offset in texts.by_offset:
            if offset in texts.errors:
                continue
            sampling = shared or self._sampling.of(block, offset)
            seed = (
                self._sampling.seed(block, offset, sampling)
                if isinstance(sampling, Sampling)
                else None
            )
            if isinstance(sampling, RowError):
                texts.errors[offset] = sampling
            elif isinstance(seed, RowError):
                texts.errors[offset] = seed
            else:
                samplings[offset] = sampling, seed
        return samplings

    def _tokenize(self, texts: Texts) -> dict[int, Any]:
        errors, chats = texts.errors, texts.chats
        sound = [offset for offset in texts.by_offset if offset not in errors]
        raw = [offset for offset in sound if offset not in chats] if chats else sound
        ids = self._encode(texts.by_offset, raw, add_special_tokens=True)
        if chats:
            rendered = [offset for offset in sound if offset in chats]
            ids |= self._encode(texts.by_offset, rendered, add_special_tokens=False)
        return ids

    def _encode(
        self, texts: Mapping[int, str], offsets: Sequence[int], *, add_special_tokens: bool
    ) -> dict[int, Any]:
        encoded = self._tokenizer.encode_batch(
            [texts[offset] for offset in offsets], add_special_tokens=add_special_tokens
        )
        bos = self._tokenizer.bos_token_id
        if bos is not None:
            encoded = [one_bos(ids, bos) for ids in encoded]
        return dict(zip(offsets, encoded, strict=True))

    def _judge_lengths(
        self,
        block: RowBlock,
        texts: Texts,
        ids: dict[int, Any],
        samplings: Mapping[int, tuple[Sampling, int | None]] | None,
    ) -> None:
        limit = self._max_model_len - 1
        shared = self._sampling.shared
        for offset in [offset for offset, row_ids in ids.items() if not 0 < len(row_ids) <= limit]:
            if not len(ids[offset]):
                texts.errors[offset] = RowError("empty_prompt", "the prompt has no token")
                continue
            sampling = samplings[offset][0] if samplings is not None else cast(Sampling, shared)
            error = (
                self._too_long(len(ids[offset]))
                if self._on_overlong == "error"
                else self._cut(block, texts, ids, offset, sampling)
            )
            if error is not None:
                texts.errors[offset] = error

    def _too_long(self, num_tokens: int, reason: str = "") -> RowError:
        return RowError(
            "prompt_too_long",
            f"the prompt has {num_tokens} tokens, and at most {self._max_model_len - 1} fit"
            f" (a model length of {self._max_model_len}, less one for the completion){reason}",
            num_tokens,
        )

    def _cut(
        self,
        block: RowBlock,
        texts: Texts,
        ids: dict[int, Any],
        offset: int,
        sampling: Sampling,
    ) -> RowError | None:
        """Put a shorter text in place of a row's; an error where no cut makes it fit."""
        num_tokens = len(ids[offset])
        budget = self._max_model_len - output_room(sampling.max_tokens, self._max_model_len)
        fields = self._source.fields(block, offset)
        longest = max(fields, key=lambda name: len(fields[name]), default=None)
        if longest is None:
            return self._too_long(num_tokens, "; the row has no text that could be cut")
        tokenizer = cast(CuttingTokenizer, self._tokenizer)
        spans = tokenizer.spans(fields[longest])
        keep, excess = len(spans), num_tokens - budget
        for _ in range(_MOST_CUTS):
            keep -= max(1, excess)
            if keep <= 0:
                break
            shorter = cut_text(fields[longest], spans, keep, self._on_overlong)
            try:
                text = self._source.render_with(block, offset, {longest: shorter})
            except RowRefused as refused:
                return refused.error
            row_ids = self._encode(
                {offset: text}, [offset], add_special_tokens=offset not in texts.chats
            )[offset]
            excess = len(row_ids) - budget
            if excess <= 0:
                texts.by_offset[offset], ids[offset] = text, row_ids
                return None
        return self._too_long(num_tokens, f"; cutting '{longest}' alone does not make it fit")

    def _assemble(
        self,
        block: RowBlock,
        offsets: Sequence[int],
        texts: Texts,
        ids: Mapping[int, Any],
        samplings: Mapping[int, tuple[Sampling, int | None]] | None,
    ) -> list[Prompt | Refusal]:
        shard, part, start = block.shard, block.part_start, block.start_row
        errors, by_offset = texts.errors, texts.by_offset
        sampling, seed = self._sampling.shared, None
        items: list[Prompt | Refusal] = []
        for offset in offsets:
            if offset in errors:
                text = by_offset.get(offset)
                items.append(Refusal(shard, start + offset, part, errors[offset], text))
                continue
            if samplings is not None:
                sampling, seed = samplings[offset]
            items.append(
                Prompt(
                    shard,
                    start + offset,
                    part,
                    ids[offset],
                    by_offset[offset],
                    cast(Sampling, sampling),
                    seed,
                )
            )
        return items


def one_bos(ids: Any, bos: int) -> Any:
    """Token ids without a second beginning-of-sequence token.

    The tokenizer adds one, and a chat template or a prompt's own text may have written it already.

    >>> one_bos([1, 1, 5], 1)
    [1, 5]
    """
    num_leading = 0
    while num_leading < len(ids) and ids[num_leading] == bos:
        num_leading += 1
    return ids[num_leading - 1 :] if num_leading > 1 else ids


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
