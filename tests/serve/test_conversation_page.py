"""The page of dxn serve for a model of conversations."""

import json
import re
import time

import httpx
import pytest
from helpers.browser import page_of, picture, wait_for_count, wait_for_picture
from helpers.runs import PLAIN, SMALL, train
from helpers.serving import client_of, server_of
from PIL import Image

import dxn
from dxn.runs.predictor.writing import Text, Writer
from dxn.serve.command import read_examples
from dxn.serve.conversation import example_messages, has_conversation_page

REQUEST = "**/v1/chat/completions"
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of conversations about pictures. It is hardly trained, so it writes much."""
    folder = tmp_path_factory.mktemp("chats")
    rows = []
    for i in range(40):
        Image.new("RGB", (16, 16), (6 * i, 30, 30)).save(folder / f"{i}.png")
        question = [{"type": "image", "path": f"{i}.png"}, {"type": "text", "text": f"No {i}?"}]
        contents = [("user", question), ("assistant", f"größe-{i}-apple"), ("user", "Sure?")]
        turns = [{"role": role, "content": content} for role, content in contents]
        turns.append({"from": "gpt", "value": f"yes-{i}-apple"})
        rows.append(json.dumps({"messages": [SYSTEM, *turns]}))
    (folder / "chats.jsonl").write_text("\n".join(rows), encoding="utf-8")
    options = [*SMALL, *PLAIN, "head=language", "backbone.causal=true", "trainer.epochs=2"]
    # Tokens are bytes, so that an empty answer is improbable.
    options += ["adapters.text.vocab_size=272"]
    train(folder / "run", f"data.path={folder}/chats.jsonl", *options, "report=false")
    return folder / "run"


@pytest.fixture(scope="module")
def model(folder):
    return dxn.load(folder)


@pytest.fixture(scope="module")
def url(folder, model):
    with server_of(model, examples=read_examples(str(folder), model, 2, ()), max_new=12) as url:
        yield url


def wait_for_answer(page):
    page.wait_for_selector("#stop[hidden]", state="attached")
    assert page.locator("#problem").is_hidden(), page.locator("#problem").inner_text()


def ask(page, text):
    """Send a message, and return the body of the request."""
    page.fill("#question", text)
    with page.expect_request(REQUEST) as sent:
        page.press("#question", "Enter")
    wait_for_answer(page)
    return sent.value.post_data_json


def answers_of(page):
    return page.locator(".turn.assistant .text").all_text_contents()


def test_only_a_model_of_conversations_has_the_page_of_conversations(model, trained_run):
    with client_of(model) as client:
        page = client.get("/").text
        for part in ('id="log"', 'role="log"', 'aria-live="polite"', 'id="system"', 'id="stop"'):
            assert part in page
    with client_of(dxn.load(trained_run("lines"))) as client:
        assert 'id="log"' not in client.get("/").text
        assert 'id="fields"' in client.get("/").text


def test_an_example_has_the_turns_before_its_last_answer(folder, model):
    assert has_conversation_page(model, Writer(model.model, model.task))
    example = read_examples(str(folder), model, 1, ())[0]
    system, question, answer, last = example["messages"]
    assert system == SYSTEM
    assert question["content"][0] == {"type": "image", "input": "image"}
    assert answer["content"].startswith("größe-")
    assert last == {"role": "user", "content": "Sure?"}
    assert example["target"].startswith("yes-")
    assert example["files"]["image"].startswith(b"\x89PNG")


def test_a_file_of_a_column_is_part_of_the_first_question():
    cell = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "A cup."}]
    messages, target = example_messages(cell, {"image": "photo"}, 100)
    parts = [{"type": "image", "input": "photo"}, {"type": "text", "text": "What?"}]
    assert messages == [{"role": "user", "content": parts}]
    assert target == "A cup."


@pytest.mark.parametrize(
    "cell",
    [
        "no conversation",
        [{"role": "user", "content": "no answer"}],
        [{"role": "assistant", "content": "no question"}],
        [{"role": "user", "content": "x" * 100}, {"role": "assistant", "content": "too long"}],
        [
            {"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "?"}]},
            {"role": "assistant", "content": "a sound that is too large"},
        ],
    ],
)
def test_other_rows_are_no_examples(cell):
    assert example_messages(cell, {}, 100) is None


def test_the_whole_conversation_is_sent_with_the_system_text_and_options(browser, url):
    with page_of(browser, url) as page:
        page.click("#options summary")
        page.get_by_label("System text").fill("Be brief.")
        page.get_by_label("temperature").fill("0")
        page.fill("#question", "one")
        page.press("#question", "Shift+Enter")
        page.keyboard.type("two")
        assert answers_of(page) == []
        with page.expect_request(REQUEST) as sent:
            page.press("#question", "Enter")
        wait_for_answer(page)
        first = sent.value.post_data_json
        question = {"role": "user", "content": "one\ntwo"}
        assert first == {"messages": [SYSTEM, question], "temperature": 0, "stream": True}
        second = ask(page, "three")["messages"]
        answer = {"role": "assistant", "content": answers_of(page)[0]}
        assert second == [SYSTEM, question, answer, {"role": "user", "content": "three"}]
        # The page shows what the server answers.
        page.click("#code summary")
        assert page.locator("#curl").inner_text().startswith(f"curl {url}/v1/chat/completions")
        sent = {"messages": second, "temperature": 0}
        written = httpx.post(f"{url}/v1/chat/completions", json=sent, timeout=30).json()
        assert answers_of(page)[1] == written["choices"][0]["message"]["content"]
        page.get_by_role("button", name="New conversation").click()
        assert page.locator(".turn").count() == 0
        assert ask(page, "four")["messages"] == [SYSTEM, {"role": "user", "content": "four"}]


def test_a_picture_is_part_of_its_message_and_sent_with_the_later_ones(browser, url):
    with page_of(browser, url) as page:
        page.set_input_files("#fields input[type=file]", picture())
        file, text = ask(page, "What is this?")["messages"][0]["content"]
        assert file["type"] == "image" and file["url"].startswith("data:image/png;base64,")
        assert text == {"type": "text", "text": "What is this?"}
        wait_for_picture(page, "#log img", 30)
        # A conversation can have one picture.
        assert page.locator("#fields input[type=file]").is_hidden()
        assert ask(page, "Sure?")["messages"][0]["content"] == [file, text]
        page.click("#new")
        assert page.locator("#fields input[type=file]").is_visible()
        assert page.locator("#fields img").count() == 0


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_an_example_is_shown_as_turns_and_its_last_question_is_asked(browser, url, scheme, width):
    size = {"width": width, "height": 800}
    with page_of(browser, url, color_scheme=scheme, viewport=size) as page:
        addresses = []
        page.on("request", lambda request: addresses.append(request.url))
        page.reload()
        page.locator(".example").first.wait_for()
        lines = page.locator(".example").first.locator(".line").all_text_contents()
        assert lines[0] == "System: Be brief." and re.match(r"You: (\[image\] )?No ", lines[1])
        wait_for_picture(page, ".example img.thumbnail", 16)
        page.locator(".example img.thumbnail").first.wait_for()
        assert lines[-1].startswith("Model: yes-")
        page.locator(".example").first.click()
        page.locator(".turn").nth(3).wait_for()
        wait_for_answer(page)
        assert page.locator("#system").input_value() == "Be brief."
        assert page.locator(".turn").count() == 4
        wait_for_picture(page, "#log img", 16)
        assert "Answer in the data: yes-" in page.locator(".turn").last.inner_text()
        assert page.locator(".example").first.is_hidden()
        # Nothing is wider than the window, and nothing comes from another server.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert all(address.startswith((url, "data:", "blob:")) for address in addresses)
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(255, 255, 255)") == (scheme == "light")


def test_the_last_question_is_answered_again(browser, url):
    with page_of(browser, url) as page:
        ask(page, "one")
        ask(page, "two")
        again = page.get_by_role("button", name="Write again")
        again.wait_for()
        assert again.count() == 1
        first = answers_of(page)
        with page.expect_request(REQUEST) as sent:
            again.click()
        wait_for_count(page, ".turn", 4)
        wait_for_answer(page)
        again.wait_for()
        contents = [message["content"] for message in sent.value.post_data_json["messages"]]
        assert contents == ["one", first[0], "two"]
        assert answers_of(page)[0] == first[0] and len(answers_of(page)) == 2
        # The new answer has taken the place of the old one.
        messages = ask(page, "three")["messages"]
        second = answers_of(page)[1]
        assert [m["content"] for m in messages] == ["one", first[0], "two", second, "three"]


def test_without_another_answer_the_old_one_stays(browser, url):
    with browser.new_context() as context:  # the refused request is an error in the console
        page = context.new_page()
        page.goto(url)
        ask(page, "one")
        first = answers_of(page)
        refusal = {"error": {"message": "the server is busy"}}
        page.route(REQUEST, lambda route: route.fulfill(status=503, json=refusal))
        page.fill("#question", "a draft")
        page.get_by_role("button", name="Write again").click()
        page.get_by_text("the server is busy").wait_for()
        assert answers_of(page) == first
        assert page.locator("#question").input_value() == "a draft"
        page.unroute(REQUEST)
        contents = [message["content"] for message in ask(page, "two")["messages"]]
        assert contents == ["one", first[0], "two"]


def test_an_answer_is_copied(browser, url):
    permissions = ["clipboard-read", "clipboard-write"]
    with page_of(browser, url, permissions=permissions) as page:
        ask(page, "<b>one</b>")
        assert page.locator(".turn b").count() == 0
        page.get_by_role("button", name="Copy").click()
        page.get_by_role("button", name="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == answers_of(page)[0]


def test_stop_ends_the_generation_and_keeps_what_is_written(browser, model, monkeypatch):
    add = Text.add
    counts = []

    def slowly(self, ids, decode):
        time.sleep(0.03)
        counts.append(len(ids))
        return add(self, ids, decode)

    monkeypatch.setattr(Text, "add", slowly)
    with server_of(model, max_new=200) as url, page_of(browser, url) as page:
        page.fill("#question", "one")
        page.press("#question", "Enter")
        page.locator(".turn.assistant .text", has_text=re.compile(r"\S")).wait_for()
        assert page.locator(".turn.assistant").get_attribute("aria-busy") == "true"
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("Stopped.").wait_for()
        wait_for_answer(page)
        count = len(counts)
        monkeypatch.setattr(Text, "add", add)
        written = answers_of(page)[0]
        messages = ask(page, "two")["messages"]
        assert messages[1] == {"role": "assistant", "content": written}
    assert 0 < count < 100


def test_a_refused_question_goes_back_to_its_field(browser, url):
    with browser.new_context() as context:  # the refused request is an error in the console
        page = context.new_page()
        page.goto(url)
        page.click("#options summary")
        page.get_by_label("max_tokens").fill("100000")
        page.fill("#question", "one")
        page.press("#question", "Enter")
        page.wait_for_selector("#problem:not([hidden])")
        assert "max_tokens: must be at most" in page.locator("#problem").inner_text()
        assert page.locator("#question").input_value() == "one"
        assert page.locator(".turn").count() == 0
