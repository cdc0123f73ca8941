"""The server's page in a real browser: curves, alarms and an image of one's own."""

from functools import cache

import pytest

import driftproof as dp
from driftproof.serve.page import load_page
from serving import random_image, served, small_adapter
from test_browser import COLORS, SIZES, WIDTHS, browser  # noqa: F401  # a fixture

HOSTILE = "<img src=x onerror=document.title='owned'>"
INK = (
    "[...document.querySelectorAll('.chart canvas')].map(canvas => {"
    + """
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return pixels.some((value, at) => at % 4 === 3 && value > 0);
})"""
)


@pytest.fixture(scope="module")
def client():
    names = (HOSTILE, "b", "c", "d")
    with served(small_adapter("tent"), alarm=dp.Alarm(-100.0), class_names=names, max_wait=0.001) as client:
        for seed in range(4):
            client.send_images([random_image(4 * seed + index, side=12) for index in range(4)])
        yield client


@pytest.fixture(scope="module")
def visit(browser, client):  # noqa: F811  # the fixture
    problems = []

    @cache
    def opened(size, **settings):
        viewport = dict(zip(("width", "height"), size, strict=True))
        page = browser.new_context(viewport=viewport, **settings).new_page()
        page.on("console", lambda message: "status of 422" in message.text or problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request",
            lambda request: request.url.startswith((client.address, "data:", "blob:")) or problems.append(request.url),
        )
        page.goto(client.address)
        page.wait_for_selector("body[data-drawn]")
        page.wait_for_selector("#alarms li")
        return page

    yield opened
    assert problems == [], "nothing is loaded from elsewhere, and the content security policy stops nothing"


@SIZES
def test_page_fits_the_window_and_draws_every_curve(visit, size):
    page = visit(size)
    scrolled, seen = page.evaluate(WIDTHS)
    assert scrolled == seen == size[0]
    assert page.evaluate(INK) == [True] * 4
    assert page.locator("#alarms img").count() == 16
    assert page.inner_text("#health") in ("healthy", "drifting", "collapsed")


@SIZES
def test_image_of_ones_own_is_answered(visit, size):
    page = visit(size)
    page.set_input_files("#file", {"name": f"{HOSTILE}.png", "mimeType": "image/png", "buffer": random_image(1)})
    page.wait_for_selector("#result dd >> nth=5")
    words = page.inner_text("#result").split("\n")
    assert [words[index] for index in range(0, 12, 2)] == [
        "class",
        "probability",
        "novelty",
        "learned from",
        "alarm",
        "health",
    ]
    page.set_input_files("#file", {"name": "broken.png", "mimeType": "image/png", "buffer": b"broken"})
    page.wait_for_selector("#result dt:text-is('error')")
    assert "cannot be read" in page.inner_text("#result dd")


def test_dropped_image_is_answered_and_the_alarm_shows_up(visit):
    page = visit((1280, 900))
    page.evaluate(
        """content => {
            const files = new DataTransfer();
            files.items.add(new File([new Uint8Array(content)], "dropped.png", {type: "image/png"}));
            const dropped = new DragEvent("drop", {dataTransfer: files, cancelable: true});
            document.getElementById("drop").dispatchEvent(dropped);
        }""",
        list(random_image(77)),
    )
    page.wait_for_selector("#result dd >> nth=5")
    page.wait_for_selector("#alarms li:first-child img[alt='dropped.png']")


def test_names_are_shown_as_text(visit):
    page = visit((1280, 900))
    assert page.title() == "driftproof"
    assert page.locator("img[src=x]").count() == 0


def test_page_follows_the_dark_and_says_when_the_server_is_gone(visit, browser, client):  # noqa: F811
    light, dark = (visit((1280, 900), color_scheme=scheme).evaluate(COLORS) for scheme in ("light", "dark"))
    assert len({*light, *dark}) == 4
    page = browser.new_page()
    page.goto(client.address)
    page.wait_for_selector("body[data-drawn]")
    page.context.set_offline(True)
    page.wait_for_selector("#health.lost")
    page.close()


def test_policy_allows_exactly_the_page_itself():
    page = load_page()
    assert page.html.count("<script>") == page.html.count("<style>") == 1
    assert "http://" not in page.html.replace("http://www.w3.org", "")
    assert "'unsafe" not in page.policy
