"""The style of charts: a light and a dark theme, and SVG and PNG files in the light one."""

import contextlib
import copy
import os
import re
from pathlib import Path
from typing import Any

from bertvision.disk import write_text
from bertvision.errors import UserError
from bertvision.tables import plain

CLIP = re.compile(r"\bclip\d+\b")
FILE_WIDTH = 640
"""Width in pixels of a chart that leaves it to the page."""
PNG_SCALE = 2.0
PAGE_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
FILE_FONT = "Helvetica, Arial, sans-serif"  # what the converter can measure

LIGHT = {
    "ink": "#24292f",
    "muted": "#57606a",
    "line": "#e4e2dc",
    # At least 3:1 against the page, and distinct for readers who cannot tell red from green.
    "category": ["#1f66ad", "#cc6315", "#14a278", "#71365c", "#5d500d", "#8347d7", "#db3f46", "#667a81"],
    "ramp": ["#edf3f9", "#c3d9ee", "#8db8dd", "#5592c6", "#2a6cab", "#114a85", "#062c57"],
    "diverging": ["#a34307", "#dd8a4e", "#f3cfb0", "#f2f1ee", "#b5d1ea", "#5f98cb", "#16589a"],
}  # fmt: skip
DARK = {
    "ink": "#e6e8eb",
    "muted": "#a3adb8",
    "line": "#343b44",
    "category": ["#6fb1f0", "#f5a972", "#cbebe4", "#cd379d", "#ecd34d", "#8371ee", "#ee3558", "#9cadb2"],
    "ramp": LIGHT["ramp"],
    "diverging": ["#ffb98a", "#d9772f", "#7d4a26", "#2b3037", "#2c5580", "#5b9bdb", "#b3d6fa"],
}  # fmt: skip


def build_theme(colours: dict[str, Any], font: str, background: str) -> dict[str, Any]:
    """A Vega-Lite config: everything that a chart does not set itself."""
    ink, muted, line = colours["ink"], colours["muted"], colours["line"]
    first = colours["category"][0]
    words = {"labelColor": muted, "titleColor": ink, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500}
    return {
        "background": background,
        "font": font,
        "padding": 4,
        "view": {"stroke": None, "continuousHeight": 280, "discreteHeight": 280},
        "axis": {
            **words,
            "gridColor": line,
            "domainColor": muted,
            "domainOpacity": 0.5,
            "tickColor": muted,
            "tickOpacity": 0.5,
            "labelPadding": 6,
            "titlePadding": 10,
            "labelLimit": 220,
        },
        "axisXQuantitative": {"labelFlush": False, "tickCount": {"expr": "clamp(width / 80, 2, 8)"}},
        "legend": {
            **words,
            "labelLimit": 200,
            "titlePadding": 8,
            "rowPadding": 4,
            "symbolSize": 90,
            "symbolBaseFillColor": muted,
            "symbolBaseStrokeColor": muted,
        },
        "header": words,
        "title": {"color": ink, "subtitleColor": muted, "fontSize": 14, "fontWeight": 600, "anchor": "start"},
        "range": {
            "category": colours["category"],
            "ramp": colours["ramp"],
            "ordinal": colours["ramp"][1:],
            "heatmap": colours["ramp"],
            "diverging": colours["diverging"],
        },
        "mark": {"color": first},
        "bar": {"cornerRadiusEnd": 2},
        "line": {"strokeWidth": 2.25},
        "point": {"filled": True, "size": 64, "opacity": 0.9},
        "rule": {"color": ink},
        "text": {"color": ink, "fontSize": 12},
    }


def page_themes() -> dict[str, Any]:
    """The configs for a light and a dark page, with a transparent background."""
    return {
        "light": build_theme(LIGHT, PAGE_FONT, "transparent"),
        "dark": build_theme(DARK, PAGE_FONT, "transparent"),
    }


def chart_spec(picture: dict[str, Any]) -> dict[str, Any]:
    """A chart as the report stores it: no NaN, no URLs, no characters that Vega can't read, and its size left to the
    theme unless it sets one."""
    spec: dict[str, Any] = _readable(plain(copy.deepcopy(picture)))
    spec.pop("$schema", None)
    spec.pop("usermeta", None)
    view = spec.get("config", {}).get("view", {})
    # altair writes these defaults into every chart.
    for name in ("continuousWidth", "continuousHeight"):
        if view.get(name) == 300:
            del view[name]
    _dress_axes(spec)
    return spec


def _readable(value: Any) -> Any:
    """The same values with spaces for line and paragraph separators: texts become part of Vega's expressions, which
    can't have them."""
    if isinstance(value, str):
        return value.replace("\u2028", " ").replace("\u2029", " ")
    if isinstance(value, dict):
        return {_readable(key): _readable(inner) for key, inner in value.items()}
    return [_readable(inner) for inner in value] if isinstance(value, list) else value


def _dress_axes(part: Any) -> None:
    """Settings of axes that a theme cannot make, since they depend on the values; those of the chart win."""
    if isinstance(part, list):
        for inner in part:
            _dress_axes(inner)
    elif isinstance(part, dict):
        for name, channel in part.get("encoding", {}).items():
            if name in ("x", "y") and isinstance(channel.get("axis", {}), dict):
                channel["axis"] = _axis_of(name, channel) | channel.get("axis", {})
        for name in ("layer", "hconcat", "vconcat", "concat", "spec"):
            _dress_axes(part.get(name))


def _axis_of(name: str, channel: dict[str, Any]) -> dict[str, Any]:
    if name == "x" and channel.get("type") == "ordinal":
        return {"labelAngle": 0}  # layers and seeds are short; Vega-Lite would rotate them
    if (channel.get("scale") or {}).get("type") == "log":
        tens = "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 1e-6"
        return {"gridOpacity": {"condition": {"test": tens, "value": 1}, "value": 0}}
    return {}


def is_single(spec: dict[str, Any]) -> bool:
    """Whether it is one plot, not several side by side: only then can its width be set."""
    return ("mark" in spec or "layer" in spec) and not {"row", "column", "facet"} & set(spec.get("encoding", {}))


def draw_svg(picture: dict[str, Any]) -> str:
    """The chart in light colours on white, as SVG text."""
    spec = chart_spec(picture)
    if is_single(spec) and spec.get("width", "container") == "container":
        spec["width"] = FILE_WIDTH
        spec.setdefault("autosize", {"type": "fit-x", "contains": "padding"})
    theme = build_theme(LIGHT, FILE_FONT, "#ffffff")
    svg: str = converter().vegalite_to_svg(spec, config=theme, allowed_base_urls=[])
    # The converter numbers clips over all charts of a process; the same chart must give the same text.
    numbers = {name: f"clip{number}" for number, name in enumerate(dict.fromkeys(CLIP.findall(svg)), start=1)}
    return CLIP.sub(lambda found: numbers[found.group()], svg)


def svg_to_png(svg: str) -> bytes:
    pixels: bytes = converter().svg_to_png(svg, scale=PNG_SCALE)
    return pixels


def plotting_bundle() -> str:
    """The complete JavaScript that draws charts in a page, so that nothing is fetched. Building it takes seconds, so it
    is cached per user and version of vl-convert."""
    vl_convert = converter()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bertvision"
    path = cache / f"vega-{vl_convert.__version__}.js"
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")
    bundle: str = vl_convert.javascript_bundle()
    with contextlib.suppress(UserError):  # without a cache it is built again
        write_text(path, bundle)
    return bundle


def converter() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise UserError("a report's pictures need altair and vl-convert: pip install 'bertvision[report]'.") from None
    return vl_convert
