"""The page of dxn serve in the Chromium of the system, for tests with the fixture `browser`."""

import io
import shutil
import time
from contextlib import contextmanager

import pytest
from PIL import Image

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def browser_path():
    """The path of the browser. Without one, the test is skipped and says how to install it."""
    path = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if path is None:
        pytest.skip(
            f"needs a browser, but none of {', '.join(PROGRAMS)} was found; install it with "
            "apt install chromium"
        )
    return path


@contextmanager
def page_of(browser, url, **options):
    """A page without errors in its console."""
    with browser.new_context(**options) as context:
        page = context.new_page()
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.goto(url)
        page.wait_for_selector("main:not([hidden])")
        yield page
        assert problems == []


def picture():
    """A red picture as a file to choose."""
    file = io.BytesIO()
    Image.new("RGB", (30, 20), (200, 30, 30)).save(file, "PNG")
    return {"name": "red.png", "mimeType": "image/png", "buffer": file.getvalue()}


def wait_until(page, code, arg=None, seconds=30):
    """Wait until a JavaScript expression or function is true.

    `Page.wait_for_function` would evaluate texts in the page, whose policy refuses this.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(code, arg):
        assert time.monotonic() < end, f"still false after {seconds} s: {code} {arg}"
        page.wait_for_timeout(30)


def wait_for_picture(page, selector, width):
    """Wait until a picture of this width in pixels is loaded."""
    code = "([selector, width]) => document.querySelector(selector)?.naturalWidth === width"
    wait_until(page, code, [selector, width])


def wait_for_count(page, selector, count):
    """Wait until there are so many elements."""
    code = "([selector, count]) => document.querySelectorAll(selector).length === count"
    wait_until(page, code, [selector, count])
