"""The report of a run and the comparison of runs, from the command line to the browser."""

import itertools
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.browser import wait_until
from helpers.data import EXAMPLES
from helpers.runs import PLAIN, SMALL, TINY_DIGITS, refused, train
from PIL import Image

from dxn.cli import main
from dxn.core.files import write_text
from dxn.report.examples import Budget, fragments
from dxn.report.run import MAX_CONFIG
from dxn.report.sides import marked, side_by_side
from dxn.tokenize import AudioAdapter
from dxn.viz import media as parts
from dxn.viz.drawers import Shown

WRITES_REPORTS = True  # see conftest.py
NASTY = "</script><script>alert('x')</script> & \"quoted\" <img src=x onerror=alert(1)>"
EPOCH = "trainer.epochs=1"
ONLY_IMAGE = ["adapters=[image]", "adapters.image.patch_size=8", "adapters.image.stride=null"]


class Page(HTMLParser):
    """The start tags, ids and visible text of a page."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.text, self.open = [], [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.text.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())

    @property
    def sections(self):
        return [attrs["id"] for attrs in self.all("section")]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A run on the built-in data: text, image and audio."""
    folder = tmp_path_factory.mktemp("digits") / "run"
    train(folder, *TINY_DIGITS, EPOCH)
    return folder


def table(path, rows=150):
    """A table with two imbalanced classes, one of which is a piece of HTML."""
    words = ["apple", "pear", "plum", "cherry"]
    lines = ["text,weight,label"]
    for i in range(rows):
        label = NASTY if i % 13 else "plain"
        quoted = label.replace('"', '""')
        weight = "" if i % 7 == 3 else f"{1.37 * i:.2f}"
        lines.append(f'"{words[i % 4]} {i} <b>bold</b>",{weight},"{quoted}"')
    write_text(path, "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """Two runs on the same table, with different options."""
    folder = tmp_path_factory.mktemp("reviews")
    path = table(folder / "reviews.csv")
    for name, options in (("a", ["data.text=text"]), ("b", [])):
        train(
            folder / name, f"data.path={path}", "data.target=label", *SMALL, *PLAIN, EPOCH, *options
        )
    return folder


def test_a_training_writes_a_report_with_all_parts(digits):
    page = Page(digits / "report.html")
    assert page.sections == [
        *("run", "data", "training", "results", "confusion", "probabilities"),
        *("examples", "attention", "environment"),
    ]
    metrics = json.loads((digits / "metrics.json").read_text())
    assert f"{metrics['test/accuracy']:.4f}" in page.words
    assert f"{metrics['test/accuracy[text+image]']:.4f}" in page.words
    assert "dxn train data.num_train=47" in page.words
    assert "test has only 17 rows" in page.words
    assert "torch 2." in page.words
    # Each of the examples has its text, picture and sound.
    assert page.all("img")
    assert page.all("audio")


def test_a_report_loads_nothing_from_elsewhere(digits):
    text = (digits / "report.html").read_text(encoding="utf-8")
    page = Page(digits / "report.html")
    for tag, attrs in page.tags:
        for name in ("src", "href", "xlink:href", "action"):
            value = attrs.get(name) or "data:"
            assert value.startswith(("data:", "#")), (tag, name, value[:80])
    policies = [attrs["content"] for attrs in page.all("meta") if "http-equiv" in attrs]
    assert "default-src 'none'" in policies[0]
    assert "url(" not in re.sub(r"url\(#", "", text)
    assert "@import" not in text
    assert len(text.encode()) < 5_000_000


def test_a_printed_report_is_light_and_has_all_pictures(browser, digits):
    with browser.new_context(color_scheme="dark") as context:
        page = context.new_page()
        page.goto((digits / "report.html").as_uri())
        page.emulate_media(media="print", color_scheme="dark")
        back = "getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'"
        wait_until(page, back)
        wait_until(page, "[...document.images].every(x => x.complete && x.naturalWidth > 0)")
        assert page.locator("nav").is_hidden()


def test_a_report_is_accessible(digits):
    page = Page(digits / "report.html")
    assert page.all("html")[0]["lang"] == "en"
    assert all(attrs.get("alt") for attrs in page.all("img"))
    assert all(attrs.get("aria-label") for attrs in page.all("audio"))
    assert all(attrs.get("aria-label") for attrs in page.all("svg"))
    scrolled = [attrs for attrs in page.all("div") if attrs.get("class") == "scroll"]
    assert scrolled
    assert all(attrs["tabindex"] == "0" and attrs["aria-label"] for attrs in scrolled)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs and "clip" not in attrs["id"]]
    targets = {attrs["href"][1:] for attrs in page.all("a")}
    assert targets <= set(ids)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_text_from_data_is_never_an_element(reviews):
    for path in (reviews / "a" / "report.html", reviews / "b" / "report.html"):
        page = Page(path)
        assert NASTY in "".join(page.text)
        scripts = [attrs["type"] for attrs in page.all("script")]
        assert set(scripts) == {"module", "application/json"}
        assert scripts.count("module") == 2
        assert not page.all("b")
        assert not any("onerror" in attrs for _, attrs in page.tags)


def test_a_report_warns_about_imbalance_and_counts_missing_values(reviews):
    words = Page(reviews / "b" / "report.html").words
    assert "the classes are imbalanced" in words
    assert "weight" in words
    assert re.search(r"train \d+ 0 weight \d+", words)


def test_report_writes_the_same_page_again(digits, tmp_path, capsys):
    run = shutil.copytree(digits, tmp_path / "run")
    (run / "report.html").unlink()
    assert main(["report", f"run={run}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"written: {run / 'report.html'}" in lines
    old, new = (
        (folder / "report.html").read_text(encoding="utf-8").replace(str(digits), str(run))
        for folder in (digits, run)
    )
    assert visible(new) == visible(old)
    old, new = (json.loads((folder / "scores.json").read_text()) for folder in (digits, run))
    assert old == new


def visible(html):
    """The text of a page without what the name of the run folder changes."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html.partition("Complete conf")[2]))


def test_a_report_without_its_data_keeps_the_figures(reviews, tmp_path, capsys):
    run = shutil.copytree(reviews / "b", tmp_path / "run")
    moved = (reviews / "reviews.csv").rename(reviews / "moved.csv")
    try:
        assert main(["report", f"run={run}"]) == 0
    finally:
        moved.rename(reviews / "reviews.csv")
    assert "warning: Single rows are missing" in capsys.readouterr().out
    page = Page(run / "report.html")
    assert "examples" not in page.sections
    assert "Single rows are missing, because the data cannot be read" in page.words
    old = json.loads((reviews / "b" / "scores.json").read_text())
    assert json.loads((run / "scores.json").read_text()) == old


def test_a_report_that_is_written_later_has_all_facts_of_the_training(reviews, tmp_path):
    run = shutil.copytree(reviews / "b", tmp_path / "run")
    for name in ("report.html", "scores.json"):
        (run / name).unlink()
    assert main(["report", f"run={run}"]) == 0
    old, new = (
        visible((folder / "report.html").read_text(encoding="utf-8"))
        for folder in (reviews / "b", run)
    )
    assert new == old
    assert json.loads((run / "scores.json").read_text())["values"]


def test_a_report_of_an_unfinished_run_says_so(reviews, tmp_path):
    run = shutil.copytree(reviews / "b", tmp_path / "run")
    (run / "metrics.json").unlink()
    assert main(["report", f"run={run}"]) == 0
    page = Page(run / "report.html")
    assert "The training has not finished" in page.words
    assert "training" in page.sections


def test_strange_values_in_the_log_of_a_run_are_left_out(reviews, tmp_path):
    run = shutil.copytree(reviews / "b", tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "epoch": 9, "validation/accuracy": "<b>1</b>"}\n')
    assert main(["report", f"run={run}"]) == 0
    assert not Page(run / "report.html").all("b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"test/accuracy": "good"}, "metrics.test/accuracy must be a number, got 'good'"),
        ({"data": {"rows": {"train": "x"}}}, "data.rows.train must be an integer, got 'x'"),
        ({"train_seconds": math.inf}, "train_seconds must be a finite number, got inf"),
        ({"references": "all"}, "references must be a list, got 'all'"),
        ([], "the content must be a mapping, got []"),
    ],
)
def test_a_damaged_record_is_refused(content, message, reviews, tmp_path, capsys):
    run = shutil.copytree(reviews / "b", tmp_path / "run")
    path = run / "metrics.json"
    changed = json.loads(path.read_text()) | content if content else content
    path.write_text(json.dumps(changed))
    for command in (["report", f"run={run}"], ["compare", f"run=[{run},{reviews / 'a'}]"]):
        assert refused(capsys, command) == [f"dxn: {path}: not valid: {message}"]


def test_an_ensemble_has_a_report_of_its_own(tmp_path):
    train(tmp_path / "run", *TINY_DIGITS, EPOCH, "adapters=[text]", "ensemble=2", *PLAIN)
    page = Page(tmp_path / "run" / "report.html")
    assert "mean of the members" in page.words
    assert "training" not in page.sections
    assert (tmp_path / "run" / "members" / "1" / "report.html").exists()


def test_report_false_writes_no_report(tmp_path, capsys):
    train(tmp_path / "run", *TINY_DIGITS, EPOCH, "adapters=[text]", "report=false")
    assert not (tmp_path / "run" / "report.html").exists()
    assert "report.html" not in capsys.readouterr().out


def test_a_failure_to_draw_does_not_lose_the_run(tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise ZeroDivisionError("no\nroom")

    monkeypatch.setattr("dxn.report.run.write_report", fail)
    metrics = train(tmp_path / "run", *TINY_DIGITS, EPOCH, "adapters=[text]")
    assert "test/accuracy" in metrics
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "is not written" in x]
    assert line.startswith("warning: report.html is not written (ZeroDivisionError: no room)")
    assert f"dxn report run={tmp_path / 'run'} tries again" in line


@pytest.mark.parametrize(
    ("kind", "head", "expected"),
    [
        (lambda i: i % 13, "regress", {"results", "examples"}),
        (lambda i: "red|round" if i % 2 else "small|round", "multilabel", {"probabilities"}),
        (lambda i: f"{i} words of a text {i}", "generate", {"texts", "attention"}),
    ],
    ids=["numbers", "labels", "texts"],
)
def test_every_kind_of_target_has_a_report(kind, head, expected, tmp_path):
    rows = [f"word{i % 5} number {i},{kind(i)}" for i in range(150)]
    write_text(tmp_path / "t.csv", "\n".join(["text,target", *rows]) + "\n")
    options = [f"data.path={tmp_path / 't.csv'}", "data.target=target", *SMALL, EPOCH]
    train(tmp_path / "run", *options, f"head={head}", *PLAIN)
    page = Page(tmp_path / "run" / "report.html")
    assert expected <= set(page.sections)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert metrics["intervals"]["all"]
    assert len(scores["values"]) == metrics["evaluated"]


@pytest.mark.parametrize(
    ("data", "tag"),
    [
        (["data=digits", *ONLY_IMAGE], "img"),
        (["data=digits", "adapters=[audio]"], "audio"),
        pytest.param(
            [EXAMPLES, "data=waves", "adapters=[series]"], "img", marks=pytest.mark.exhaustive
        ),
        pytest.param(
            [EXAMPLES, "data=motion", "data.size=16", "adapters.video.patch_size=8"],
            "video",
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["pictures", "sounds", "series", "clips"],
)
def test_what_a_codec_decodes_is_beside_the_original(data, tag, tmp_path):
    sizes = ["data.num_train=23", "data.num_validation=11", "data.num_test=13", EPOCH]
    train(tmp_path, *data, *sizes, *SMALL, "head=codec", "head.levels=[5,5,5]", "head.stages=2")
    page = Page(tmp_path / "report.html")
    assert len(page.all(tag)) == 2 * 9
    ratios = re.findall(r"(psnr|snr) (-?[\d.]+(?:e-\d+)?)", page.words.partition("Worst")[2])
    assert len(ratios) == 9
    values = [float(value) for _, value in ratios]
    assert max(values[:3]) <= min(values[3:6]) and max(values[3:6]) <= min(values[6:])
    assert "Codes of" in page.words
    assert "Use of the codes" in page.words


@pytest.mark.parametrize(("rows", "is_short"), [(3, False), (8, True)])
def test_created_rows_that_are_left_out_are_mentioned(rows, is_short, monkeypatch):
    texts = [Shown("text", "a red one", None) for _ in range(rows)]
    seconds = iter(range(0, 1000, 40))  # each look at the clock is 40 s after the last one
    monkeypatch.setattr("dxn.report.sides.CREATED_SECONDS", 100.0)
    monkeypatch.setattr("dxn.report.sides.time", SimpleNamespace(monotonic=seconds.__next__))
    opened = SimpleNamespace(
        present={name: np.ones(rows, bool) for name in ("first", "second")},
        origin=[f"row {i}" for i in range(rows)],
    )
    evidence = SimpleNamespace(
        task=SimpleNamespace(creates=["first", "second"]),
        answered=None,
        shown=lambda row: {"first": texts[row], "second": texts[row]},
        created=lambda name, chosen: [texts[row] for row in chosen],
    )
    last = SimpleNamespace(
        predictions=SimpleNamespace(predicted=[None] * rows),
        samples=SimpleNamespace(inputs=["first", "second"], opened=opened),
    )
    section = side_by_side(evidence, last, None, Budget())
    assert [len(part) for _, part in section["groups"]] == [min(rows, 4)] * 2
    assert ("The other rows would need more than" in section["about"]) is is_short


def test_clips_and_series_are_shown(tmp_path):
    sizes = ["data.num_train=23", "data.num_validation=11", "data.num_test=13", EPOCH]
    small = ["dim=16", "backbone.depth=1", "backbone.num_heads=2", "trainer.precision=float32"]
    clip = [EXAMPLES, "data=motion", "data.size=16", "adapters.video.patch_size=8"]
    train(tmp_path / "clips", *clip, *sizes, *small)
    page = Page(tmp_path / "clips" / "report.html")
    assert page.all("video")[0]["src"].startswith("data:video/mp4;base64,")
    assert not any("autoplay" in attrs for attrs in page.all("video"))
    train(tmp_path / "series", EXAMPLES, "data=waves", *sizes, *small)
    page = Page(tmp_path / "series" / "report.html")
    assert "time steps" in page.all("img")[0]["alt"]


# Comparison


def test_compare_prints_metrics_options_and_a_paired_test(reviews, capsys):
    assert main(["compare", f"run=[{reviews / 'a'},{reviews / 'b'}]"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"accuracy .* 0\.\d+ \(0\.\d+ to [01]\.?\d*\)", printed)
    assert re.search(
        r"^b .* a: the mean of \"correct\" differs by .* common rows\.$", printed, re.M
    )
    assert "data.text" in printed
    assert "trainer.epochs" not in printed
    # Simple methods stand beside both.
    assert "accuracy, for comparison" in printed
    assert re.search(r"always .* 0\.\d+ .* 0\.\d+", printed)


def test_compare_says_that_tasks_and_splits_differ(reviews, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(reviews / "a", "a")
    shutil.copytree(reviews / "b", "b")
    results = json.loads(Path("b/metrics.json").read_text())
    Path("b/metrics.json").write_text(json.dumps({**results, "task": "regress", "split": "train"}))
    scores = json.loads(Path("b/scores.json").read_text())
    scores["values"] = {key[::-1]: value for key, value in scores["values"].items()}
    Path("b/scores.json").write_text(json.dumps(scores))
    # No input is a sound, so its adapter has no effect.
    config = Path("b/.hydra/config.yaml")
    config.write_text(config.read_text().replace("max_len: 1024", "max_len: 512"))
    assert main(["compare", "run=[a,b]"]) == 0
    printed = capsys.readouterr().out
    assert "adapters.audio" not in printed
    assert "no paired test, because the runs have evaluated 0 common rows" in printed
    assert "note: the runs have different tasks" in printed
    assert "note: the runs were evaluated on different splits" in printed


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ("[a]", "run: must be at least two run folders, got 1; set run=[A,B]"),
        ("[a,a]", "run: the run folders must be different; remove the repeated one"),
        ("[a,missing]", "run: folder not found: missing"),
        ("[a,a/model]", "run: a/model: not a run folder, it has no .hydra/config.yaml"),
        ("[a,old]", "run: old: has no metrics.json, because its training has not finished"),
        ("[a,bad]", "bad/metrics.json: not valid: split is missing"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(runs, message, reviews, monkeypatch, capsys):
    monkeypatch.chdir(reviews)
    for name in ("old", "bad"):
        if not (reviews / name).exists():
            shutil.copytree(reviews / "b", reviews / name)
    (reviews / "old" / "metrics.json").unlink(missing_ok=True)
    (reviews / "bad" / "metrics.json").write_text("{}")
    assert refused(capsys, ["compare", f"run={runs}"])[0].startswith(f"dxn: {message}")


def test_other_commands_refuse_a_list_of_runs(capsys):
    (line,) = refused(capsys, ["predict", "run=[a,b]", "input.text=x"])
    assert line == "dxn: run: must be a string or null, got ['a', 'b']"


def test_report_needs_a_run(digits, capsys):
    (line,) = refused(capsys, ["report"])
    assert line == "dxn: run: set run=RUN to the run folder of a trained model"
    (line,) = refused(capsys, ["report", f"run={digits / 'model'}"])
    assert "not a run folder" in line


# Parts


def test_a_long_text_is_folded_and_then_cut():
    html = parts.paragraph("#" * 10_000)
    assert html.count("#") == parts.MAX_TEXT
    assert "6,000 more characters" in html
    assert "<details>" not in parts.paragraph("short")


def test_a_large_picture_is_reduced_and_a_small_one_is_exact():
    noise = np.random.default_rng(0).integers(0, 255, (900, 1200, 3), dtype=np.uint8)
    assert len(parts.picture(noise, "noise")) < 120_000
    small = noise[:11, :13]
    html = parts.picture(small, "noise")
    assert 'class="picture pixels"' in html
    assert parts.reduced(html.split('"')[3]) == html.split('"')[3]


def test_a_long_recording_is_cut_and_says_so():
    html = parts.player(np.zeros(44_100 * 20, np.float32), 44_100, "a <call>")
    assert "first 8 of 20 seconds" in html
    assert "a &lt;call&gt;" in html
    assert len(html) < 400_000
    assert "first 8 of 125 seconds" in parts.player(np.zeros(1_000_000, np.float32), 8000, "call")
    assert "seconds" not in parts.player(np.zeros(44_100, np.float32), 44_100, "call")


def test_the_sounds_of_a_report_have_a_limit():
    noise = np.random.default_rng(0).uniform(-1, 1, 16_000 * 12).astype(np.float32)
    html = parts.player(noise, 16_000, "noise", max_bytes=32_000)
    assert "first 1 of 12 seconds" in html
    tokenizer = AudioAdapter(8, sample_rate=16_000).tokenizer
    shown = {"sound": Shown("audio", torch.from_numpy(noise), tokenizer)}
    ((_, html),) = fragments(shown, Budget())
    # A page has up to 18 of them, beside a picture each.
    assert len(html) < 2_000_000 / 18


def test_the_budget_replaces_what_does_not_fit():
    budget = Budget(10)
    assert budget.spend("<b>1</b>") == "<b>1</b>"
    assert "left out: the report is limited to 5 MB" in budget.spend("<b>2</b>")


def test_words_that_the_reference_lacks_are_marked():
    assert str(marked("the <red> dog", "the dog")) == "the <mark>&lt;red&gt;</mark> dog"


def test_a_page_of_large_pictures_stays_below_its_limit(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(12):
        folder = tmp_path / "photos" / ("cat" if i % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (400, 500, 3), dtype=np.uint8)).save(
            folder / f"{i}.png"
        )
    options = [
        "adapters.image.image_size=32",
        "adapters.image.patch_size=16",
        *SMALL,
        *PLAIN,
        EPOCH,
    ]
    train(tmp_path / "run", f"data.path={tmp_path / 'photos'}", *options)
    assert (tmp_path / "run" / "report.html").stat().st_size < 5_000_000
    assert MAX_CONFIG < 5_000_000


# In a browser


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
def test_a_report_works_in_a_browser(scheme, width, digits, reviews, browser):
    for path in (digits / "report.html", reviews / "b" / "report.html"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        try_page(context.new_page(), path, width)
        context.close()


def try_page(page, path, width):
    """Open a report, move its slider with the keyboard, and measure its contrasts."""
    problems, requests = [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    # Nothing is wider than the screen; wide tables scroll in their own box.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not [url for url in requests if not url.startswith(("data:", path.as_uri()))]
    assert page.locator("dxn-attention").first.locator(".legend").count() >= 1
    output = page.locator(".slider output").first
    before = output.inner_text()
    page.locator(".slider input").first.press("End")
    assert output.inner_text() != before
    assert output.inner_text().startswith("at 0.99: ")
    ink, paper, muted = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('.note')).color]"
    )
    assert contrast(ink, paper) > 7
    assert contrast(muted, paper) > 4.5
    assert problems == []


def contrast(first, second):
    """The contrast ratio of two colors (WCAG 2.2)."""
    lights = []
    for color in (first, second):
        channels = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        lights.append(float(np.dot(linear, (0.2126, 0.7152, 0.0722))))
    return (max(lights) + 0.05) / (min(lights) + 0.05)
