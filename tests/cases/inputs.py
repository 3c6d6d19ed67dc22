"""The inputs of the replayable cases, each made on the spot from a fixed seed.

A function writes one case's shards into the folder that it is given. Columns that begin with
`sim_` are stage directions: batchgen knows nothing of them and carries them along like any other
column; `directions` turns them into a script for the simulated engine.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = Mapping[str, Any]

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "larch")
LONG = 120
"""Words of a prompt that no engine of 64 tokens can take."""
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
LINE_LIKE = ("\u2028", "\u2029", "\x85", "\r", "\r\n", "\x0b\x0c\x1c")
"""What other readers take for the end of a line."""
BRACES = ("{title} {0}", "{{ title }}", "{{ 7 * 7 }}", "{% if title %}", "{# note #}", "plain")
REPLIES = (
    ('[{"a":1}]', "stop"),
    ('[{"a":1},{"a"', "length"),
    ('{"name":"lamp","tags":["old","br', "length"),
    ("[1,2,3]", "length"),
)
SEASONS = ("autumn", "spring", "summer", "winter")


def sentence(random: Random, num_words: int) -> str:
    """Words with single blanks between them: as many tokens as words."""
    return " ".join(random.choices(WORDS, k=num_words))


def line(row: Row) -> str:
    """One compact JSON object."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def jsonl(path: Path, rows: Iterable[Row]) -> None:
    """One object a line, each ended by a line feed."""
    path.write_bytes("".join(f"{line(row)}\n" for row in rows).encode())


def parquet(path: Path, **columns: list[Any]) -> None:
    """One row group; types follow from the values."""
    pq.write_table(pa.table(columns), path)


def numbered(count: int, word: str = "row") -> list[str]:
    """Prompts of equal length, all different."""
    return [f"{word} {number}" for number in range(count)]


def c01(folder: Path) -> None:
    """Three prompts, the one in the middle far too long."""
    random = Random("c01")
    jsonl(folder / "rows.jsonl", [{"prompt": sentence(random, n)} for n in (5, LONG, 5)])


def c03(folder: Path) -> None:
    """Two shards: short then long, long then short."""
    random = Random("c03")
    jsonl(folder / "a.jsonl", [{"prompt": sentence(random, n)} for n in (5, LONG)])
    jsonl(folder / "b.jsonl", [{"prompt": sentence(random, n)} for n in (LONG, 5)])


def c04(folder: Path) -> None:
    """Values that are no usable text between usable ones; NaN in a column of floats."""
    random = Random("c04")
    usable = [sentence(random, 4) for _ in range(3)]
    values = [usable[0], "", "   ", usable[1], None, 123, usable[2], {}, []]
    jsonl(folder / "a.jsonl", [{"prompt": value} for value in values])
    parquet(folder / "b.parquet", prompt=[float("nan")])


def c05_one_row(folder: Path) -> None:
    """Ten rows with title and body; row 7 has no body."""
    random = Random("c05")
    rows = [{"title": sentence(random, 2), "body": sentence(random, 4)} for _ in range(10)]
    del rows[7]["body"]
    jsonl(folder / "one_row.jsonl", rows)


def c05_all_rows(folder: Path) -> None:
    """Ten rows in which the column is called Body."""
    random = Random("c05")
    rows = [{"title": sentence(random, 2), "Body": sentence(random, 4)} for _ in range(10)]
    jsonl(folder / "all_rows.jsonl", rows)


def c06(folder: Path) -> None:
    """A hundred conversations; that of row 50 has no messages."""
    random = Random("c06")
    rows = [{"messages": [{"role": "user", "content": sentence(random, 3)}]} for _ in range(100)]
    rows[50] = {"messages": []}
    jsonl(folder / "rows.jsonl", rows)


def c07(folder: Path) -> None:
    """A thousand physical lines: a byte order mark, line 501 cut short, line 700 blank."""
    lines = [line({"prompt": f"line {number}"}) for number in range(1, 1001)]
    lines[500] = lines[500][:-4]
    lines[699] = ""
    text = "\ufeff" + "".join(f"{text}\n" for text in lines)
    (folder / "rows.jsonl").write_bytes(text.encode())


def c08(folder: Path) -> None:
    """The same six texts as JSONL and as Parquet; one JSONL line ends in CR LF."""
    texts = [f"before{mark}after" for mark in LINE_LIKE]
    ends = ["\n"] * 6
    ends[4] = "\r\n"
    lines = [line({"prompt": text}) + end for text, end in zip(texts, ends, strict=True)]
    (folder / "a.jsonl").write_bytes("".join(lines).encode())
    parquet(folder / "b.parquet", prompt=texts)


def c09(folder: Path) -> None:
    """Data that looks like template code."""
    jsonl(folder / "rows.jsonl", [{"text": text, "title": "EXPANDED"} for text in BRACES])


def c10(folder: Path) -> None:
    """Schemas as text: a good one, none at all, one whose items are a list, the good one again."""
    random = Random("c10")
    good = line(SCHEMA)
    pair = line({"type": "array", "items": [{"type": "string"}]})
    rows = [{"prompt": sentence(random, 4), "schema": text} for text in (good, "", pair, good)]
    jsonl(folder / "rows.jsonl", rows)


def c11(folder: Path) -> None:
    """Nine prompts, all too long."""
    random = Random("c11")
    jsonl(folder / "rows.jsonl", [{"prompt": sentence(random, LONG)} for _ in range(9)])


def c12(folder: Path) -> None:
    """A thousand rows; from row 100 on the engine fails each."""
    faults = [None] * 100 + ["row_error"] * 900
    parquet(folder / "rows.parquet", prompt=numbered(1000), sim_fault=faults)


def c13(folder: Path) -> None:
    """Four shards of a thousand rows."""
    for shard in range(4):
        prompts = numbered(1000, f"shard {shard} row")
        parquet(folder / f"shard-{shard}.parquet", prompt=prompts)


def c14(folder: Path) -> None:
    """Forty rows, the last line without its line feed."""
    lines = [line({"prompt": text}) for text in numbered(40)]
    (folder / "rows.jsonl").write_bytes("\n".join(lines).encode())


def c15(folder: Path) -> None:
    """Five rows, three of them with the same text."""
    random = Random("c15")
    texts = {letter: f"{letter} {sentence(random, 3)}" for letter in "ABC"}
    jsonl(folder / "rows.jsonl", [{"prompt": texts[letter]} for letter in "ABAAC"])


def c19(folder: Path) -> None:
    """Twenty rows; rows 3, 8 and 15 want 30 tokens, the others 5."""
    random = Random("c19")
    rows = [
        {"prompt": sentence(random, 4), "sim_reply_tokens": 30 if number in (3, 8, 15) else 5}
        for number in range(20)
    ]
    jsonl(folder / "rows.jsonl", rows)


def c20(folder: Path) -> None:
    """A hundred rows: 10 empty, 10 null, 5 that the engine fails once."""
    rows: list[dict[str, Any]] = [{"prompt": text} for text in numbered(100)]
    chosen = Random("c20").sample(range(100), 25)
    for number in chosen[:10]:
        rows[number]["prompt"] = ""
    for number in chosen[10:20]:
        rows[number]["prompt"] = None
    for number in chosen[20:]:
        rows[number]["sim_fault"] = "row_error_once"
    jsonl(folder / "rows.jsonl", rows)


def c21(folder: Path) -> None:
    """Four shards of 25 rows, named without a number."""
    for name in SEASONS:
        jsonl(folder / f"{name}.jsonl", [{"prompt": text} for text in numbered(25, name)])


def c22(folder: Path) -> None:
    """Three hundred rows."""
    parquet(folder / "rows.parquet", prompt=numbered(300))


def c24(folder: Path) -> None:
    """Four batches of 32 rows, each with its own reply."""
    prompts = numbered(128)
    replies = [f"reply to {prompt}" for prompt in prompts]
    parquet(folder / "rows.parquet", prompt=prompts, sim_reply=replies)


def c25(folder: Path) -> None:
    """2048 rows: in each run of 64 one long completion among short ones."""
    random = Random("c25")
    lengths = [20] * 2048
    for start in range(0, 2048, 64):
        lengths[start + random.randrange(64)] = 2000
    parquet(folder / "rows.parquet", prompt=numbered(2048), sim_reply_tokens=lengths)


def c26(folder: Path) -> None:
    """Completions that ended by themselves, or at the token limit."""
    random = Random("c26")
    rows = [
        {"prompt": sentence(random, 4), "sim_reply": text, "sim_finish_reason": reason}
        for text, reason in REPLIES
    ]
    jsonl(folder / "rows.jsonl", rows)


def c27_rows(folder: Path) -> None:
    """One prompt as text."""
    jsonl(folder / "rows.jsonl", [{"prompt": "name one river"}])


def c27_chat(folder: Path) -> None:
    """The same prompt as a conversation."""
    message = {"role": "user", "content": "name one river"}
    jsonl(folder / "chat.jsonl", [{"messages": [message]}])


def c27_tokenizer(folder: Path) -> None:
    """A word-level tokenizer that adds BOS (id 1), with a chat template that writes it as well."""
    special = ["<unk>", "<s>", "</s>"]
    vocabulary = [*special, "user:", "assistant:", "name", "one", "river"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    sequence = [{"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB")]
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": token, "special": True, **flags}
            for number, token in enumerate(special)
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, sequence[0]],
            "pair": [begin, *sequence],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "model": {
            "type": "WordLevel",
            "vocab": {token: number for number, token in enumerate(vocabulary)},
            "unk_token": "<unk>",
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": (
            "{{ bos_token }}{% for message in messages %}"
            "{{ message['role'] }}: {{ message['content'] }} {% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}"
        ),
    }
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def x1(folder: Path) -> None:
    """Five rows."""
    random = Random("x1")
    jsonl(folder / "rows.jsonl", [{"prompt": sentence(random, 4)} for _ in range(5)])


def x2(folder: Path) -> None:
    """Twenty rows; row 12 keeps the engine busy for five minutes."""
    random = Random("x2")
    rows: list[dict[str, Any]] = [{"prompt": sentence(random, 4)} for _ in range(20)]
    rows[12]["sim_stall_s"] = 300
    jsonl(folder / "rows.jsonl", rows)


def x4(folder: Path) -> None:
    """Four rows; two of them share an id and nothing else."""
    random = Random("x4")
    jsonl(folder / "rows.jsonl", [{"id": key, "prompt": sentence(random, 4)} for key in "abac"])


def read_rows(shard: Path) -> list[dict[str, Any]]:
    """The rows of a shard. Lines that are blank are none, lines that are not JSON are empty."""
    if shard.suffix == ".parquet":
        rows: list[dict[str, Any]] = pq.read_table(shard).to_pylist()
        return rows
    lines = [text for text in shard.read_bytes().split(b"\n") if text.strip()]
    return [_json_object(text.removeprefix(b"\xef\xbb\xbf")) for text in lines]


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return value


def directions(folder: Path) -> dict[str, dict[str, Any]]:
    """What the `sim_` columns of all shards tell the simulated engine, by "shard:row"."""
    script = {}
    for shard in sorted(folder.iterdir()):
        for number, row in enumerate(read_rows(shard)):
            told = {
                name.removeprefix("sim_"): value
                for name, value in row.items()
                if name.startswith("sim_") and value is not None
            }
            if told:
                script[f"{shard.name}:{number}"] = told
    return script
