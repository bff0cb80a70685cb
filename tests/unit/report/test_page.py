"""The page as text: escaped, whole in one file, and asking for nothing."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from sample_reports import HOSTILE, build_sample_report

from bertvision.report.block import Block, Report, Section
from bertvision.report.page import inline_script, render_page, script_json, to_words

FETCHED = {"src", "srcset", "data", "poster", "action", "background", "xlink:href"}


class Reader(HTMLParser):
    """Every tag with its attributes, and the text of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))
        self.inside = tag

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            kind, before = self.scripts[-1]
            self.scripts[-1] = (kind, before + data)
        else:
            self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


@pytest.fixture(scope="module")
def report() -> Report:
    pytest.importorskip("altair", reason="the report extra is not installed")
    pytest.importorskip("vl_convert", reason="the report extra is not installed")
    return build_sample_report()


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return render_page(report)


@pytest.fixture(scope="module")
def read(page: str) -> Reader:
    return Reader(page)


def test_hostile_text_makes_no_element(read: Reader) -> None:
    assert not [tag for tag, _ in read.tags if tag in ("img", "b", "iframe", "object", "embed")]
    assert not [name for _, given in read.tags for name in given if name.startswith("on")]
    assert any("onerror=" in words for words in read.words)


def test_every_chart_s_spec_is_json_that_kept_its_text(report: Report, read: Reader) -> None:
    specs = [json.loads(text) for kind, text in read.scripts if kind == "application/json"]
    charts = [spec for spec in specs if "light" not in spec]
    assert len(charts) == sum(block.picture is not None for block in report.blocks())
    # Vega can't read a line separator in its expressions.
    assert any(json.dumps(HOSTILE.replace("\u2028", " ")) in json.dumps(spec) for spec in charts)
    assert not any("$schema" in spec or "usermeta" in spec for spec in charts)


def test_the_first_example_is_shown_and_the_others_can_be_picked(page: str, read: Reader) -> None:
    panels = [given for tag, given in read.tags if given.get("class") == "panel"]
    assert ["hidden" in given for given in panels] == [False, True, True]
    groups = [given["label"] for tag, given in read.tags if tag == "optgroup"]
    options = [given["value"] for tag, given in read.tags if tag == "option"]
    assert groups == ["Both are right", "Both are wrong"] and options == ["map_1", "map_2", "map_3"]
    assert '<mark class="both">an army 1</mark>' in page


def test_numbers_are_not_torn_apart() -> None:
    assert (
        to_words("-1 (95 % of it, p = 0.3; p < 0.001) up = 1")
        == "−1 (95\xa0% of it, p\xa0=\xa00.3; p\xa0<\xa00.001) up = 1"
    )


def test_people_read_a_true_minus_sign(page: str) -> None:
    for shown in ("Strongest in map 1, by −2.5.", 'aria-label="Map 1: the answer stands out by −1.5."'):
        assert shown in page


def test_json_in_a_script_tag_can_neither_end_it_nor_change() -> None:
    text = script_json({"a": HOSTILE, "b": float("nan")})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": HOSTILE, "b": None}


def test_code_in_a_script_tag_can_not_end_it() -> None:
    code = inline_script('a = "</script>"; b = "</SCRIPT"; c = "<!--"; d = 1 </2/.length')
    assert "</script" not in code.lower() and "<!--" not in code and "1 </2/" in code


def test_the_plotting_code_is_there_once_and_only_with_charts(page: str) -> None:
    scripts = [text for kind, text in Reader(page).scripts if kind is None]
    assert len(scripts) == 2
    assert [len(text) > 300_000 for text in scripts] == [False, True]
    words = render_page(Report("Words", [], ["No chart."], [Section("One", [Block("a", "A")])]))
    assert len(words) < 60_000


def test_nothing_is_fetched_from_anywhere(page: str, read: Reader) -> None:
    for tag, given in read.tags:
        assert not FETCHED & set(given), (tag, given)
        assert tag != "link" or given["href"] == "data:,"
        assert tag != "a" or re.match(r"(#|report/)", given["href"] or "")
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style and "url(" not in style[1] and "@import" not in style[1]


def test_the_policy_allows_these_scripts_and_no_address(read: Reader) -> None:
    policy = next(given["content"] for tag, given in read.tags if given.get("http-equiv")) or ""
    for kind, text in read.scripts:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert (f"'sha256-{digest}'" in policy) == (kind is None)
    assert "default-src 'none'" in policy and "http" not in policy and "unsafe-eval" not in policy


def test_the_page_stays_small(page: str) -> None:
    assert len(page.encode()) < 2_500_000
