"""Writes the pages of docs/ that follow from the program: job-file.md and cli.md.

python tools/make_docs.py            write them
python tools/make_docs.py --check    say which ones are not current, and exit 1
"""

import sys
from pathlib import Path

from batchgen.cli.reference import cli_markdown
from batchgen.config.reference import job_file_markdown

DOCS = Path(__file__).parents[1] / "docs"


def pages() -> dict[Path, str]:
    """Each generated page and what it has to say."""
    return {
        DOCS / "cli.md": cli_markdown(),
        DOCS / "job-file.md": job_file_markdown(),
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
