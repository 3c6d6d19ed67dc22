"""Text to token ids: the model's own tokenizer, or one word, one token for the simulated engine.

Token ids are kept as arrays of four bytes each: blocks of prompts wait for the engine, and a list
of Python integers takes ten times as much.
"""

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, overload

from batchgen.config.models import ModelConfig, PromptConfig
from batchgen.corpus.chat_template import read_chat_template
from batchgen.errors import EngineError, EngineNotInstalled, JobFileError
from batchgen.protocols import Tokenizer

_WORD = re.compile(r"\S+|^\s+\Z")
_MOST_WORDS = 1 << 16
"""Words whose ids `WordTokenizer.decode` remembers."""


class _Vocabulary(dict[str, int]):
    """Word to token id, filled as words come up; `words` is the way back."""

    def __init__(self) -> None:
        self.words: dict[int, str] = {}

    def __missing__(self, word: str) -> int:
        digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        id = self[word] = int.from_bytes(digest, "big") >> 2
        self.words[id] = word
        return id

    def ids(self, words: Sequence[str]) -> list[int]:
        """62 bits of each word's hash, so that two words hardly ever share an id."""
        if len(self) > _MOST_WORDS:
            self.clear()
            self.words.clear()
        return [self[word] for word in words]


class WordIds(Sequence[int]):
    """Token ids of a text under `WordTokenizer`, computed when somebody looks at them.

    Mostly nobody does: the simulated engine wants their number. `bytes()` is equal for equal texts
    alone, a cheap stand-in for the ids in a digest.
    """

    __slots__ = ("_length", "_text", "_vocabulary")

    def __init__(self, text: str, vocabulary: _Vocabulary) -> None:
        self._text = text
        self._vocabulary = vocabulary
        self._length = count_words(text)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._ids()[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._ids() == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self._ids()))

    def __bytes__(self) -> bytes:
        return self._text.encode("utf-8", "surrogatepass")

    def __repr__(self) -> str:
        return f"WordIds({self._text!r})"

    def _ids(self) -> list[int]:
        return self._vocabulary.ids(self._text.split() or ([self._text] if self._text else []))


def count_words(text: str) -> int:
    """Words between blanks; 1 for a text of nothing but blanks, 0 for the empty one.

    Where single spaces are the only blanks they are counted, a quarter of the time of a split.

    >>> count_words("one two"), count_words(" one\\n two "), count_words("  "), count_words("")
    (2, 2, 1, 0)
    """
    if text.isascii() and text[-1:] > " " < text[:1] and not _has_other_blanks(text):
        return text.count(" ") + 1
    return len(text.split()) or (1 if text else 0)


def _has_other_blanks(text: str) -> bool:
    """Whether an ASCII text has blanks beside single spaces. Each test is one scan in C."""
    return (
        "  " in text
        or "\n" in text
        or "\t" in text
        or "\r" in text
        or "\x0b" in text
        or "\x0c" in text
        or "\x1c" in text
        or "\x1d" in text
        or "\x1e" in text
        or "\x1f" in text
    )


class WordTokenizer:
    """One word between blanks is one token; a text of nothing but blanks is one, too.

    The tokenizer of the simulated engine. A conversation becomes `role: content` for each message
    and `assistant:` at the end, joined by blanks. Ids depend on the word alone.
    """

    bos_token_id: int | None = None
    bos_token: str | None = None

    def __init__(self) -> None:
        self._vocabulary = _Vocabulary()

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Any]:
        """Token ids of each text; there are no special tokens."""
        return [WordIds(text, self._vocabulary) for text in texts]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The words, joined by blanks; an id that was not given out lately shows as a number."""
        return " ".join(self._vocabulary.words.get(id, f"<{id}>") for id in token_ids)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each token in the text, in characters."""
        return [match.span() for match in _WORD.finditer(text)]

    def render_chat(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """The conversation as one line of words."""
        said = [f"{message['role']}: {message['content']}" for message in messages]
        return " ".join([*said, "assistant:"])


class ModelTokenizer:
    """The tokenizer that comes with a model, through transformers."""

    def __init__(self, tokenizer: Any, chat_template: str | None) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self.bos_token: str | None = tokenizer.bos_token
        self.bos_token_id: int | None = tokenizer.bos_token_id

    @cached_property
    def _backend(self) -> Any:
        """The compiled tokenizer, which encodes a batch on all cores; None for a slow one."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None and hasattr(backend, "encode_batch_fast"):
            backend.no_truncation()
            backend.no_padding()
            return backend
        return None

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Any]:
        """Token ids of each text, whole, whatever length the tokenizer thinks the model takes."""
        if not texts:
            return []
        if self._backend is not None:
            encodings = self._backend.encode_batch_fast(
                list(texts), add_special_tokens=add_special_tokens
            )
            return [array("i", encoding.ids) for encoding in encodings]
        lists = self._tokenizer(
            list(texts), add_special_tokens=add_special_tokens, truncation=False, verbose=False
        )["input_ids"]
        return [array("i", ids) for ids in lists]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each token in the text, in characters; no special tokens.

        Raises EngineError for a slow tokenizer, which does not tell.
        """
        if self._backend is None:
            raise EngineError(
                "prompt.on_overlong: this tokenizer does not tell where its tokens stand in a text,"
                " so it cannot cut one; set prompt.on_overlong to error"
            )
        spans: list[tuple[int, int]] = self._backend.encode(text, add_special_tokens=False).offsets
        return spans

    def render_chat(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """The chat template applied; ValueError where it refuses the messages."""
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages),
                chat_template=self._chat_template,
                tokenize=False,
                add_generation_prompt=True,
                **kwargs,
            )
        except (TemplateError, TypeError, AttributeError, LookupError, ArithmeticError) as exc:
            raise ValueError(str(exc)) from exc
        return text


def load_tokenizer(model: ModelConfig, prompt: PromptConfig) -> Tokenizer:
    """The tokenizer of a job; `prompt.chat_template` replaces the model's own.

    Raises EngineNotInstalled without transformers, EngineError where there is no tokenizer, and
    JobFileError for a chat template that cannot be used or is missing though one is needed.
    """
    if model.engine == "simulated" and model.tokenizer is None:
        return WordTokenizer()
    name = model.tokenizer or model.name
    tokenizer = _from_pretrained(name, model.revision if model.tokenizer is None else None)
    chat_template = read_chat_template(prompt.chat_template, "prompt.chat_template")
    if prompt.messages and chat_template is None and not tokenizer.chat_template:
        raise JobFileError(
            f"prompt.messages: the tokenizer '{name}' has no chat template (a base model); set"
            " prompt.chat_template, or use prompt.template"
        )
    return ModelTokenizer(tokenizer, chat_template)


def _from_pretrained(name: str, revision: str | None) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as exc:
        raise EngineNotInstalled(
            f"the tokenizer '{name}' needs transformers; install it: pip install transformers"
        ) from exc
    if _is_path(name) and not Path(name).is_dir():
        raise EngineError(
            f"model '{name}': no such directory; give the directory that holds the model's"
            " config.json and tokenizer.json, or download it: hf download <id> --local-dir"
            f" {name}"
        )
    try:
        return AutoTokenizer.from_pretrained(name, revision=revision)
    except Exception as exc:
        reason = next(iter(str(exc).strip().splitlines()), type(exc).__name__)
        absent = "" if Path(name).is_dir() else "there is no such directory, and as a hub id: "
        raise EngineError(
            f"model '{name}': its tokenizer cannot be loaded: {absent}{reason}; give the directory"
            " of a model, or set model.tokenizer to a directory or hub id that has a tokenizer"
        ) from exc


def _is_path(name: str) -> bool:
    """Whether a name can only be a path: hub ids have one slash at most, and no dots in front."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith("/")


def model_length(model: ModelConfig) -> int | None:
    """Most tokens that the model takes, from config.json of a local directory; None if unknown."""
    path = Path(model.name) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return _length_in(config) or _length_in(config.get("text_config"))


def _length_in(config: Any) -> int | None:
    if not isinstance(config, dict):
        return None
    names: Iterable[str] = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    lengths = [config[name] for name in names if isinstance(config.get(name), int)]
    return min(lengths) if lengths else None
