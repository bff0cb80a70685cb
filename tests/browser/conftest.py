"""Open report pages in a real browser; the tests are skipped if there is none."""

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_reports import build_sample_report

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-quic",
]  # fmt: skip


@dataclasses.dataclass
class Opened:
    """An open page, with its requests, errors and warnings."""

    page: Any
    address: str
    requests: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    """Errors and warnings."""
    messages: list[str] = dataclasses.field(default_factory=list)
    """All console messages."""

    def wait_drawn(self, theme: str) -> None:
        self.page.wait_for_function(f"() => document.documentElement.dataset.drawn === '{theme}'")

    def record(self, message: Any) -> None:
        self.messages.append(message.text)
        if message.type in ("error", "warning"):
            self.problems.append(message.text)


Opener = Callable[..., Opened]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The page of the sample report, and a short page with only its scores."""
    pytest.importorskip("altair", reason="the report extra is not installed")
    pytest.importorskip("vl_convert", reason="the report extra is not installed")
    from bertvision.report.page import render_page

    folder, report = tmp_path_factory.mktemp("page"), build_sample_report()
    (folder / "report.html").write_text(render_page(report), encoding="utf-8")
    short = dataclasses.replace(report, sections=report.sections[1:2])
    (folder / "short.html").write_text(render_page(short), encoding="utf-8")
    return folder / "report.html", folder / "short.html"


@pytest.fixture(scope="session")
def open_page(browser: Any) -> Iterator[Opener]:
    """open_page(file, theme, width) → the page opened from its file, with all charts drawn."""
    contexts = []

    def open_it(file: Path, theme: str = "light", width: int = 1280) -> Opened:
        context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
        contexts.append(context)
        context.set_default_timeout(60_000)
        opened = Opened(context.new_page(), file.as_uri())
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.on("pageerror", lambda error: opened.problems.append(str(error)))
        opened.page.on("console", opened.record)
        opened.page.goto(opened.address)
        opened.wait_drawn(theme)
        return opened

    yield open_it
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def light(open_page: Opener, pages: tuple[Path, Path]) -> Opened:
    """The whole report in the light theme at desktop width. Shared: tests must restore theme and width."""
    return open_page(pages[0])


@pytest.fixture(scope="session")
def phone(open_page: Opener, pages: tuple[Path, Path]) -> Opened:
    """The whole report in the dark theme, 360 pixels wide."""
    return open_page(pages[0], "dark", 360)
