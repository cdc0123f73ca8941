"""The report in a real browser: on a desk, on a phone, in the dark and on paper."""

import shutil
from functools import cache

import pytest

from driftproof.report.page import write_report
from test_analyze_scenes import draw_page
from test_report import make_results

DESK, PHONE = (1280, 900), (390, 844)
SIZES = pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
QUIET = ["--no-sandbox", *(f"--disable-{name}" for name in ("background-networking", "gpu", "quic", "sync"))]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTHS = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
CUT_OFF = """
[...document.querySelectorAll(".chart svg")].flatMap(svg => {
    const box = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].filter(text => {
        const at = text.getBoundingClientRect();
        return text.checkVisibility() && at.width && (at.left < box.left - 1 || at.right > box.right + 1
            || at.top < box.top - 1 || at.bottom > box.bottom + 1);
    }).map(text => `${svg.closest(".chart").id}: ${text.textContent}`);
})
"""
COLORS = "(({color, backgroundColor}) => [color, backgroundColor])(getComputedStyle(document.body))"
AXIS = "getComputedStyle(document.querySelector('#headline-0 .role-axis-label text')).fill"


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright to drive Chromium")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("needs Chromium, and there is none here")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def visit(browser, tmp_path_factory):
    """Opens pages in windows of many kinds, offline, and lists whatever went wrong meanwhile."""
    folder = tmp_path_factory.mktemp("browser")
    pages = {
        "report": write_report(make_results(folder / "results"), folder / "page.html"),
        "scenes": draw_page(folder / "scenes"),
    }
    problems = []

    @cache
    def opened(name, size, **settings):
        viewport = dict(zip(("width", "height"), size, strict=True))
        page = browser.new_context(viewport=viewport, offline=True, **settings).new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("requestfailed", lambda request: problems.append(request.url))
        page.goto(pages[name].as_uri())
        if name == "report":
            page.wait_for_selector("body[data-drawn]", state="attached")
        return page

    opened.problems = problems
    yield opened
    assert problems == []


@SIZES
@pytest.mark.parametrize("name", ["report", "scenes"])
def test_page_fits_the_window(visit, name, size):
    scrolled, seen = visit(name, size).evaluate(WIDTHS)
    assert scrolled == seen == size[0]
    assert visit.problems == []


@SIZES
def test_every_chart_is_drawn_and_the_first_screen_shows_sentence_and_chart(visit, size):
    page = visit("report", size)
    charts = page.locator(".chart").count()
    assert charts == page.locator(".chart svg").count() > 10
    assert page.locator(".chart svg .mark-line path, .chart svg .mark-rect path").count() >= charts
    assert page.evaluate(CUT_OFF) == []
    sentence, chart = (page.locator(selector).bounding_box() for selector in (".verdict", "#headline-0 svg"))
    assert sentence["y"] < chart["y"]
    assert chart["y"] + 300 < size[1]


def test_hovering_shows_numbers(visit):
    page = visit("report", DESK)
    box = page.locator("#headline-0 svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 150)
    tip = page.locator("#vg-tooltip-element.visible")
    tip.wait_for(timeout=5000)
    words = tip.inner_text().split()
    assert {"label", "round", "difference"} <= set(words) - {"null"} == set(words)
    assert words[words.index("label") + 1] in ("source", "tent", "tent+crowd", "eata")


def test_legend_singles_out_a_method_and_wheel_zooms(visit):
    page = visit("report", DESK)
    lines = "[...document.querySelectorAll('#rounds-0 .mark-line path')].map(path => +getComputedStyle(path).opacity)"
    assert set(page.evaluate(lines)) == {1}
    page.locator("#rounds-0 .role-legend-label text", has_text="eata").click()
    assert sorted(page.evaluate(lines))[-2:] == [0.07, 1]
    chart, labels = page.locator("#stream-0 svg"), page.locator("#stream-0 .role-axis-label text")
    chart.scroll_into_view_if_needed()
    before, box = labels.all_text_contents(), chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    page.keyboard.down("Shift")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Shift")
    page.wait_for_timeout(300)
    assert labels.all_text_contents() != before


def test_axes_follow_the_dark_page_and_paper_is_light(visit):
    light, dark = visit("report", DESK), visit("report", DESK, color_scheme="dark")
    (ink, paper), (dark_ink, dark_paper) = light.evaluate(COLORS), dark.evaluate(COLORS)
    assert len({ink, paper, dark_ink, dark_paper}) == 4
    assert (light.evaluate(AXIS), dark.evaluate(AXIS)) == (ink, dark_ink)
    dark.emulate_media(media="print")
    assert dark.evaluate(COLORS) == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
    assert dark.evaluate(AXIS) == "rgb(0, 0, 0)"
    assert len(dark.pdf(format="A4")) > 20_000
