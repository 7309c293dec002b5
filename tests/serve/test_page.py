"""The page of dxn serve, in the Chromium of the system."""

import base64
import io
import json
import shutil
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from helpers.browser import (
    PROGRAMS,
    browser_path,
    page_of,
    picture,
    wait_for_count,
    wait_until,
)
from helpers.runs import PLAIN, SMALL, train
from helpers.serving import server_of
from helpers.shades import train_any, train_codec
from PIL import Image

import dxn
from dxn.serve.command import read_examples
from dxn.tasks.segment.drawn import compressed

KEY = "a-key-of-this-test"


@pytest.fixture(scope="module")
def digits(trained_run):
    """The URL of a model with a text, a picture and a sound, and examples."""
    folder = trained_run("digits")
    predictor = dxn.load(folder)
    examples = read_examples(str(folder), predictor, 3, ())
    examples[2]["texts"] = {}
    with server_of(predictor, examples=examples, name="digits") as url:
        yield url


@pytest.fixture(scope="module")
def writer(trained_run):
    """A language model."""
    return dxn.load(trained_run("lines"))


def wait_for_answer(page):
    page.wait_for_selector("#answer .answer")
    page.wait_for_selector("#stop[hidden]", state="attached")


@pytest.fixture(scope="module")
def boxes(trained_run):
    """The URL of a model that finds objects in pictures."""
    with server_of(dxn.load(trained_run("boxes")), name="boxes") as url:
        yield url


@pytest.mark.parametrize("width", [390, 1280])
def test_found_objects_are_shown_on_the_picture_and_in_a_table(browser, boxes, width):
    size = {"width": width, "height": 800}
    with page_of(browser, boxes, viewport=size) as page:
        page.locator("input[type=file]").first.set_input_files(picture())
        page.click("#run")
        wait_for_count(page, "#answer svg rect", 5)
        assert page.locator("#answer tr").count() == 6
        assert page.locator("#answer svg").get_attribute("viewBox") == "0 0 30 20"
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_missing_browser_is_named_with_how_to_install_it(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(pytest.skip.Exception, match="apt install chromium") as refused:
        browser_path()
    assert all(name in str(refused.value) for name in PROGRAMS)


def answered(page, path, field="input[type=file]", file=None, **answer):
    """Run the model on a file, by default a picture, with this answer instead of the server's."""
    page.route(f"**/{path}", lambda route: route.fulfill(**answer))
    page.locator(field).first.set_input_files(file or picture())
    page.click("#run")


# Two objects of the picture with 30×20 pixels: its left and its right half.
OBJECTS = [
    {"label": "cup", "score": 0.9, "left": 0, "top": 0, "right": 15, "bottom": 20},
    {"label": "jar", "score": 0.4, "left": 15, "top": 0, "right": 30, "bottom": 20},
]
SLIDE = "(range, value) => { range.value = value; range.dispatchEvent(new Event('input')); }"
# Red, green, blue and opacity of a pixel of a canvas.
PIXEL = """([x, y]) => [...document.querySelector('#answer canvas').getContext('2d')
    .getImageData(x, y, 1, 1).data]"""


def test_a_slider_hides_the_boxes_below_a_score(browser, boxes):
    with page_of(browser, boxes) as page:
        page.uncheck("#attend")
        result = {"prediction": OBJECTS, "objects_in": "image"}
        answered(page, "predict", json={"results": [result]})
        wait_for_count(page, "#answer svg rect", 2)
        page.get_by_text("40%: 2 of 2 objects").wait_for()
        page.locator("#answer input[type=range]").evaluate(SLIDE, 50)
        page.get_by_text("50%: 1 of 2 objects").wait_for()
        wait_for_count(page, "#answer svg rect", 1)
        page.locator("#answer th", has_text="jar").wait_for(state="hidden")
        assert page.locator("#answer th", has_text="cup").is_visible()


@pytest.mark.parametrize("is_compressed", [False, True])
def test_the_masks_of_objects_are_drawn(browser, boxes, is_compressed):
    runs = [0, 300, 300]
    counts = compressed(np.array(runs)) if is_compressed else runs
    area = {"segmentation": {"size": [20, 30], "counts": counts}}
    with page_of(browser, boxes) as page:
        page.uncheck("#attend")
        result = {"prediction": [OBJECTS[0] | area, OBJECTS[1]], "objects_in": "image"}
        answered(page, "predict", json={"results": [result]})
        page.wait_for_selector("#answer canvas")
        assert page.evaluate(PIXEL, [14, 19])[3] > 0
        assert page.evaluate(PIXEL, [15, 0])[3] == 0


def test_each_class_of_a_mask_can_be_hidden(browser, boxes):
    pixels = np.repeat(np.array([[0, 7]], np.uint8), 15, 1).repeat(20, 0)
    mask = {
        "prediction": {"sky": 0.5, "tree": 0.5},
        "mask": png_url(pixels),
        "values": {"sky": 0, "tree": 7},
        "colors": {"sky": "#000080", "tree": "#008000"},
        "masks_in": "image",
    }
    with page_of(browser, boxes) as page:
        page.uncheck("#attend")
        answered(page, "predict", json={"results": [mask]})
        wait_until(page, "document.querySelector('#answer canvas')?.width === 30")
        assert page.evaluate(PIXEL, [0, 0]) == [0, 0, 128, 255]
        assert page.evaluate(PIXEL, [29, 0]) == [0, 128, 0, 255]
        page.get_by_label("show tree").uncheck()
        assert page.evaluate(PIXEL, [29, 0])[3] == 0
        assert page.evaluate(PIXEL, [0, 0])[3] == 255
        page.get_by_label("opacity of the mask").evaluate(SLIDE, 20)
        page.get_by_text("20%").wait_for()


def png_url(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def test_a_threshold_moves_a_mask_of_two_classes_without_a_request(browser, tmp_path):
    for folder in ("images", "masks"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        for i in range(20):
            pixels = np.zeros((24, 24), np.uint8)
            pixels[:, : i + 3] = 200 if folder == "images" else 1
            Image.fromarray(pixels).save(tmp_path / "data" / folder / f"{i}.png")
    (tmp_path / "data" / "classes.txt").write_text("sea\nland")
    options = ["adapters.image.image_size=24", "adapters.image.patch_size=8", *PLAIN]
    options += ["trainer.epochs=1", "report=false", f"{tmp_path}/data"]
    train(tmp_path / "run", *SMALL, *options)
    model = dxn.load(tmp_path / "run")
    (example,) = read_examples(str(tmp_path / "run"), model, 1, ())
    assert Path(example["target"]).stem.isdigit()  # not the path on this machine
    with server_of(model) as url:
        sample = {"image": {"base64": base64.b64encode(picture()["buffer"]).decode()}}
        plain, full = (
            httpx.post(f"{url}/predict", json={"inputs": [sample], **option}).json()["results"][0]
            for option in ({}, {"pixel_probabilities": True})
        )
        assert full | plain == full
        assert full.keys() - plain.keys() == {"pixel_class", "pixel_probabilities"}
        assert full["pixel_class"] == "land"
        mask, levels = (
            np.asarray(Image.open(io.BytesIO(base64.b64decode(full[key].split(",")[1]))))
            for key in ("mask", "pixel_probabilities")
        )
        assert levels.shape == (20, 30) and levels.dtype == np.uint8
        assert np.array_equal(mask == 1, levels >= 128)
        with page_of(browser, url) as page:
            page.uncheck("#attend")
            page.set_input_files("input[type=file]", picture())
            page.click("#run")
            slider = page.get_by_label("minimum probability of land")
            wait_until(page, "document.querySelector('#answer canvas')?.width === 30")
            requests = []
            page.on("request", lambda request: requests.append(request.url))
            for share, limit in (("100%", 1), ("0%", 99)):
                slider.evaluate(SLIDE, limit)
                row = page.locator("#answer tr", has_text="land")
                assert row.locator("td").first.inner_text() == share
                land = [0, 0, 0, 0] if share == "0%" else [128, 0, 0, 255]
                assert page.evaluate(PIXEL, [3, 3]) == land
            # The background is black, so that it is not drawn at first.
            page.get_by_label("show sea").check()
            assert page.evaluate(PIXEL, [3, 3]) == [0, 0, 0, 255]
            assert requests == []


# Two sounds of half a second.
EVENTS = [
    {"label": "bell", "score": 0.9, "start": 0.25, "stop": 0.75},
    {"label": "dog", "score": 0.4, "start": 0.5, "stop": 1.0},
]


def test_events_are_drawn_below_the_wave_and_played(browser, digits):
    file = io.BytesIO()
    soundfile.write(file, 0.5 * np.sin(np.arange(16000) / 9), 8000, format="WAV")
    sound = {"name": "x.wav", "mimeType": "audio/wav", "buffer": file.getvalue()}
    answer = {"json": {"results": [{"prediction": EVENTS, "objects_in": "audio"}]}}
    with page_of(browser, digits) as page:
        page.uncheck("#attend")
        answered(page, "predict", "#input-audio", sound, **answer)
        page.wait_for_selector("#answer .chart .band")
        wait_for_count(page, "#answer .chart .bar", 2)
        heads = page.locator("#answer th[scope=col]").all_inner_texts()
        assert heads == ["label", "score", "start (seconds)", "stop (seconds)"]
        # They overlap, so that the second one is below the first one.
        first, second = (
            page.locator(f"#answer .bar:has-text('{e['label']}') rect").last.bounding_box()
            for e in EVENTS
        )
        assert second["y"] > first["y"] and second["x"] == pytest.approx(first["x"] * 1.5, rel=0.5)
        assert page.locator("#answer .bar title").all_text_contents() == [
            "bell 90%, 0.25 to 0.75 seconds", "dog 40%, 0.5 to 1 seconds"
        ]  # fmt: skip
        page.get_by_label("minimum score").evaluate(SLIDE, 50)
        wait_for_count(page, "#answer .chart .bar", 1)
        page.locator("#answer .bar").click()
        wait_until(page, "document.querySelector('#answer audio').currentTime >= 0.75")
        wait_until(page, "document.querySelector('#answer audio').paused")
        assert page.evaluate("document.querySelector('#answer audio').currentTime") < 1.5


@pytest.fixture(scope="module")
def forecasts(tmp_path_factory):
    """The URL of a model that continues two series."""
    folder = tmp_path_factory.mktemp("forecasts")
    rows = [f"2024-01-{i // 24 + 1:02} {i % 24:02}:00,{i % 24},{i % 6}" for i in range(400)]
    (folder / "hours.csv").write_text("\n".join(["time,sun,wind", *rows]))
    options = ["data=timeline", f"data.path={folder}/hours.csv", "target=[sun,wind]", *PLAIN]
    options += ["data.horizon=6", "data.context=24", "trainer.epochs=1", "report=false"]
    train(folder / "run", *SMALL, *options)
    model = dxn.load(folder / "run")
    examples = read_examples(str(folder / "run"), model, 2, ())
    with server_of(model, examples=examples) as url:
        yield url


def test_the_history_of_a_forecast_is_the_end_of_its_series(forecasts):
    series = json.loads(httpx.get(f"{forecasts}/model").json()["examples"][0]["texts"]["series"])
    sent = {"inputs": [{"series": series}, {"series": series[-10:]}]}
    long, short = httpx.post(f"{forecasts}/predict", json=sent, timeout=30).json()["results"]
    assert long["channels"] == ["sun", "wind"] and len(long["history"]) == 24
    assert np.array(long["history"]) == pytest.approx(np.array(series[-24:]), abs=1e-4)
    assert np.array(short["history"]) == pytest.approx(np.array(series[-10:]), abs=1e-4)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_a_forecast_is_drawn_after_its_history_with_bands(browser, forecasts, scheme, width):
    size = {"width": width, "height": 800}
    with page_of(browser, forecasts, color_scheme=scheme, viewport=size) as page:
        page.locator(".example").first.click()
        page.wait_for_selector("#answer svg.chart path.second")
        assert page.locator("#answer svg.chart path.past").count() == 1
        assert page.locator("#answer svg.chart polygon.band").count() == 2
        texts = page.locator("#answer svg.chart text").all_text_contents()
        assert "time steps after the end of the history" in texts and "sun" in texts
        assert page.locator("#answer p.soft.legend").inner_text().split("\n") == [
            "history", "median", "true values", "10% to 90%", "25% to 75%"
        ]  # fmt: skip
        assert page.locator("#answer svg.chart path.true").count() == 1
        # Not reduced, so that its letters have the size that they should have.
        code = "x => x.getBoundingClientRect().width === x.viewBox.baseVal.width"
        assert page.locator("#answer svg.chart").evaluate(code)
        page.get_by_label("channel").select_option("wind")
        page.locator("#answer svg.chart text", has_text="wind").wait_for()
        page.wait_for_selector("#stop[hidden]", state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_true_values_of_an_example_are_drawn_until_its_input_changes(browser, forecasts):
    true = httpx.get(f"{forecasts}/model").json()["examples"][0]["true"]
    assert np.shape(true) == (6, 2)
    with page_of(browser, forecasts) as page:
        page.uncheck("#attend")
        page.locator(".example").first.click()
        wait_for_count(page, "#answer .chart path.true", 1)
        page.locator("#input-series").fill(json.dumps([[i, 1] for i in range(24)]))
        page.click("#run")
        page.wait_for_selector("#answer .chart path.second")
        wait_for_count(page, "#answer .chart path.true", 0)


def test_frames_are_drawn_in_the_same_colors(browser, boxes):
    frame = [[0, 1, None], [2, 3, 4]]
    result = {"prediction": [frame] * 3, "quantiles": {"0.5": [frame] * 3}, "history": [frame] * 2}
    with page_of(browser, boxes) as page:
        page.uncheck("#attend")
        answered(page, "predict", json={"results": [result]})
        wait_for_count(page, "#answer .frames canvas", 5)
        assert page.evaluate(PIXEL, [0, 0]) == [68, 1, 84, 255]  # the smallest value
        assert page.evaluate(PIXEL, [2, 1]) == [253, 231, 37, 255]
        assert page.evaluate(PIXEL, [2, 0]) == [160, 160, 160, 255]


def test_a_created_sound_is_played_and_a_series_is_drawn(browser, writer):
    file = io.BytesIO()
    soundfile.write(file, np.zeros(800), 8000, format="WAV")
    sound = {"base64": base64.b64encode(file.getvalue()).decode()}
    events = [
        {"index": 0, "generated": sound, "type": "audio/wav"},
        {"index": 1, "generated": [[1, 2], [3, None]]},
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    with server_of(writer) as url, page_of(browser, url) as page:
        page.route("**/generate", lambda route: route.fulfill(body=body))
        page.click("#run")
        wait_until(page, "document.querySelector('#answer audio')?.duration > 0.09")
        wait_for_count(page, "#answer svg.chart", 2)


def test_an_empty_text_is_explained(browser, writer):
    body = 'data: {"index": 0, "generated": ""}\n\n'
    with server_of(writer) as url, page_of(browser, url) as page:
        page.route("**/generate", lambda route: route.fulfill(body=body))
        page.click("#run")
        page.get_by_text("The model has written an empty text.").wait_for()


def test_a_printed_page_is_light(browser, boxes):
    with page_of(browser, boxes, color_scheme="dark") as page:
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert dark == "rgb(18, 22, 29)"
        page.emulate_media(media="print")
        code = "getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'"
        wait_until(page, code)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_example_is_answered_with_probabilities_and_attention(browser, digits, scheme, width):
    size = {"width": width, "height": 800}
    with page_of(browser, digits, color_scheme=scheme, viewport=size) as page:
        assert page.locator(".example").count() == 3
        page.locator(".example").first.click()
        wait_for_answer(page)
        assert page.locator("#answer .bars .label").count() == 10
        titles = page.locator("#attention #shown h3").all_inner_texts()
        assert [title.split(":")[0] for title in titles] == ["text", "image", "audio"]
        assert page.locator("#attention rect").count() > 1
        wait_until(page, "document.querySelector('.preview img')?.naturalWidth > 0")
        # Nothing is wider than the window.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(255, 255, 255)") == (scheme == "light")


def test_examples_without_a_text_are_numbered(browser, digits):
    with page_of(browser, digits) as page:
        texts = page.locator(".example").all_text_contents()
        assert texts[2].startswith("image 3, audio 3")
        assert "image, audio" in texts[0]


def test_an_example_is_downloaded_by_the_code_that_uses_it(browser, digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with page_of(browser, digits) as page:
        # Without an input there is nothing to send.
        assert page.locator("#curl").is_hidden()
        page.locator(".example").first.click()
        wait_for_answer(page)
        commands = page.locator("#curl").inner_text().splitlines()
        downloads = [line for line in commands if " -o " in line]
        assert len(downloads) == 2  # a picture and a sound
        for command in downloads:
            run_curl(command, is_json=False)
        sent = run_curl("\n".join(commands[len(downloads) :]))
        shown = page.locator("#answer .answer").inner_text()
        assert sent["results"][0]["prediction"] == shown


def test_a_typed_text_and_a_chosen_picture_are_sent_and_shown_as_code(browser, digits):
    with page_of(browser, digits) as page:
        page.get_by_label("text").fill('it\'s "sieben"')
        as_json = page.locator("#curl").inner_text()
        sent = run_curl(as_json)
        assert len(sent["results"][0]["probabilities"]) == 10
        assert "json={" in page.locator("#python").inner_text()
        compile(page.locator("#python").inner_text(), "python", "exec")
        page.locator("input[type=file]").first.set_input_files(picture())
        assert "-F 'image=@red.png'" in page.locator("#curl").inner_text()
        compile(page.locator("#python").inner_text(), "python", "exec")
        page.click("#run")
        wait_for_answer(page)
        assert page.locator("#problem").is_hidden()
        page.click("#clear")
        assert page.locator(".preview img").count() == 0


def run_curl(command, *, is_json=True):
    """The answer of a command of the page."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("needs curl")
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=True, timeout=30)
    return json.loads(done.stdout) if is_json else done.stdout


# The browser creates the events of a drop and a paste, with a picture of one pixel.
GIVE = """async ({target, kind}) => {
    const canvas = document.createElement("canvas");
    const blob = await new Promise(resolve => canvas.toBlob(resolve));
    const data = new DataTransfer();
    data.items.add(new File([blob], `${kind}.png`, {type: "image/png"}));
    const options = {bubbles: true, cancelable: true};
    const event = kind === "drop"
        ? new DragEvent("drop", {...options, dataTransfer: data})
        : new ClipboardEvent("paste", {...options, clipboardData: data});
    document.querySelector(target).dispatchEvent(event);
}"""


def test_a_dropped_and_a_pasted_picture_are_taken(browser, digits):
    with page_of(browser, digits) as page:
        page.wait_for_selector(".drop")
        for kind, target in (("drop", ".drop"), ("paste", "body")):
            page.evaluate(GIVE, {"kind": kind, "target": target})
            page.get_by_text(f"{kind}.png,").wait_for()
            page.click("#run")
            wait_for_answer(page)


def test_a_recorded_sound_is_answered(browser, digits):
    with page_of(browser, digits, permissions=["microphone"]) as page:
        page.get_by_role("button", name="Record").click()
        page.get_by_role("button", name="Stop recording").wait_for()
        page.wait_for_timeout(400)
        page.get_by_role("button", name="Stop recording").click()
        page.get_by_text("recording.wav,").wait_for()
        page.click("#run")
        wait_for_answer(page)
        assert page.locator("#problem").is_hidden()


def test_known_categories_are_suggested(browser, tmp_path):
    rows = [f"{kind},{i * 0.37:.2f},{i % 3 % 2}" for i, kind in enumerate(["ash", "oak"] * 20)]
    (tmp_path / "trees.csv").write_text("\n".join(["kind,height,label", *rows]))
    options = ["data=table", f"data.path={tmp_path}/trees.csv", "target=label", *PLAIN]
    train(tmp_path / "run", *SMALL, *options, "trainer.epochs=1", "report=false")
    server = server_of(dxn.load(tmp_path / "run"))
    with server as url, page_of(browser, url) as page:
        field = page.get_by_label("kind")
        choices = page.locator("#input-kind-choices option")
        assert {choice.get_attribute("value") for choice in choices.all()} == {"ash", "oak"}
        field.fill("elm")
        page.get_by_text("None of the known values").wait_for()
        field.fill("Oak")
        assert page.get_by_text("None of the known values").count() == 0


def test_a_mistake_is_explained(browser, digits):
    with page_of(browser, digits) as page:
        page.click("#run")
        assert "Enter an input" in page.locator("#problem").inner_text()
    with browser.new_context() as context:  # the refused request is an error in the console
        page = context.new_page()
        page.goto(digits)
        broken = {"name": "x.png", "mimeType": "image/png", "buffer": b"\x89PNG no picture"}
        page.locator("input[type=file]").first.set_input_files(broken)
        page.click("#run")
        page.wait_for_selector("#problem:not([hidden])")
        assert "image: " in page.locator("#problem").inner_text()


def test_text_in_an_input_is_never_html(browser, digits):
    with page_of(browser, digits) as page:
        page.get_by_label("text").fill("<img src=x onerror=alert(1)> <b>seven</b>")
        page.click("#run")
        wait_for_answer(page)
        assert (
            page.locator("#attention #shown b, #attention #shown img[onerror], #curl img").count()
            == 0
        )


def test_a_generated_text_appears_and_a_key_is_asked_for(browser, writer):
    with server_of(writer, key=KEY, max_new=8) as url, browser.new_context() as context:
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector("#key-form:not([hidden])")
        page.fill("#key", "wrong")
        page.get_by_role("button", name="Use the key").click()
        page.get_by_text("the API key is missing or wrong").wait_for()
        page.fill("#key", KEY)
        page.get_by_role("button", name="Use the key").click()
        page.get_by_label("prompt").fill("apple")
        page.click("#run")
        wait_for_answer(page)
        wait_until(page, "document.querySelector('#answer .answer')?.textContent")
        assert page.locator("#answer .answer").inner_text().startswith("apple")
        assert "$DXN_API_KEY" in page.locator("#curl").inner_text()
        assert KEY not in page.content()


def test_the_page_of_all_requests_lists_them(browser, digits):
    with page_of(browser, f"{digits}/docs") as page:
        page.get_by_role("heading", name="POST /predict").wait_for()
        assert page.locator("section").count() == 8
        post = page.locator("section", has=page.get_by_role("heading", name="POST /predict"))
        rows = post.locator("table").first.locator("tr").all_inner_texts()
        assert ["inputs[].text", "text or number or list", "text"] in [r.split("\t") for r in rows]
        fields = post.locator("table code").all_inner_texts()
        assert fields[-3:] == [f"results[].{n}" for n in ("prediction", "probabilities", "note")]


def test_created_and_decoded_pictures_are_shown(browser, tmp_path):
    train_codec(tmp_path)
    train_any(tmp_path, "any")
    with server_of(dxn.load(tmp_path / "any")) as url, page_of(browser, url) as page:
        page.select_option("#create", "image")
        assert not page.is_visible("#input-image")
        page.fill("#input-text", "a light one")
        page.click("#options summary")
        page.fill("#option-count", "2")
        page.click("#run")
        wait_for_answer(page)
        code = "[...document.querySelectorAll('#answer img')].map(x => x.naturalWidth).join()"
        wait_until(page, f"{code} === '16,16'")
        assert '"create":"image"' in page.text_content("#curl")
        # The picture is created, so that a pasted one would have no effect.
        page.evaluate(GIVE, {"kind": "paste", "target": "body"})
        page.select_option("#create", "text")
        assert not page.is_visible("#input-text")
        assert "paste.png" not in page.text_content("#fields")
    with server_of(dxn.load(tmp_path / "codec")) as url, page_of(browser, url) as page:
        page.set_input_files("#input-image", tmp_path / "3.png")
        page.click("#run")
        page.wait_for_selector("#answer figure img")
        captions = page.eval_on_selector_all(
            "#answer figcaption", "all => all.map(x => x.innerText)"
        )
        assert captions == ["original", "decoded"]
