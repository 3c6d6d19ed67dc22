"""100,000 real documents through real vLLM, killed once with `kill -9` in the middle and resumed.

One job file with default settings (continuous feed, longest first), a tiny model, 16 output tokens
a row, documents cut to the model's 512 tokens. The first run is killed without warning at
`--kill-at` of the rows; the same command is given again and runs to the end; given a third time it
finds nothing new. Then everything is counted: every input row once, under its own id, in the files
and by `batchgen verify`; rows that the kill cost; memory; time.

Does it get slower on the way? Rows per second depend on the rows: longest first means that each
block of `look_ahead` documents begins with the long ones and ends with the short ones. So time is
compared with work. Batches are added up to spans of 1,024 rows; what the engine produced in a span
is known; the price of a prompt token and of an output token that fits all spans best is found by
least squares (every row writes the same number of tokens, ignore_eos, and the corpus is shuffled).
The speed of a span is what its tokens should have cost by these prices, divided by the time that it
took. The measure is the median speed of the last three spans against the first one. All speeds are
in the answer, and the median of the last quarter against that of the first, so that the noise of
the machine shows. Spans in which slots stood empty for want of rows (the tail of the run) are left
out.

    python benchmarks/corpus_100k.py                      # 10 to 40 minutes
    python benchmarks/corpus_100k.py --rows 3000          # a trial: too short for the rates
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
from feeds import make_model
from processes import Watched, require_success, run_watched
from random_kills import durable_rows
from real_documents import build_corpus

from batchgen.monitor.state import read_progress
from batchgen.output.layout import RunLayout
from batchgen.output.reading import read_batches
from batchgen.output.snapshot import look

if TYPE_CHECKING:
    import pandas as pd

MAX_MODEL_LEN = 512
SPAN_ROWS = 1000
"""Batches are added up until they have so many rows."""
LEAST_SPANS = 8
MOST_DRAIN = 0.02
"""Share of a span's time with empty slots up to which it counts."""
LINE_PERIOD_S = 30.0
LOOK_PERIOD_S = 0.25


class Watcher:
    """Looks at a run's `progress.json`; says how far it is, and kills it at `kill_at` rows."""

    def __init__(self, layout: RunLayout, kill_at: int | None) -> None:
        self._layout = layout
        self._kill_at = kill_at
        self._looked = self._said = time.monotonic()
        self._has_killed = False

    def __call__(self, child: subprocess.Popen[bytes]) -> None:
        """One look."""
        now = time.monotonic()
        if now < self._looked + LOOK_PERIOD_S or self._has_killed:
            return
        self._looked = now
        progress = read_progress(self._layout.progress)
        if progress is None or progress["pid"] != child.pid:
            return
        if self._kill_at is not None and progress["rows_done"] >= self._kill_at:
            child.send_signal(signal.SIGKILL)
            self._has_killed = True
        elif now >= self._said + LINE_PERIOD_S:
            self._said = now
            rate = progress["rows_per_s"]
            shown = "" if rate is None else f", {rate:.0f} rows/s"
            say(f"{progress['phase']}: {progress['rows_done']:,} rows{shown}")


def main() -> None:
    """Build, run, kill, resume, count; a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--kill-at", type=float, default=0.5, help="share of the rows")
    parser.add_argument("--model", help="directory; a tiny random Llama is made without it")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-100k"))
    parser.add_argument("--timeout", type=float, default=4 * 3600.0, help="seconds for one run")
    options = parser.parse_args()
    if not 0 < options.kill_at < 1:
        parser.error("--kill-at must be between 0 and 1")
    corpus = options.folder / f"corpus-{options.rows}"
    say("building the corpus")
    facts = build_corpus(corpus, options.rows)
    model = options.model or make_model(options.folder / "model")
    layout = RunLayout(options.folder / "out")
    shutil.rmtree(layout.path, ignore_errors=True)
    job = write_job(corpus, model, layout, options)
    result: dict[str, Any] = {
        "benchmark": "corpus_100k",
        "rows": options.rows,
        "model": options.model or "tiny",
        "cores": os.cpu_count(),
        "corpus": facts,
        **run_and_kill(job, layout, options),
        **count(corpus, layout),
    }
    result |= rates(read_batches(layout.path), result["slots"])
    (options.folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    show(result)
    print(json.dumps(result))


def write_job(corpus: Path, model: str, layout: RunLayout, options: argparse.Namespace) -> Path:
    """The job: what has to be said, all else by default."""
    job = {
        "input": {"paths": [f"{corpus}/*.parquet"]},
        "prompt": {"template": "{{ title }}\n\n{{ text }}", "on_overlong": "truncate_end"},
        "model": {"name": model, "max_model_len": MAX_MODEL_LEN},
        "sampling": {"max_tokens": options.max_tokens, "temperature": 0.0, "ignore_eos": True},
        "output": {"path": str(layout.path), "keep": ["id", "source"]},
    }
    path = options.folder / "job.yaml"
    # JSON is YAML.
    path.write_text(json.dumps(job, indent=1))
    return path


def run_and_kill(job: Path, layout: RunLayout, options: argparse.Namespace) -> dict[str, Any]:
    """The three runs; what the kill cost, seconds, memory."""
    killed = run(job, layout, options, kill_at=int(options.rows * options.kill_at))
    if killed.code != -signal.SIGKILL:
        require_success(killed, "the first run")
        raise SystemExit("the first run was at its end before it could be killed")
    progress = read_progress(layout.progress) or {}
    durable = look(layout, durable_rows)
    say(f"killed after {killed.seconds:.0f} s with {len(durable):,} rows durable; resuming")
    resumed = run(job, layout, options, kill_at=None)
    require_success(resumed, "the resumed run")
    answer = json.loads(resumed.stdout.splitlines()[-1])
    again = run(job, layout, options, kill_at=None)
    require_success(again, "the run without news")
    slots = answer["engine"]["max_num_seqs"]
    return {
        "killed": {
            "wall_s": killed.seconds,
            "rows_done_shown": progress["rows_done"],
            "rows_durable": len(durable),
            "rows_repeated_at_least": max(0, progress["rows_done"] - len(durable)),
            # Rows in flight, and those finished and not yet saved, are within the window.
            "rows_repeated_at_most": 2 * slots,
            "durable_rows_generated_again": len(durable) + answer["rows_this_run"] - options.rows,
            "peak_mb": killed.peak_mb,
        },
        "resumed": {
            "wall_s": resumed.seconds,
            "engine_start_s": answer["phases"]["engine_start"],
            "generate_s": answer["generate_s"],
            "rows": answer["rows_this_run"],
            "rows_per_s": answer["rows_per_s"],
            "total_tokens_per_s": answer["total_tokens_per_s"],
            "num_failed": answer["num_failed"],
            "peak_mb": resumed.peak_mb,
        },
        "nothing_new_s": again.seconds,
        "wall_s": killed.seconds + resumed.seconds,
        "slots": slots,
    }


def run(
    job: Path, layout: RunLayout, options: argparse.Namespace, *, kill_at: int | None
) -> Watched:
    """One run of the command."""
    return run_watched(
        [sys.executable, "-m", "batchgen", "run", str(job), "--json", "--quiet"],
        environment={"HF_HUB_OFFLINE": "1"},
        timeout_s=options.timeout,
        on_glance=Watcher(layout, kill_at),
    )


def count(corpus: Path, layout: RunLayout) -> dict[str, Any]:
    """Rows that are lost, doubled or under a wrong id, by the files alone; and `verify`."""
    columns = ["shard", "row", "id", "error_type"]
    outputs = ds.dataset(layout.outputs).to_table(columns=columns).to_pylist()
    found = {(row["shard"], row["row"]): row["id"] for row in outputs}
    expected = {
        (path.name, number): id
        for path in sorted(corpus.glob("*.parquet"))
        for number, id in enumerate(pq.read_table(path, columns=["id"]).column("id").to_pylist())
    }
    verify = [sys.executable, "-m", "batchgen", "verify", str(layout.path), "--json"]
    proof = subprocess.run(verify, capture_output=True, text=True)
    return {
        "outputs": {
            "rows": len(outputs),
            "lost": len(expected.keys() - found.keys()),
            "doubled": len(outputs) - len(found),
            "wrong_id": sum(expected.get(key) != id for key, id in found.items()),
            "failed": sum(row["error_type"] is not None for row in outputs),
            "success_file": layout.success.exists(),
            "verify_exit_code": proof.returncode,
            "verify_problems": json.loads(proof.stdout.splitlines()[-1])["problems"],
        }
    }


def rates(batches: "pd.DataFrame", slots: int) -> dict[str, Any]:
    """Speed over the run, and where time went; None where there are too few batches to tell."""
    full = batches[(batches.closed_by == "size") & batches.wall_s.notna()]
    spans = spans_of(full)
    busy = spans[spans.drain_s <= MOST_DRAIN * spans.wall_s]
    return {
        "rate": speeds(busy) if len(busy) >= LEAST_SPANS else None,
        "overhead": overhead(full, slots) if len(full) else None,
    }


def spans_of(full: "pd.DataFrame") -> "pd.DataFrame":
    """Batches that follow each other in a run, added up to `SPAN_ROWS` rows or more.

    Columns: rows, seconds, seconds of drain, tokens that the engine took in and produced meanwhile.
    """
    import numpy as np
    import pandas as pd

    output = full.output_tokens_per_s * full.wall_s
    sums = pd.DataFrame(
        {
            "num_rows": full.num_rows,
            "wall_s": full.wall_s,
            "drain_s": full.drain_s.fillna(0.0),
            "output_tokens": output,
            "prompt_tokens": full.total_tokens_per_s * full.wall_s - output,
        }
    )
    spans = []
    for _, of_run in sums.groupby(full.run_id, sort=False):
        batches_of_span = -(-SPAN_ROWS // int(of_run.num_rows.max()))
        spans.append(of_run.groupby(np.arange(len(of_run)) // batches_of_span).sum())
    joined = pd.concat(spans, ignore_index=True) if spans else sums
    return joined[joined.num_rows >= SPAN_ROWS]


def speeds(spans: "pd.DataFrame") -> dict[str, Any]:
    """What the tokens of each span should have cost, divided by what they did.

    The two prices minimize the squared relative error over all spans.
    """
    import numpy as np

    seconds = spans.wall_s.to_numpy()
    work = spans[["prompt_tokens", "output_tokens"]].to_numpy() / seconds[:, None]
    prices, *_ = np.linalg.lstsq(work, np.ones(len(spans)), rcond=None)
    speed = work @ prices
    quarter = max(1, len(speed) // 4)
    first = spans.iloc[0]
    return {
        "first_rows": int(first.num_rows),
        "first_rows_per_s": round(float(first.num_rows / first.wall_s), 2),
        "spans": len(spans),
        "last_over_first": round(float(np.median(speed[-3:]) / speed[0]), 4),
        "last_quarter_over_first_quarter": round(
            float(np.median(speed[-quarter:]) / np.median(speed[:quarter])), 4
        ),
        "spread_p10_p90": [round(float(np.quantile(speed, q)), 4) for q in (0.1, 0.9)],
        "us_per_prompt_token": round(1e6 * float(prices[0]), 3),
        "us_per_output_token": round(1e6 * float(prices[1]), 3),
        "speeds": [round(float(value), 4) for value in speed],
    }


def overhead(full: "pd.DataFrame", slots: int) -> dict[str, Any]:
    """Slots in use, and seconds of batchgen's own beside the engine and in its way."""
    wall_s = float(full.wall_s.sum())
    resumed = full[full.run_id == full.run_id.iloc[-1]]

    def share(name: str) -> float | None:
        known = full[name].dropna() if name in full.columns else ()
        return round(float(sum(known)) / wall_s, 5) if len(known) else None

    def per_row(name: str) -> float:
        return round(1e6 * float(full[name].sum()) / float(full.num_rows.sum()), 2)

    return {
        "slots_used": round(float((full.num_running_mean * full.wall_s).sum()) / wall_s / slots, 4),
        "drain_share": share("drain_s"),
        "host_share": share("host_s"),
        "read_us_per_row": per_row("read_s"),
        "render_us_per_row": per_row("render_s"),
        "write_us_per_row": per_row("write_s"),
        "rss_mb_first": round(float(resumed.rss_bytes.iloc[0]) / 2**20, 1),
        "rss_mb_last": round(float(resumed.rss_bytes.iloc[-1]) / 2**20, 1),
    }


def show(result: dict[str, Any]) -> None:
    """The table."""
    for title, part in result.items():
        if isinstance(part, dict) and title != "corpus":
            print(title)
            for name, value in part.items():
                shown = f"{value:,.2f}" if isinstance(value, float) else f"{value}"
                print(f"  {name.replace('_', ' '):32s} {shown}")
    if result["rate"] is None:
        print(f"rate\n  too few rows: fewer than {LEAST_SPANS} spans of {SPAN_ROWS}")
    print(f"{result['rows']:,} rows in {result['wall_s']:.0f} s, killed once on the way")


def say(line: str) -> None:
    """Progress, for people."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
