"""The documentation and the demo's page in a real browser: on a desk and on a phone, light and dark.

Every page is checked by axe-core (contrast, alternative texts, labels, structure) and for sideways scrolling.
`make pages` runs this, with screenshots in `site-screenshots`.
"""

import functools
import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from driftproof.demo import streams
from driftproof.demo.garments import load_garments
from driftproof.demo.network import build_network
from driftproof.demo.page import write_demo_page
from test_browser import DESK, PHONE, WIDTHS, browser  # noqa: F401  # a fixture

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
IS_DARK = "parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]) < 128"
FAR_RIGHT = """
[...document.querySelectorAll("main *, body > section *")]
    .filter(each => each.getBoundingClientRect().right > innerWidth + 1)
    .filter(each => !each.closest("pre, .md-typeset__scrollwrap, .highlight, svg, table, .table"))
    .map(each => each.outerHTML.slice(0, 80))
"""

pytestmark = pytest.mark.slow


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the built documentation, with the demo's page beside it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    garments = load_garments()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CORRUPTIONS", ("gaussian_noise", "fog"))
        world = streams.run_world(build_network().eval(), garments, count=100)
    hostile = [streams.Hostile("sorted", 94.0, 31.5, 93.5)]
    write_demo_page(world, hostile, folder / "demo-page.html", seed=0)
    handler = functools.partial(_Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def addresses():
    for page in PAGES:
        yield str(page.with_suffix("")), f"/{page.parent}/" if page.stem == "index" else f"/{page.with_suffix('')}/"
    yield "demo-page", "/demo-page.html"


def open_window(browser, size, scheme="light"):  # noqa: F811
    viewport = dict(zip(("width", "height"), size, strict=True))
    return browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce").new_page()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_pages_are_readable_and_fit_the_window(browser, site, size, scheme):  # noqa: F811
    """Everything is checked in the light; in the dark, only contrast can differ."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page, found = open_window(browser, size, scheme), []
    rules = RULES if scheme == "light" else {"runOnly": ["color-contrast"]}
    screenshots = os.environ.get("DRIFTPROOF_SCREENSHOTS")
    for name, address in addresses():
        page.goto(site + address)
        if name == "demo-page":
            page.wait_for_selector("body[data-drawn]", state="attached")
        scrolled, seen = page.evaluate(WIDTHS)
        found += [f"{name}: {scrolled - seen} px too wide: {page.evaluate(FAR_RIGHT)[:2]}"] * (scrolled > seen)
        is_dark = page.evaluate(IS_DARK)
        found += [f"{name} is not {scheme}"] * (is_dark != (scheme == "dark"))
        for violation in axe.run(page, options=rules).response["violations"]:
            nodes = violation["nodes"]
            reason = " ".join(nodes[0]["failureSummary"].split())
            found.append(f"{name}: {violation['id']} × {len(nodes)}: {nodes[0]['html'][:120]}: {reason}")
        if screenshots:
            path = Path(screenshots) / f"{name.replace('/', '-')}-{size[0]}-{scheme}.png"
            page.screenshot(path=path, full_page=True)
    assert not found, "\n".join(found)


WANTED = {
    "ViT": "vit", "timm": "vit", "collapse": "safety", "learning rate": "choosing", "batch of one": "faq",
    "TENT": "tent", "docker": "serving",
}  # fmt: skip


@pytest.mark.parametrize("words", WANTED)
def test_search_finds(browser, site, words):  # noqa: F811
    page = open_window(browser, DESK)
    page.goto(site)
    page.locator(".md-search__input").fill(words)
    page.locator(".md-search-result__item").first.wait_for(timeout=20_000)
    first = "all => all.map(item => item.querySelector('a').pathname)"
    links = page.locator(".md-search-result__item").evaluate_all(first)
    assert any(f"/{WANTED[words]}/" in link for link in links[:6]), links
