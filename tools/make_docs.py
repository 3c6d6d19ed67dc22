"""Writes what follows from the program: docs/job-file.md, docs/cli.md, the schema of the job file.

python tools/make_docs.py            write them
python tools/make_docs.py --check    say which ones are not current, and exit 1
"""

import json
import sys
from pathlib import Path

from batchgen.cli.reference import cli_markdown
from batchgen.config.reference import job_file_markdown
from batchgen.config.schema import SCHEMA_FILE, job_schema

DOCS = Path(__file__).parents[1] / "docs"


def pages() -> dict[Path, str]:
    """Each generated page and what it has to say."""
    return {
        DOCS / "cli.md": cli_markdown(),
        DOCS / "job-file.md": job_file_markdown(),
        SCHEMA_FILE: json.dumps(job_schema(), indent=2, ensure_ascii=True) + "\n",
    }


def main(args: list[str]) -> int:
    """Write or check all pages; the exit code."""
    stale = {
        path: text
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        if "--check" in args:
            sys.stderr.write(f"{path}: not current; run: make docs\n")
        else:
            path.write_text(text, encoding="utf-8")
            sys.stderr.write(f"wrote {path}\n")
    return 1 if stale and "--check" in args else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
