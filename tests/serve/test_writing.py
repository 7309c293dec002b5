"""dxn serve: generated texts, as a whole and as they appear."""

import json
import time
from functools import partial

import pytest
from helpers.runs import PLAIN, SMALL, TEXT, train
from helpers.serving import client_of, error_of

import dxn
from dxn.models import make_sampler
from dxn.runs.predictor.vocabulary import vocabulary_adapter
from dxn.serve.engine import Job
from dxn.serve.operations import WRITE, Operations
from dxn.serve.refusal import Refusal
from dxn.serve.texts import BatchSampler, Cancelled, TextRow, Writer, _decoder, _ids

WORDS = ["apple", "pear", "plum", "cherry"]
greedy_sampler = partial(make_sampler, 0)
GREEDY = {"temperature": 0, "max_new": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("writing")


@pytest.fixture(scope="module")
def translator(folder):
    """A model that writes a text for a text. It is hardly trained, so that its texts are long."""
    rows = [f"{WORDS[i % 4]} number {i},{WORDS[i // 4 % 4]} no {i}" for i in range(40)]
    (folder / "pairs.csv").write_text("\n".join(["text,written", *rows]))
    options = [*SMALL, *PLAIN, *TEXT, "head=generate", "trainer.epochs=1", "report=false"]
    train(folder / "pairs", f"data.path={folder}/pairs.csv", "target=written", *options)
    return dxn.load(folder / "pairs")


@pytest.fixture(scope="module")
def language(folder):
    """A language model whose tokens are bytes, so that characters can be incomplete."""
    lines = [f"{WORDS[i % 4]} größe {WORDS[i // 4 % 4]} 東京" for i in range(60)]
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    options = [*SMALL, *PLAIN, "adapters=[text]", "backbone.causal=true", "head=language"]
    options += ["trainer.epochs=1", "adapters.text.vocab_size=270", "report=false"]
    train(folder / "lines", f"data.path={folder}/lines.txt", *options)
    return dxn.load(folder / "lines")


def events_of(client, body):
    """The events of a stream."""
    with client.stream("POST", "/generate", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_text_for_a_sample_is_that_of_the_model_in_python(translator):
    samples = [{"text": "apple number 3"}, {"text": "plum"}]
    expected = translator.write(inputs=samples, max_new=12)
    with client_of(translator) as client:
        answer = client.post("/generate", json={"inputs": samples, **GREEDY})
        assert [each["generated"] for each in answer.json()["results"]] == expected
        assert client.get("/model").json()["generates"]
        # A prediction is the result of beam search.
        answer = client.post("/predict", json={"inputs": samples})
        assert answer.json()["results"] == translator.predict_many(samples)


def test_a_continued_prompt_is_that_of_the_model_in_python(language):
    prompts = ["apple", "größe 東", "a b c d e"]
    expected = language.write(prompt=prompts, max_new=12)
    with client_of(language) as client:
        body = {"inputs": [{"prompt": prompt} for prompt in prompts], **GREEDY}
        answer = client.post("/generate", json=body)
        assert [each["generated"] for each in answer.json()["results"]] == expected
        facts = client.get("/model").json()
        assert [each["name"] for each in facts["inputs"]] == ["prompt"]
        error_of(client.post("/predict", json=body), 404)


@pytest.mark.parametrize("temperature", [0, 1.3])
def test_the_parts_of_a_stream_add_up_to_the_texts(language, temperature):
    body = {"inputs": [{"prompt": "größe"}, {"prompt": "apple 東"}], "max_new": 20}
    body["temperature"] = temperature
    with client_of(language) as client:
        whole = client.post("/generate", json=body).json()["results"]
        events = events_of(client, body)
    for index, result in enumerate(whole):
        own = [event for event in events if event["index"] == index]
        assert own[-1] == {"index": index, "generated": result["generated"]}
        assert "".join(event["delta"] for event in own[:-1]) == result["generated"]
        assert len(own) > 2


def test_the_stream_of_a_translation_ends_with_its_text(translator):
    sample = {"text": "apple number 3"}
    with client_of(translator) as client:
        events = events_of(client, {"inputs": sample, **GREEDY})
    assert events[-1]["generated"] == translator.write(inputs=sample, max_new=12)[0]


def test_the_same_seed_gives_the_same_text_and_another_seed_another_one(language):
    with client_of(language) as client:
        body = {"inputs": [{"prompt": "apple"}] * 2, "max_new": 30, "temperature": 1.5}
        texts = [client.post("/generate", json={**body, "seed": s}).json() for s in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    first, second = texts[0]["results"]
    assert first != second


WRONG = [
    ({"temperature": -1}, "temperature: must be above 0"),
    ({"temperature": 1e-40}, "temperature: must be 0 or at least"),
    ({"inputs": [{"prompt": "a" * 20_001}]}, "at most 20,000 characters"),
    ({"temperature": "hot"}, "temperature: must be a number"),
    ({"temperature": float("nan")}, "temperature: must be a number"),
    ({"top_k": 0}, "top_k: must be an integer"),
    ({"top_p": 2}, "top_p: must be above 0"),
    ({"max_new": 201}, "max_new: must be an integer (1 to 200)"),
    ({"seed": 2**80}, "seed: must be an integer"),
    ({"stream": 1}, "stream: must be true or false"),
    ({"inputs": [{"text": "a"}]}, 'send {"prompt": "..."}'),
    ({"inputs": [{"prompt": 3}]}, 'send {"prompt": "..."}'),
    ({"inputs": [{"prompt": "\ud800"}]}, "valid Unicode"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_wrong_option_of_a_generation_is_refused(language, change, message):
    with client_of(language) as client:
        body = json.dumps({"inputs": [{"prompt": "a"}], **change})
        assert message in error_of(client.post("/generate", content=body), 422)


def test_a_wrong_sample_is_refused_before_the_stream_starts(translator):
    with client_of(translator) as client:
        body = {"inputs": [{"word": "a"}], "stream": True}
        assert "no such input" in error_of(client.post("/generate", json=body), 422)
        assert client.service.admitted == 0


def test_an_error_in_the_middle_is_the_last_event_of_a_stream(language, monkeypatch):
    with client_of(language) as client:
        monkeypatch.setattr(TextRow, "finish", lambda row, text: 1 / 0)
        events = events_of(client, {"inputs": [{"prompt": "apple"}], **GREEDY})
    assert events[-1]["error"]["type"] == "internal_error"


def test_a_stream_ends_when_its_time_is_over(language, monkeypatch):
    monkeypatch.setattr("dxn.serve.texts.BatchSampler.__call__", slow(BatchSampler.__call__))
    with client_of(language, timeout=0.5) as client:
        events = events_of(client, {"inputs": [{"prompt": "apple"}], "max_new": 200})
        assert events[-1]["error"]["type"] == "timeout"
        # The thread gives up, and answers the next request.
        monkeypatch.undo()
        answer = client.post("/generate", json={"inputs": [{"prompt": "a"}], "max_new": 2})
        assert answer.status_code == 200


def slow(call):
    def slowly(self, log_probs):
        time.sleep(0.05)
        return call(self, log_probs)

    return slowly


def test_rows_of_a_batch_have_their_own_sampler_and_may_end_early(language):
    """The batch gives the same texts as each row alone, also when other rows have ended."""
    writer = Writer(language)

    def rows():
        prompts = ["apple", "pear größe", "plum apple cherry"]
        settings = [(0, 0), (1.2, 3), (1.2, 4)]
        samplers = [partial(make_sampler, value, seed=seed) for value, seed in settings]
        return [TextRow(None, p, s, 40) for p, s in zip(prompts, samplers, strict=True)]

    together = rows()
    writer.write(together)
    alone = rows()
    for row in alone:
        writer.write([row])
    assert [row.text for row in together] == [row.text for row in alone]


def test_a_batch_that_nobody_waits_for_is_given_up(language):
    rows = [TextRow(None, "apple", greedy_sampler, 50, is_cancelled=True)]
    Writer(language).write(rows)
    assert rows[0].text == ""


def test_a_second_attempt_gives_the_text_of_the_first(language):
    row = TextRow(None, "apple", partial(make_sampler, 1.2, seed=3), 20)
    writer = Writer(language)
    writer.write([row])
    first = row.text
    writer.write([row])
    assert row.text == first


def test_a_text_that_was_sent_in_part_is_not_generated_again(language):
    sent = []
    row = TextRow(None, "apple", greedy_sampler, 5, sent.append, text="apple")
    with pytest.raises(Refusal):
        Writer(language).write([row])
    assert sent == []


def test_the_texts_of_a_large_request_are_generated_in_batches(language, monkeypatch):
    sizes = []
    monkeypatch.setattr(Writer, "write", lambda self, rows: sizes.append(len(rows)))
    rows = [TextRow(None, "a", greedy_sampler, 2) for _ in range(5)]
    Operations(language, batch_size=2)(WRITE, [Job(WRITE, rows, 5, None)])
    assert sizes == [2, 2, 1]


def test_a_prompt_whose_end_is_decoded_with_the_new_tokens_gives_the_same_text(language):
    tokenizer = vocabulary_adapter(language.adapters, None).tokenizer.vocabulary
    prompt = _ids(tokenizer, "größe 東京 " * 20)
    decode = _decoder(tokenizer, prompt)
    assert decode(prompt[:9]) == tokenizer.decode([*prompt, *prompt[:9]])


def test_the_model_receives_only_the_end_of_a_long_prompt(language, monkeypatch):
    writer = Writer(language)
    shapes = []

    def record(*args, prompt, **options):
        shapes.append(prompt.shape[1])
        raise Cancelled

    monkeypatch.setattr("dxn.serve.texts.generate", record)
    writer.write([TextRow(None, "größe " * 2000, greedy_sampler, 2)])
    assert shapes == [writer.language.max_len + 1]
