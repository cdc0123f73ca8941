"""The report in a real browser: on a desk, on a phone, in the dark and on paper."""

import re
import shutil
from functools import cache

import pytest

from driftproof.bench import Results
from driftproof.report import write_report
from test_analyze_scenes import draw_page
from test_report import make_results

DESK, PHONE = (1280, 900), (390, 844)
SIZES = pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

FIGURES = """
[...document.querySelectorAll("figure")].map(figure => ({
    name: figure.id,
    caption: figure.querySelector("figcaption").innerText,
    variants: [...figure.querySelectorAll("[role=img]")].filter(part => part.checkVisibility()).map(part => {
        const svg = part.querySelector("svg"), box = svg.getBoundingClientRect();
        const scale = box.width / svg.viewBox.baseVal.width;
        const texts = [...svg.querySelectorAll("text")].map(text => {
            const at = text.getBoundingClientRect();
            return {
                words: text.textContent, size: scale * parseFloat(getComputedStyle(text).fontSize),
                left: at.left - box.left, top: at.top - box.top, right: box.right - at.right,
                bottom: box.bottom - at.bottom,
            };
        });
        return {kind: part.className, label: part.getAttribute("aria-label"), left: box.left, right: box.right,
            width: box.width, height: box.height, texts};
    }),
}))
"""

WIDTHS = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"

BOXES = """
[...document.querySelectorAll("table")].map(table => {
    const box = table.parentElement, before = box.scrollLeft;
    box.scrollLeft = 1e6;
    const moved = box.scrollLeft;
    box.scrollLeft = before;
    return {table: table.scrollWidth, box: box.clientWidth, right: box.getBoundingClientRect().right, moved};
})
"""


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
def report(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    return write_report(Results(make_results(folder / "results")), folder / "report")


@pytest.fixture(scope="module")
def visit(browser, report):
    """Opens the page in windows of many kinds, and lists whatever went wrong meanwhile as `visit.complaints`."""

    @cache
    def opened(width, height, **settings):
        page = browser.new_context(viewport={"width": width, "height": height}, **settings).new_page()
        page.on("console", lambda message: opened.complaints.append(message.text))
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        page.on("request", lambda request: request.url == report.as_uri() or opened.complaints.append(request.url))
        page.on("requestfailed", lambda request: opened.complaints.append(f"{request.url} {request.failure}"))
        page.goto(report.as_uri())
        return page

    opened.complaints = []
    return opened


@SIZES
def test_page_opens_without_errors_or_requests(visit, size):
    visit(*size).wait_for_load_state("load")
    assert visit.complaints == []


@SIZES
def test_page_fits_the_window(visit, size):
    whole, window = visit(*size).evaluate(WIDTHS)
    assert whole <= window


@SIZES
def test_each_figure_shows_one_variant_inside_the_window(visit, size):
    figures = visit(*size).evaluate(FIGURES)
    assert {figure["name"].split("-")[0] for figure in figures} == {"rounds", "domains", "selected"}
    for figure in figures:
        (shown,) = figure["variants"]
        assert shown["kind"] == ("wide" if size == DESK else "narrow")
        assert 0 <= shown["left"] < shown["right"] <= size[0]
        assert shown["width"] > 300
        assert shown["height"] > 60
        assert figure["caption"]
        assert shown["label"].startswith(figure["caption"])


@SIZES
def test_figure_text_is_readable_and_not_clipped(visit, size):
    for figure in visit(*size).evaluate(FIGURES):
        (shown,) = figure["variants"]
        assert shown["texts"]
        for text in shown["texts"]:
            assert text["size"] >= 10, text
            assert min(text[side] for side in ("left", "top", "right", "bottom")) >= -1, (figure["name"], text)


def test_wide_tables_scroll_in_their_own_box_on_a_phone(visit):
    tables = visit(*PHONE).evaluate(BOXES)
    assert any(table["table"] > table["box"] for table in tables)
    for table in tables:
        assert table["right"] <= PHONE[0]
        assert table["moved"] == pytest.approx(max(table["table"] - table["box"], 0), abs=1)


def test_page_works_without_scripts_and_in_dark_mode(visit):
    light = visit(*DESK, java_script_enabled=False)
    dark = visit(*DESK, color_scheme="dark")
    assert light.locator("h1").is_visible()
    colors = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('text')).fill]"
    paper, ink = (sum(map(int, re.findall(r"\d+", color)[:3])) for color in dark.evaluate(colors))
    assert paper < 150
    assert ink > 400


def test_printed_page_is_not_clipped(visit):
    page = visit(688, 1000)  # what the margins leave of A4
    page.emulate_media(media="print")
    whole, window = page.evaluate(WIDTHS)
    assert whole <= window
    assert all(table["right"] <= window and table["moved"] == 0 for table in page.evaluate(BOXES))
    assert all(shown["kind"] == "wide" for figure in page.evaluate(FIGURES) for shown in figure["variants"])
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) > 3


@SIZES
def test_scene_page_fits_the_window_and_makes_no_requests(browser, tmp_path, size):
    scenes, asked = draw_page(tmp_path).as_uri(), []
    page = browser.new_context(viewport=dict(zip(("width", "height"), size, strict=True))).new_page()
    page.on("request", lambda request: request.url.startswith(("data:", scenes)) or asked.append(request.url))
    page.goto(scenes)
    whole, window = page.evaluate(WIDTHS)
    shown = page.evaluate(
        "[...document.images].map(image => [image.naturalWidth, image.getBoundingClientRect().width, image.alt])"
    )
    assert asked == []
    assert whole <= window
    assert len(shown) == 3 * 5 + 1
    for stored, width, words in shown:
        assert stored > 0
        assert 150 < width < size[0]
        assert words
