"""The page in a real browser, with the network off."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from batchgen import read_batches
from batchgen.report.html import write_html

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]
LIGHT, DARK = 1, 0
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
)


class Dom(HTMLParser):
    """What stands in a page after its scripts have run."""

    def __init__(self, text):
        super().__init__()
        self.names = []
        self.facts = {}
        self.heads = []
        self.title = ""
        self._place = []
        self._fact = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.names.append(tag)
        self._place.append((tag, attributes.get("class", "")))

    def handle_endtag(self, tag):
        while self._place and self._place.pop()[0] != tag:
            pass

    def handle_data(self, data):
        tag, kind = self._place[-1] if self._place else ("", "")
        if tag == "title":
            self.title += data
        elif tag == "dt":
            self._fact = data
        elif kind.startswith("value"):
            self.facts[self._fact] = data
        elif (tag, self._place[-2][0] if len(self._place) > 1 else "") == ("button", "th"):
            self.heads.append(data)


@pytest.fixture
def look(tmp_path):
    """What Chromium makes of a page: its DOM, and what it complains of."""

    def dump(page: Path, *, width=1200, scheme=LIGHT):
        process = subprocess.run(
            [
                CHROMIUM,
                *FLAGS,
                f"--user-data-dir={tmp_path / 'profile'}",
                f"--window-size={width},900",
                f"--blink-settings=preferredColorScheme={scheme}",
                "--dump-dom",
                page.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert process.returncode == 0, process.stderr
        return process.stdout, re.findall(r".*CONSOLE.*", process.stderr)

    return dump


@pytest.fixture(scope="module")
def page(two_nights_report, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_html(two_nights_report, path)
    return path


def with_probe(page: Path, folder: Path, script: str) -> Path:
    """The page without its policy, and with a script that leaves its answer in the title."""
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
    probe = f"<script>document.title = String((() => {{{script}}})());</script>"
    path = folder / "probe.html"
    path.write_text(text.replace("</body>", f"{probe}</body>"))
    return path


def test_it_shows_the_right_numbers_with_the_network_off(look, page, two_nights_report):
    dom, complaints = look(page)
    facts, summary = Dom(dom).facts, two_nights_report.summary
    assert complaints == []
    assert facts["rows"] == "230"
    assert facts["failed"] == "8"
    assert facts["copies"] == "10"
    assert facts["output tokens/s"] == f"{summary.output_tokens_per_s:,.0f}"
    assert float(facts["cost"]) == pytest.approx(2.0 * summary.engine_s / 3600, rel=0.01)


def test_the_script_runs_under_the_policy_and_makes_heads_buttons(look, page):
    heads = Dom(look(page)[0]).heads
    assert {"batch", "output tok/s", "run", "measure", "shard"} <= set(heads)


def test_a_click_sorts_numbers_as_numbers_and_again_turns_them_round(
    look, page, two_nights, tmp_path
):
    probe = with_probe(
        page,
        tmp_path,
        """
        const table = document.getElementById("batches-table");
        const heads = Array.from(table.tHead.rows[0].cells);
        const head = heads.find(cell => cell.textContent === "wall s");
        const ids = () => Array.from(table.tBodies[0].rows).map(row => row.cells[0].textContent);
        head.firstChild.click();
        const up = [head.getAttribute("aria-sort"), ...ids()];
        head.firstChild.click();
        return [up.join(), [head.getAttribute("aria-sort"), ...ids()].join()].join(";");
        """,
    )
    ascending, descending = Dom(look(probe)[0]).title.split(";")
    batches = read_batches(two_nights.out).sort_values("wall_s", kind="stable")
    ids = [str(number) for number in batches["batch_id"]]
    assert ascending.split(",") == ["ascending", *ids]
    assert descending.split(",") == ["descending", *ids[::-1]]


def test_hostile_text_does_nothing(look, hostile_place, hostile, tmp_path):
    path = tmp_path / "report.html"
    write_html(hostile_place.report(), path)
    text, complaints = look(path)
    dom = Dom(text)
    assert complaints == []
    assert dom.title.startswith("<script>document.title='owned'</script>")
    assert "img" not in dom.names
    assert dom.names.count("script") == 1


@pytest.mark.parametrize("width", [420, 1200])
def test_nothing_is_wider_than_the_window(look, page, tmp_path, width):
    """In a frame, because a window of Chromium has a least width."""
    script = "parent.postMessage(document.documentElement.scrollWidth, '*'); return ''"
    probe = with_probe(page, tmp_path, script)
    outer = tmp_path / "outer.html"
    outer.write_text(
        "<script>addEventListener('message', event => { document.title = event.data })</script>"
        f"<title></title><iframe src='{probe.name}' width='{width}' height='800'></iframe>"
    )
    assert int(Dom(look(outer, width=1400)[0]).title) <= width


def test_plots_and_text_have_contrast_on_light_and_on_dark(look, page, tmp_path):
    probe = with_probe(
        page,
        tmp_path,
        """
        const color = (element, name) => getComputedStyle(element)[name].match(/\\d+/g).slice(0, 3)
            .reduce((sum, part) => sum + Number(part), 0) / 3;
        return [color(document.body, "backgroundColor"), color(document.body, "color"),
            color(document.querySelector("svg text"), "fill")].join();
        """,
    )
    paper, ink, label = (float(part) for part in Dom(look(probe)[0]).title.split(","))
    assert paper > 200
    assert max(ink, label) < 60
    dark = Dom(look(probe, scheme=DARK)[0]).title
    paper, ink, label = (float(part) for part in dark.split(","))
    assert paper < 60
    assert min(ink, label) > 200
