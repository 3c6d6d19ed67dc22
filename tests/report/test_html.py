"""The page: one file, nothing from outside, and text of strangers is text."""

import re
from html.parser import HTMLParser

import pytest

from batchgen.report.html import render_html, script_hash, write_html

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """The elements of a page, its text, and whatever is wrong with how they are nested."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.text = []
        self.problems = []
        self._open = []
        self.feed(text)
        self.close()
        self.problems += [f"not closed: {name}" for name in self._open]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"closed out of turn: {tag} at {self.getpos()}")

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page(two_nights_report):
    return render_html(two_nights_report)


@pytest.fixture(scope="module")
def hostile_page(hostile_place):
    return render_html(hostile_place.report())


@pytest.fixture(params=["page", "hostile_page"])
def any_page(request):
    return request.getfixturevalue(request.param)


def test_elements_are_nested_well(any_page):
    assert Page(any_page).problems == []


def test_ids_are_unique_and_links_lead_somewhere(any_page):
    page = Page(any_page)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [a.get("href") or a.get("xlink:href") for _, a in page.elements]
    assert {target[1:] for target in targets if target} <= set(ids)


def test_nothing_is_fetched(any_page):
    page = Page(any_page)
    assert not {"img", "link", "iframe", "object", "embed", "base"} & {n for n, _ in page.elements}
    assert all("src" not in attributes for _, attributes in page.elements)
    assert not re.search(r"@import|url\((?!#)", any_page)


def test_the_only_script_is_the_one_that_the_policy_allows(any_page):
    (script,) = re.findall(r"<script>(.*?)</script>", any_page, re.DOTALL)
    policy = next(
        meta["content"]
        for meta in Page(any_page).all("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'")
    assert f"script-src '{script_hash(script)}'" in policy
    assert any_page.count("<script") == 1
    assert not any(name.startswith("on") for _, a in Page(any_page).elements for name in a)


def test_hostile_text_is_shown_as_text(hostile_page):
    text = "".join(Page(hostile_page).text)
    assert "<script>document.title='owned'</script></style></script></pre>{{ 7*7 }}" in text
    assert "49" not in re.findall(r"\{\{? ?(\d+)", text)


def test_invisible_characters_are_written_out(hostile_page):
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", hostile_page)
    assert "\\x1b[2J" in hostile_page
    assert "\\u202edoohskcab\\u2066" in hostile_page


def test_hostile_text_stays_out_of_script_and_style(hostile_page):
    for element in re.findall(r"<(?:script|style)>.*?</(?:script|style)>", hostile_page, re.DOTALL):
        assert "owned" not in element


def test_colors_are_those_of_the_page(page):
    svgs = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(svgs) >= 9
    for svg in svgs:
        assert set(re.findall(r"(?:fill|stroke): ([^;\"]+)", svg)) <= {
            "none", "var(--ink)", "var(--line)", "var(--first)", "var(--second)"
        }  # fmt: skip
        assert "font-family" not in svg
        assert "<style" not in svg
    assert "prefers-color-scheme: dark" in page


def test_every_section_is_there(page):
    page = Page(page)
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert {
        "summary", "diagnosis", "comparison", "time", "rows", "ends", "failures", "batches",
        "runs", "provenance", "chart-throughput", "chart-occupancy", "chart-prefix-cache",
        "chart-num-prompt-tokens", "chart-latency-s", "chart-runs",
    } <= ids  # fmt: skip


def test_a_report_of_nothing_is_a_page(place, tmp_path):
    place.write([])
    place.run()
    text = render_html(place.report())
    assert Page(text).problems == []
    assert "<svg" not in text


def test_the_file_is_replaced_as_a_whole(two_nights_report, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    write_html(two_nights_report, path)
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert [item.name for item in tmp_path.iterdir()] == ["report.html"]
