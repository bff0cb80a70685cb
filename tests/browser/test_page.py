"""The report's page in a real browser: charts, sorting, themes, small screens, and no requests or foreign scripts."""

import re
from pathlib import Path
from typing import Any

import pytest
from sample_reports import HEADS, HOSTILE, build_sample_report

GROUND = "getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(251, 250, 247)", "rgb(21, 24, 28)"
# Width and height of every chart that is shown, and whether it stays inside its figure or scrolls in its box.
SIZES = """() => [...document.querySelectorAll("figure")].filter(figure => !figure.closest("[hidden]")).map(figure => {
    const box = figure.querySelector(".drawing svg")?.getBoundingClientRect();
    const room = figure.getBoundingClientRect(), chart = figure.querySelector(".chart");
    const inside = room.left <= box?.left + 1 && box?.right <= room.right + 1;
    const scrolls = getComputedStyle(chart).overflowX === "auto" && chart.scrollWidth > chart.clientWidth;
    return box ? [box.width, box.height, inside || scrolls] : null;
})"""
# Text in charts that extends beyond the edge of its picture.
CUT = """() => [...document.querySelectorAll(".drawing svg")].flatMap(svg => {
    const room = svg.getBoundingClientRect();
    const outside = box => box.width > 0 && (box.left < room.left - 2 || box.right > room.right + 2);
    return [...svg.querySelectorAll("text")].filter(text => outside(text.getBoundingClientRect()))
        .map(text => text.textContent);
})"""
COLUMN = """place => [...document.querySelector("#scores ~ .scroll tbody").rows]
    .map(row => row.cells[place].innerText.trim())"""
SORTED = (
    """[...document.querySelectorAll("#scores ~ .scroll thead th")].map(heading => heading.getAttribute("aria-sort"))"""
)
WORDS = (
    "[...new Set([...document.querySelectorAll('#gains ~ figure svg text')].map(text => getComputedStyle(text).fill))]"
)


HIDDEN = 2  # maps that are not picked


def as_number(shown: str) -> float:
    return float(shown.replace(",", "").replace("−", "-"))


def heading(page: Any, text: str) -> Any:
    return page.locator("#scores ~ .scroll .sort", has_text=text)


def test_every_chart_is_drawn_and_nothing_but_the_page_is_requested(light: Any) -> None:
    charts = [block for block in build_sample_report().blocks() if block.picture is not None]
    sizes = light.page.evaluate(SIZES)
    assert len(sizes) == len(charts) - HIDDEN > 10
    assert all(size and size[0] > 100 and size[1] > 50 and size[2] for size in sizes)
    assert light.page.evaluate(CUT) == []
    assert light.page.locator(".instead:visible").count() == 0
    assert {address for address in light.requests if not address.startswith("data:")} == {light.address}
    assert not light.problems


def test_a_click_sorts_numbers_as_numbers_and_puts_missing_values_last(light: Any) -> None:
    for direction, down in (("ascending", False), ("descending", True)):
        heading(light.page, "F1").click()
        shown = light.page.evaluate(COLUMN, 4)
        numbers = [as_number(cell) for cell in shown if cell != "–"]
        assert numbers == sorted(numbers, reverse=down) and shown[-1] == "–" and len(numbers) == 7
        assert light.page.evaluate(SORTED) == [None] * 4 + [direction] + [None] * 2
    heading(light.page, "parameters").click()
    numbers = [as_number(cell) for cell in light.page.evaluate(COLUMN, 1)]
    assert numbers == sorted(numbers) and numbers[-1] == 22_715_010
    assert light.page.evaluate(SORTED) == [None, "ascending"] + [None] * 5


@pytest.mark.parametrize(("key", "text", "place"), [("Enter", "model", 0), ("Space", "chosen", 6)])
def test_the_keyboard_sorts(light: Any, key: str, text: str, place: int) -> None:
    heading(light.page, text).focus()
    light.page.keyboard.press(key)
    names = light.page.evaluate(COLUMN, place)
    if place == 0:  # digits in names are sorted as numbers: adapter_64 before adapter_386
        assert names == ["adapter_64", "adapter_386_skip", "average_pooling", "baseline", "encoder alone",
                         "ladder_64", "last_linear", "learned_pooling"]  # fmt: skip
    else:
        assert names == ["no"] * (len(HEADS) + 1) + ["yes"]
    assert light.page.evaluate(SORTED)[place] == "ascending"


def test_the_button_switches_page_and_charts_to_dark_and_back(light: Any) -> None:
    looks = {}
    for theme in ("dark", "light"):
        light.page.locator("#page-theme").click()
        light.wait_drawn(theme)
        looks[theme] = (light.page.evaluate(GROUND), set(light.page.evaluate(WORDS)))
    assert (looks["light"][0], looks["dark"][0]) == (LIGHT, DARK)
    assert looks["light"][1] and not looks["light"][1] & looks["dark"][1]
    assert all(light.page.evaluate(SIZES)) and not light.problems


def test_after_fast_switching_the_last_theme_is_shown_and_every_chart_is_drawn_once(open_page: Any, pages: Any) -> None:
    opened = open_page(pages[1])
    for _ in range(5):
        opened.page.locator("#page-theme").click()
    opened.wait_drawn("dark")
    counts = opened.page.evaluate(
        "[...document.querySelectorAll('.drawing')].map(d => d.querySelectorAll('svg').length)"
    )
    assert set(counts) == {1} and opened.page.evaluate(GROUND) == DARK and not opened.problems


def test_the_page_follows_the_systems_theme_even_when_it_changes(open_page: Any, pages: Any) -> None:
    opened = open_page(pages[1], "dark")
    assert opened.page.evaluate(GROUND) == DARK
    dark = set(opened.page.evaluate(WORDS))
    opened.page.emulate_media(color_scheme="light")
    opened.wait_drawn("light")
    assert opened.page.evaluate(GROUND) == LIGHT and not dark & set(opened.page.evaluate(WORDS))


def test_on_a_phone_nothing_is_wider_than_the_window(phone: Any) -> None:
    phone.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= phone.page.evaluate("innerWidth") == 360
    assert all(size and size[0] > 100 and size[2] for size in phone.page.evaluate(SIZES))
    assert phone.page.evaluate(CUT) == []
    assert phone.page.evaluate("""[...document.querySelectorAll(".scroll")].every(box => {
        const edge = box.getBoundingClientRect(); return edge.left >= 0 && edge.right <= innerWidth; })""")
    assert phone.page.evaluate(GROUND) == DARK and not phone.problems


def test_charts_stay_inside_the_window_when_it_is_resized(open_page: Any, pages: Any) -> None:
    page = open_page(pages[1]).page
    for width in (360, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"() => ({SIZES})().every(size => size && size[2])")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


PICKED = """() => [document.querySelector(".panel:not([hidden]) h3").id,
    document.querySelector(".panel:not([hidden]) > p").textContent.trim(),
    document.querySelector(".panel:not([hidden]) .chart").dataset.state,
    document.querySelector(".picked select").value]"""


def wait_picked(page: Any, key: str) -> list[str]:
    """Waits until the map of an example is drawn; returns its sentence, and what is said of it aloud."""
    page.wait_for_function(f"""() => document.querySelector("#{key}").closest(".panel").querySelector("svg")""")
    shown, sentence, state, value = page.evaluate(PICKED)
    assert (shown, state, value) == (key, "drawn", key) and page.locator(".panel:visible").count() == 1
    return [sentence, page.locator(".picker [role=status]").text_content()]


def test_an_example_is_picked_from_the_list_by_mouse_and_by_keyboard(open_page: Any, pages: Any) -> None:
    opened = open_page(pages[0])
    page, select = opened.page, opened.page.locator(".picked select")
    assert wait_picked(page, "map_1")[0].endswith("answers “an army 1”.")
    assert page.locator(".outcome").inner_text() == "Both are right · 1 of 3"
    picture = page.locator(".panel:visible svg").inner_html()
    select.select_option("map_2")
    sentence, aloud = wait_picked(page, "map_2")
    assert sentence.endswith("answers “an army 2”.") and aloud == f"Both are right · 2 of 3. {sentence}"
    assert page.locator(".panel:visible svg").inner_html() != picture
    select.focus()
    page.keyboard.press("ArrowDown")
    assert "an army 3" in wait_picked(page, "map_3")[0] and page.locator("img").count() == 0
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the button for the next one, which is the first again
    assert page.evaluate("document.activeElement.ariaLabel") == "Next example"
    wait_picked(page, "map_1")
    page.get_by_label("Previous example").click()
    wait_picked(page, "map_3")
    page.locator("#page-theme").click()
    opened.wait_drawn("dark")
    page.get_by_label("Next example").click()
    wait_picked(page, "map_1")
    assert not opened.problems and page.evaluate("window.harmed") is None


def test_a_link_to_an_example_shows_it(open_page: Any, pages: Any) -> None:
    page = open_page(pages[0]).page
    page.evaluate("location.hash = 'map_2'")
    wait_picked(page, "map_2")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1600, 1000)])
def test_the_finding_and_the_map_are_on_the_first_screen(open_page: Any, pages: Any, width: int, height: int) -> None:
    page = open_page(pages[0], width=width).page
    page.set_viewport_size({"width": width, "height": height})
    size = float(page.evaluate("parseFloat(getComputedStyle(document.querySelector('.finding')).fontSize)"))
    finding, map = (page.locator(part).first.bounding_box() for part in (".finding", ".panel .chart"))
    assert size >= 24 and finding["y"] + finding["height"] < map["y"] and map["y"] + map["height"] <= height


# For each visible table: how wide it is, its box and the page, whether the box scrolls, and whether a hint says so.
TABLES = """() => [...document.querySelectorAll(".scroll")].filter(box => box.offsetParent).map(box => ({
    table: box.firstElementChild.getBoundingClientRect().width, box: box.clientWidth,
    right: box.getBoundingClientRect().right, scrolls: getComputedStyle(box).overflowX === "auto",
    hint: !box.previousElementSibling.hidden && box.previousElementSibling.matches(".hint")}))"""


@pytest.mark.parametrize("width", [390, 1280, 1600])
def test_a_table_takes_the_room_there_is_and_a_hint_says_where_it_scrolls(
    open_page: Any, pages: Any, width: int
) -> None:
    page = open_page(pages[0], width=width).page
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.wait_for_timeout(100)  # details report that they are open a little later
    tables = page.evaluate(TABLES)
    assert len(tables) > 4 and all(one["scrolls"] and one["right"] <= width for one in tables)
    assert [one["hint"] for one in tables] == [one["table"] > one["box"] + 1 for one in tables]
    wide = max(tables, key=lambda one: one["table"])
    assert wide["hint"] == (width < 1600) and wide["table"] > 1000
    assert wide["box"] > {390: 340, 1280: 950, 1600: 1000}[width]


def test_a_wide_table_can_be_scrolled_to_its_last_column(open_page: Any, pages: Any) -> None:
    page = open_page(pages[0], width=390).page
    assert page.locator("#scores ~ .hint").is_visible()
    page.locator("#scores ~ .scroll").focus()
    page.keyboard.press("End")
    page.evaluate("document.querySelector('#scores ~ .scroll').scrollLeft = 10_000")
    last = page.locator("#scores ~ .scroll tbody tr").first.locator("td").last.bounding_box()
    assert last["x"] + last["width"] <= 390
    assert page.locator(".panel .hint:visible").count() == 1, "the map is wider than a phone"


def test_hostile_text_is_shown_and_not_executed(light: Any) -> None:
    assert " ".join(HOSTILE.split()) in " ".join(light.page.locator("#labels").inner_text().split())
    assert light.page.locator("img, body b").count() == 0
    assert "&lt;/script&gt;" in light.page.locator("#cost ~ figure svg").inner_html()
    light.page.locator("#cost ~ figure svg .mark-symbol.role-mark path").last.hover()
    light.page.wait_for_selector("#vg-tooltip-element.visible")
    assert "onerror=" in light.page.locator("#vg-tooltip-element").inner_text()
    assert light.page.locator("img").count() == 0
    assert light.page.evaluate("window.harmed") is None


def test_a_script_that_is_not_part_of_the_report_does_not_run(open_page: Any, pages: Any, tmp_path: Path) -> None:
    forged = tmp_path / "forged.html"
    text = pages[1].read_text(encoding="utf-8")
    forged.write_text(text.replace("</main>", "<script>window.harmed = true</script></main>"), encoding="utf-8")
    opened = open_page(forged)
    assert opened.page.evaluate("window.harmed") is None
    assert [problem for problem in opened.problems if "Content Security Policy" in problem]


def test_a_folded_table_and_its_long_texts_open_by_keyboard(light: Any) -> None:
    table = light.page.locator("#disagreements ~ details table")
    assert not table.is_visible()
    light.page.locator("#disagreements ~ details summary").focus()
    light.page.keyboard.press("Enter")
    assert table.is_visible() and table.locator("tbody tr").count() == 300

    text, button = table.locator(".long").first, table.locator(".more").first
    short = text.bounding_box()["height"]
    button.focus()
    light.page.keyboard.press("Enter")
    assert text.bounding_box()["height"] > 2 * short and button.get_attribute("aria-expanded") == "true"


def test_the_first_tab_stop_skips_to_the_report_and_focus_is_visible(open_page: Any, pages: Any) -> None:
    page = open_page(pages[1]).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.locator(".skip").bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "page-main"


def test_the_copy_button_selects_all_settings(light: Any) -> None:
    light.page.locator("#page-settings ~ details summary").click()
    light.page.locator("#page-copy").click()
    assert light.page.evaluate("getSelection().toString()").strip() == build_sample_report().settings.strip()
    assert light.page.locator("#page-copied").inner_text()


def test_a_chart_that_cannot_be_drawn_shows_its_description_and_file(
    open_page: Any, pages: Any, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.html"
    text = pages[1].read_text(encoding="utf-8")
    spec = re.search(r'<script type="application/json" class="spec">(.*?)</script>', text)
    assert spec
    broken.write_text(text.replace(spec[1], '{"mark":"no such mark"}', 1), encoding="utf-8")
    page = open_page(broken).page
    instead = page.locator(".instead:visible")
    assert instead.count() == 1 and page.locator(".chart:visible").count() == 1
    assert "with 95\xa0% intervals" in instead.inner_text()
    assert instead.locator("a").get_attribute("href") == "report/gains.svg"


def test_without_scripts_tables_and_links_to_pictures_are_shown(browser: Any, pages: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages[0].as_uri())
    charts = [block for block in build_sample_report().blocks() if block.picture is not None]
    assert page.locator(".instead:visible").count() == len(charts)
    assert page.locator(".panel:visible").count() == HIDDEN + 1 and not page.locator(".picker").is_visible()
    titles = page.locator(".panel > h3")
    assert min(titles.nth(number).bounding_box()["width"] for number in range(titles.count())) > 100
    assert page.locator("#scores ~ .scroll table").is_visible() and not page.locator("#page-theme").is_visible()
    context.close()


def test_landmarks_labels_ids_and_heading_levels_are_accessible(light: Any) -> None:
    page = light.page
    assert [page.locator(part).count() for part in ("h1", "main", "header", "nav[aria-label]", "footer")] == [1] * 5
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate("[...document.querySelectorAll('.scroll table')].every(one => one.caption.textContent.trim())")
    assert page.evaluate("[...document.querySelectorAll('[role=img]')].every(one => one.ariaLabel.trim())")
    assert page.locator("figure [role=img]").count() == page.locator("figure").count()
    assert page.evaluate("[...document.querySelectorAll('select')].every(one => one.labels[0].textContent.trim())")
    assert page.evaluate("""[...document.querySelectorAll("button, a, summary")].every(
        one => (one.ariaLabel || one.textContent).trim())""")
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))
    named = "[...document.querySelectorAll('[aria-labelledby]')].map(one => one.getAttribute('aria-labelledby'))"
    links = "[...document.querySelectorAll('a[href^=\"#\"]')].map(one => one.hash.slice(1))"
    assert set(page.evaluate(named)) | set(page.evaluate(links)) <= set(ids)
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map(one => +one.tagName[1])")
    assert levels[0] == 1 and all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))


def test_printing_hides_the_controls_and_shows_whole_tables(light: Any) -> None:
    light.page.emulate_media(media="print")
    assert not light.page.locator("#page-theme").is_visible() and not light.page.locator("nav").is_visible()
    assert light.page.locator("#scores ~ .scroll table").is_visible()
    assert light.page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflow") == "visible"
    light.page.emulate_media(media="screen")
