"""The page in a real browser: no errors, nothing that axe finds, what its script does, and the keyboard."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import IS_SUPPORTED, Browser
from pictures import some_pictures, write_problems
from servers import copy_of, in_thread
from test_live import REPORT, post
from test_overlays import CLASSES, COLOURS, PERSON, SCRIPT, VALUES, json_of, stored, write, write_without_images
from test_pages import HOSTILE_KEY, write_dataset
from test_runs import report

import wds_tools as wt
from wds_tools.format.field_classes import ClassList
from wds_tools.format.objects import CATEGORY_PATH
from wds_tools.format.sample import Sample
from wds_tools.options import RemoteOptions
from wds_tools.service.history import RunHistory

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not IS_SUPPORTED, reason="no browser for this kind of machine"),
]

PAGES = {
    "overview": "/",
    "samples": "/datasets/photos",
    "mistake": "/datasets/photos?where=width+%3E%3E+heigt",
    "hostile": "/datasets/hostile",
    "texts": "/datasets/words",
    "sample": "/datasets/annotated/samples/0",
    "hostile sample": "/datasets/hostile/samples/0",
    "batches": "/datasets/photos?tab=batches&view=Mosaic&size=64&batch=4",
    "crops": "/datasets/photos?tab=batches&sample=7",
    "glance": "/datasets/photos?tab=glance",
    "problems": "/datasets/problems?tab=problems",
    "health": "/datasets/photos?tab=health",
    "runs": "/runs/",
    "two runs": "/runs/{0}?with={1}",
}
WIDE, NARROW = 1280, 390


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(autouse=True)
def no_complaints(browser: Browser) -> Iterator[None]:
    """Let a test fail if a page has caused an error, a refused resource, a dialog or a request to another server."""
    browser.show_as(WIDE)
    browser.complaints.clear()
    browser.requested.clear()
    yield
    browser.go("about:blank")  # which ends the requests of the page
    assert browser.complaints == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> RunHistory:
    history, now = RunHistory(tmp_path_factory.mktemp("runs")), time.time()
    for name in (SCRIPT, "a name that is longer than others, with many words in it"):
        for second in range(0, 100, 10):
            waits = {"decoding": 0.2, "storage": 0.1}
            history.add([report(now - 100 + second, run=name, waits=waits)], now=now - 100 + second)
    return history


@pytest.fixture(scope="module")
def url(packed: Path, photos: Path, runs: RunHistory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("browsed")
    copy_of(packed, root / "photos")
    both = {"json": VALUES["objects"], "mask.png": stored(CLASSES), "panoptic.png": stored(COLOURS)}
    write(root / "annotated", [both, both, both], {CATEGORY_PATH: ClassList((SCRIPT, "car"), (), (PERSON, "{}"))})
    write_without_images(root / "words")
    bad = [Sample(HOSTILE_KEY, {"jpg": b"<html>" + SCRIPT.encode(), "txt": SCRIPT.encode(), "json": json_of(SCRIPT)})]
    write_dataset(root / "hostile", bad, classes=(SCRIPT, "\u202ereversed"))
    write_problems(root / "source", some_pictures(photos), single=SCRIPT.replace("/", ""))
    wt.pack(root / "source", root / "problems", workers=1, progress=False)
    with in_thread(root, remote=RemoteOptions.of(runs.path.parent)) as address:
        yield address


def open_page(browser: Browser, url: str, path: str) -> None:
    """Open a page, and wait until it will not change any more."""
    browser.go(url + path)
    browser.wait_for(
        "![...document.querySelectorAll('[data-live]:not([data-final])')]"
        ".some(part => /being computed|searching: |searched so far|counted so far/.test(part.textContent))"
    )


def check(browser: Browser, width: int, scheme: str) -> None:
    browser.show_as(width, scheme)
    assert browser.violations() == []
    assert browser.run("document.documentElement.scrollWidth") <= width, "it scrolls sideways"


# The others have the same templates, or need a process that has imported torch.
@pytest.mark.torture_except("overview", "samples", "hostile", "sample", "glance", "problems", "health", "two runs")
@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_without_errors_and_axe_finds_nothing(
    browser: Browser, url: str, runs: RunHistory, name: str
) -> None:
    open_page(browser, url, PAGES[name].format(*(run.id for run in runs.runs())))
    assert browser.run("document.querySelector('h1').textContent")
    check(browser, WIDE, "light")
    browser.show_as(NARROW)
    assert browser.run("document.documentElement.scrollWidth") <= NARROW, "it scrolls sideways"
    assert {one.split("/")[2] for one in browser.requested} == {url.split("/")[2]}


@pytest.mark.torture_except("sample")
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_in_the_other_colours(browser: Browser, url: str, runs: RunHistory, name: str) -> None:
    open_page(browser, url, PAGES[name].format(*(run.id for run in runs.runs())))
    for width, scheme in ((NARROW, "dark"), (WIDE, "dark"), (NARROW, "light")):
        check(browser, width, scheme)


def test_the_slider_changes_the_opacity_of_a_mask_and_the_boxes_what_is_shown(browser: Browser, url: str) -> None:
    open_page(browser, url, "/datasets/annotated/samples/0")
    browser.run("document.querySelector('[data-opacity=mask-1]').focus()")
    before = float(browser.run("document.getElementById('mask-1').getAttribute('opacity')"))
    browser.press("ArrowRight")
    assert float(browser.run("document.getElementById('mask-1').getAttribute('opacity')")) == pytest.approx(
        before + 0.05
    )
    for box, layer in (("show-mask-1", "#mask-1"), ("show-mask-2", "#mask-2"), ("show-objects", ".objects")):
        display = f"getComputedStyle(document.querySelector('{layer}')).display"
        was_shown = browser.run(display) != "none"
        browser.run(f"document.getElementById('{box}').focus()")
        browser.press(" ")
        assert (browser.run(display) != "none") is not was_shown


def test_the_code_is_copied(browser: Browser, url: str) -> None:
    browser.call("Browser.grantPermissions", origin=url, permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    open_page(browser, url, "/datasets/photos?class=2")
    browser.click("document.querySelector('details.code summary')")
    browser.click("document.querySelector('[data-copy=code]')")
    browser.wait_for("document.querySelector('[data-copy=code]').textContent === 'Copied'")
    copied = browser.run("navigator.clipboard.readText()")
    assert "where='label == 2'" in copied
    assert copied == browser.run("document.getElementById('code').textContent")


def test_a_bar_of_a_histogram_leads_to_its_samples(browser: Browser, url: str) -> None:
    open_page(browser, url, "/datasets/problems?tab=glance")
    said = browser.run("document.querySelector('.histogram a').getAttribute('aria-label')")
    browser.click_to_load("document.querySelector('.histogram a')")
    number = browser.run("document.querySelector('.result b').textContent")
    assert f": {number} sample" in said


def test_classes_are_searched_for_with_the_keyboard(browser: Browser, url: str) -> None:
    open_page(browser, url, "/datasets/photos?find=a")
    browser.run("document.querySelector('.find [name=find]').select()")
    browser.press_to_load(*"cat", "Enter")
    assert "find=cat" in browser.run("location.search")
    assert set(browser.run("[...document.querySelectorAll('.bars .label')].map(one => one.textContent)")) == {"cat"}


def test_keys_go_to_other_samples_and_to_the_condition(browser: Browser, url: str) -> None:
    open_page(browser, url, "/datasets/annotated/samples/1")
    path = f"{url}/datasets/annotated"
    for key, expected in (
        ("ArrowRight", f"{path}/samples/2"),
        ("ArrowLeft", f"{path}/samples/1"),
        ("Escape", path),
    ):
        browser.press_to_load(key)
        assert browser.run("location.href") == expected
    browser.press("/", *"width > 5", "ArrowLeft")  # the arrow moves the cursor, and does not leave the page
    assert browser.run("document.activeElement.id + document.activeElement.value") == "wherewidth > 5"
    browser.press_to_load("Enter")
    assert browser.run("location.search") == f"?where={quote('width > 5').replace('%20', '+')}"


@pytest.mark.parametrize("name", ["samples", "sample", "glance"])
def test_what_has_the_focus_is_seen_and_the_content_is_reached_at_once(browser: Browser, url: str, name: str) -> None:
    open_page(browser, url, PAGES[name])
    browser.press("Tab")
    assert browser.run("document.activeElement.getBoundingClientRect().left >= 0")
    browser.press("Enter", "Tab")
    assert browser.run("document.querySelector('main').contains(document.activeElement)")
    seen = set()
    for _ in range(12):
        text, is_marked = browser.run(
            "(() => { const one = document.activeElement, style = getComputedStyle(one.querySelector('.area') || one);"
            "return [one.outerHTML, style.outlineStyle !== 'none' || style.strokeWidth === '2px']; })()"
        )
        assert is_marked, text
        seen.add(text)
        browser.press("Tab")
    assert len(seen) > 10


def test_live_figures_change_without_a_reload_and_silence_is_shown(browser: Browser, url: str) -> None:
    assert post(url, REPORT) == 204
    open_page(browser, url, "/")
    browser.run("window.isTheSamePage = true")
    assert "1,234" in browser.run("document.querySelector('.run .rate').textContent")
    assert post(url, {**REPORT, "images_per_second": 777.0}) == 204
    browser.wait_for("document.querySelector('.run .rate').textContent.includes('777')")
    limits = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.call("Network.emulateNetworkConditions", offline=True, **limits)
    browser.wait_for("document.body.classList.contains('offline')")
    browser.call("Network.emulateNetworkConditions", offline=False, **limits)
    browser.wait_for("!document.body.classList.contains('offline')")
    assert browser.run("window.isTheSamePage")
    assert all("ERR_INTERNET_DISCONNECTED" in one for one in browser.complaints)
    browser.complaints.clear()
