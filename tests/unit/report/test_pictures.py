"""Charts in the report's looks: colours that can be told from the ground, and specs that ask for nothing."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertvision.report.page
from bertvision.report import pictures
from bertvision.report.pictures import DARK, LIGHT, chart_spec, draw_svg


def luminance(colour: str) -> float:
    """Relative luminance after WCAG 2."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


# How colours look to people who lack one kind of cone: matrices on linear RGB (Machado, Oliveira and Fernandes 2009).
SIGHT = {
    "all": np.eye(3),
    "no red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "no green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "no blue": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
TO_XYZ = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])
WHITE = np.array([0.9505, 1.0, 1.0888])


def to_lab(colour: str, sight: str) -> np.ndarray:
    """CIE L*a*b*, in which a step of 2 or 3 can just be seen."""
    parts = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)  # (channel,)
    share = TO_XYZ @ np.clip(SIGHT[sight] @ linear, 0, 1) / WHITE  # (coordinate,)
    root = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)  # (coordinate,)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def page_colours(theme: str) -> dict[str, str]:
    """The custom properties of page.css, of the light root or of the dark one."""
    style = (Path(bertvision.report.page.__file__).parent / "page.css").read_text(encoding="utf-8")
    start = ':root[data-theme="dark"] {' if theme == "dark" else ":root {"
    rule = style[style.index(start) :].partition("}")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", rule))


@pytest.mark.parametrize(("theme", "chart"), [("light", LIGHT), ("dark", DARK)])
def test_words_and_marks_stand_out_from_their_ground(theme: str, chart: dict[str, Any]) -> None:
    page = page_colours(theme)
    for ground in (page["page"], page["card"]):
        words = [page["ink"], page["muted"], page["accent"], chart["ink"], chart["muted"]]
        assert min(contrast(colour, ground) for colour in words) >= 4.5
        assert min(contrast(colour, ground) for colour in chart["category"]) >= 3


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("chart", [LIGHT, DARK])
def test_any_two_colours_of_marks_can_be_told_apart(chart: dict[str, Any], sight: str) -> None:
    labs = [to_lab(colour, sight) for colour in chart["category"]]
    assert len(labs) == 8
    assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(labs, 2)) > 15


def test_the_system_s_dark_and_the_button_s_dark_are_one() -> None:
    style = (Path(bertvision.report.page.__file__).parent / "page.css").read_text(encoding="utf-8")
    chosen = style[style.index(':root[data-theme="dark"] {') :].partition("}")[0].partition("{")[2]
    system = style[style.index(":root:not([data-theme]) {") :].partition("}")[0].partition("{")[2]
    assert chosen.split() == system.split()


def test_a_spec_loses_addresses_and_altair_s_default_size_and_keeps_the_rest() -> None:
    given = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "usermeta": {"embedOptions": {"loader": {}}},
        "config": {"view": {"continuousWidth": 300, "continuousHeight": 300, "stroke": "red"}},
        "data": {"values": [{"a": float("nan")}]},
        "mark": "bar",
    }
    kept = {"config": {"view": {"stroke": "red"}}, "data": {"values": [{"a": None}]}, "mark": "bar"}
    assert chart_spec(given) == kept
    assert "$schema" in given


@pytest.mark.parametrize(("width", "drawn"), [(None, 640), ("container", 640), (200, None)])
def test_a_chart_that_leaves_its_width_to_the_page_gets_one_in_a_file(width: Any, drawn: int | None) -> None:
    pytest.importorskip("vl_convert", reason="the report extra is not installed")
    encoding = {"x": {"field": "a", "type": "quantitative"}, "y": {"field": "b", "type": "nominal"}}
    spec = {"data": {"values": [{"a": 1, "b": "x"}]}, "mark": "bar", "encoding": encoding}
    svg = draw_svg(spec | ({} if width is None else {"width": width}))
    found = re.search(r'width="(\d+)"', svg)
    assert found and (int(found[1]) == drawn if drawn else 200 < int(found[1]) < 300)


def test_the_bundle_is_made_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = pictures.plotting_bundle()
    (kept,) = (tmp_path / "bertvision").iterdir()
    assert "vega" in made and kept.read_text(encoding="utf-8") == made
    kept.write_text("kept", encoding="utf-8")
    assert pictures.plotting_bundle() == "kept"


def test_without_a_place_for_it_the_bundle_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "vega" in pictures.plotting_bundle()


def test_the_same_chart_gives_the_same_text_however_many_were_drawn_before() -> None:
    bars = {
        "data": {"values": [{"name": "a", "size": 3}, {"name": "b", "size": 5}]},
        "mark": {"type": "bar", "cornerRadiusEnd": 2, "clip": True},
        "encoding": {"x": {"field": "name", "type": "nominal"}, "y": {"field": "size", "type": "quantitative"}},
    }
    first, second = draw_svg(bars), draw_svg(bars)
    assert 'id="clip1"' in first and first == second
