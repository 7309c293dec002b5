"""The page of dxn serve in the Chromium of the system, for tests with the fixture `browser`."""

import io
from contextlib import contextmanager

from PIL import Image


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


def wait_for_picture(page, selector, width):
    """Wait until a picture of this width in pixels is loaded."""
    code = "([selector, width]) => document.querySelector(selector)?.naturalWidth === width"
    page.wait_for_function(code, arg=[selector, width])
