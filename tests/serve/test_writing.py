"""dxn serve: generated texts, as a whole and as they appear."""

import base64
import json
import time
from functools import partial

import numpy as np
import pytest
from helpers.runs import PLAIN, SMALL, train
from helpers.serving import client_of, error_of
from PIL import Image
from trained_runs import WORDS

import dxn
from dxn.models import make_sampler
from dxn.models.decoding.generation import Generation
from dxn.runs.predictor.writing import Text, Writer, Writing, decoder_after
from dxn.serve.answers import Refusal
from dxn.serve.command import read_examples
from dxn.serve.engine import Job
from dxn.serve.operations import WRITE, Operations

GREEDY = {"temperature": 0, "max_new": 12}


@pytest.fixture(scope="module")
def translator(trained_run):
    """A model that writes a text for a text. It is hardly trained, so that its texts are long."""
    return dxn.load(trained_run("pairs"))


@pytest.fixture(scope="module")
def language(trained_run):
    """A language model whose tokens are bytes, so that characters can be incomplete."""
    return dxn.load(trained_run("lines"))


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


def test_a_text_after_a_picture_is_that_of_the_model_in_python(tmp_path):
    picture = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    for i in range(40):
        Image.fromarray(np.roll(picture, i, 0)).save(tmp_path / f"{i}.png")
    rows = [f"{i}.png,{WORDS[i % 4]} no {i}" for i in range(40)]
    (tmp_path / "seen.csv").write_text("\n".join(["photo,caption", *rows]))
    options = [*SMALL, *PLAIN, "backbone.causal=true", "head=language", "report=false"]
    options += ["adapters=[text,image]", "adapters.image.image_size=32", "trainer.epochs=1"]
    train(tmp_path / "seen", f"data.path={tmp_path}/seen.csv", *options)
    model = dxn.load(tmp_path / "seen")
    content = (tmp_path / "3.png").read_bytes()
    file = {"base64": base64.b64encode(content).decode()}
    expected = [
        *model.write(inputs={"photo": content}, max_new=12),
        *model.write(inputs={"photo": content}, prompt="apple", max_new=12),
        *model.write(prompt="pear", max_new=12),
    ]
    body = {"inputs": [{"photo": file}, {"photo": file, "prompt": "apple"}, {"prompt": "pear"}]}
    with client_of(model) as client:
        answer = client.post("/generate", json={**body, **GREEDY})
        assert [each["generated"] for each in answer.json()["results"]] == expected
        facts = client.get("/model").json()
        assert [each["name"] for each in facts["inputs"]] == ["photo", "prompt"]
        path = {"inputs": [{"photo": str(tmp_path / "3.png")}]}
        assert "never opened" in error_of(client.post("/generate", json=path), 422)


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


def test_an_example_of_a_language_model_is_the_start_of_a_text(trained_run, language):
    run = trained_run("lines")
    (example, *_) = read_examples(str(run), language, 1, ())
    (text,) = example["texts"].values()
    assert len(text) <= 60
    assert f"{text} " in (run.parent / "lines.txt").read_text(encoding="utf-8")


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
    ({"temperature": -1}, "temperature: must be at least 0, got -1"),
    ({"temperature": 1e-40}, "temperature: must be 0 or at least"),
    ({"inputs": [{"prompt": "a" * 20_001}]}, "at most 20,000 characters"),
    ({"temperature": "hot"}, "temperature: must be a number"),
    ({"temperature": float("nan")}, "temperature: must be a finite number"),
    ({"top_k": 0}, "top_k: must be at least 1"),
    ({"top_p": 2}, "top_p: must be at most 1"),
    ({"max_new": 257}, "max_new: must be at most 256"),
    ({"seed": 2**80}, "seed: must be at most"),
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


def test_a_model_that_writes_without_a_chat_template_says_what_to_use(language, translator):
    body = {"messages": [{"role": "user", "content": "a"}], "prompt": "größe"}
    chat, completions = "/v1/chat/completions", "/v1/completions"
    with client_of(language) as client:
        assert f"use POST {completions}" in error_of(client.post(chat, json=body), 404)
        options = {"prompt": "größe", "max_tokens": 9, "temperature": 0}
        (choice,) = client.post(completions, json=options).json()["choices"]
        assert "größe" + choice["text"] == language.write(prompt="größe", max_new=9)[0]
    with client_of(translator) as client:
        for path in (chat, completions):
            assert "use POST /generate" in error_of(client.post(path, json=body), 404)
        assert client.post("/v1/embeddings", json={"input": "plum"}).status_code == 200


def test_an_unknown_key_that_is_no_text_is_refused(language):
    with client_of(language) as client:
        body = json.dumps({"inputs": [{"prompt": "a"}], "\ud800": 1})
        assert "there is no such key" in error_of(client.post("/generate", content=body), 400)


def test_a_wrong_sample_is_refused_before_the_stream_starts(translator):
    with client_of(translator) as client:
        body = {"inputs": [{"word": "a"}], "stream": True}
        assert "no such input" in error_of(client.post("/generate", json=body), 422)
        assert client.service.admitted == 0


def test_an_error_in_the_middle_is_the_last_event_of_a_stream(language, monkeypatch):
    with client_of(language) as client:
        monkeypatch.setattr(Text, "finish", lambda self, text: 1 / 0)
        events = events_of(client, {"inputs": [{"prompt": "apple"}], **GREEDY})
    assert events[-1]["error"]["type"] == "internal_error"


def test_a_stream_ends_when_its_time_is_over(language, monkeypatch):
    monkeypatch.setattr(Text, "add", slow(Text.add))
    with client_of(language, timeout=0.5) as client:
        body = {"inputs": [{"prompt": "apple"}], "max_new": 200}
        answer = client.post("/generate", json=body)
        assert answer.json()["error"]["type"] == "timeout"
        # The time of a stream begins again with each part.
        assert "generated" in events_of(client, {**body, "max_new": 20})[-1]
        monkeypatch.setattr(Text, "add", slow(Text.add, 0.7))
        events = events_of(client, body)
        assert events[-1]["error"]["type"] == "timeout"
        # The thread gives up, and answers the next request.
        monkeypatch.undo()
        time.sleep(0.7)
        answer = client.post("/generate", json={"inputs": [{"prompt": "a"}], "max_new": 2})
        assert answer.status_code == 200


def slow(call, seconds=0.05):
    def slowly(self, ids, decode):
        time.sleep(seconds)
        return call(self, ids, decode)

    return slowly


def test_rows_of_a_batch_have_their_own_sampler_and_may_end_early(language):
    """The batch gives the same texts as each row alone, also when other rows have ended."""
    writer = Writer(language.model, language.task)

    def texts():
        prompts = ["apple", "pear größe", "plum apple cherry"]
        settings = [(0, 0), (1.2, 3), (1.2, 4)]
        samplers = [partial(make_sampler, value, seed=seed) for value, seed in settings]
        pairs = zip(prompts, samplers, strict=True)
        return [Text(p, max_new=40, new_sampler=s) for p, s in pairs]

    together = writer.write(texts(), batch_size=3)
    assert together == writer.write(texts(), batch_size=1)


def test_a_sampled_text_is_that_of_the_model_in_python(language):
    options = {"max_new": 20, "temperature": 1.3, "top_k": 9, "seed": 5}
    with client_of(language) as client:
        body = {"inputs": [{"prompt": "größe"}, {"prompt": "apple"}], **options}
        answer = client.post("/generate", json=body).json()["results"]
    expected = language.write(prompt=["größe", "apple"], batch_size=1, **options)
    assert [each["generated"] for each in answer] == expected


def test_a_batch_that_nobody_waits_for_is_given_up(language):
    writer = Writer(language.model, language.task)
    assert writer.write([Text("apple", is_cancelled=True)], batch_size=1) == [""]


def test_a_second_attempt_gives_the_text_of_the_first(language):
    text = Text("apple", max_new=20, new_sampler=partial(make_sampler, 1.2, seed=3))
    writer = Writer(language.model, language.task)
    first = writer.write([text], batch_size=1)
    assert writer.write([text], batch_size=1) == first


def test_a_text_that_was_sent_in_part_is_not_generated_again(language):
    sent = []
    text = Text("apple", on_text=sent.append, text="apple")
    with pytest.raises(Refusal):
        Operations(language, batch_size=2)(WRITE, [Job(WRITE, [text], 1, None)])
    assert sent == []


def test_the_texts_of_a_large_request_begin_when_others_have_ended(language, monkeypatch):
    sizes = []
    step = Generation.step

    def counted(self):
        sizes.append(len(self.samples))
        step(self)

    monkeypatch.setattr(Generation, "step", counted)
    # The first token is chosen without a step.
    texts = [Text("a", max_new=n) for n in (2, 4, 3, 3, 1)]
    Operations(language, batch_size=2)(WRITE, [Job(WRITE, texts, 5, None)])
    assert [len(text.ids) for text in texts] == [2, 4, 3, 3, 1]
    # The third text joins the second one, and the last one ends with its first token.
    assert sizes == [2, 2, 2, 1, 1]


def test_a_prompt_whose_end_is_decoded_with_the_new_tokens_gives_the_same_text(language):
    writer = Writer(language.model, language.task)
    tokenizer = writer.tokenizer
    prompt = writer.encode(Text("größe 東京 " * 20))
    decode = decoder_after(tokenizer, prompt)
    assert decode(prompt[:9]) == tokenizer.decode([*prompt, *prompt[:9]])


def test_the_model_receives_only_the_end_of_a_long_prompt(language):
    writer = Writer(language.model, language.task)
    text = Text("größe " * 2000)
    text.prompt_ids = writer.encode(text)
    assert writer.begin([text]).longest == writer.language.max_len + 1


def test_the_answer_to_a_prompt_longer_than_the_model_reads_says_so(language):
    limit = Writer(language.model, language.task).language.max_len
    inputs = [{"prompt": "a" * (limit + 1)}, {"prompt": "a" * limit}]
    body = {"inputs": inputs, "temperature": 0, "max_new": 1}
    note = f"the prompt has {limit + 1} tokens, and the model reads at most {limit}"
    with client_of(language) as client:
        results = client.post("/generate", json=body).json()["results"]
        last = [event for event in events_of(client, body) if "generated" in event]
    assert results[0]["note"].startswith(note) and "note" not in results[1]
    assert {event["index"]: event.get("note") for event in last}[0] == results[0]["note"]
    with pytest.warns(UserWarning, match=f"^1 of 2 prompts are too long; prompt 1: {note}"):
        language.write(prompt=[each["prompt"] for each in inputs], max_new=1)


def settings_of(number):
    """Options of a text that differ from those of the others."""
    temperature, seed = [(0, 0), (1.2, 3), (0.8, 4)][number % 3]
    top_k, top_p = [(None, None), (7, None), (None, 0.9)][number // 2 % 3]
    make = partial(make_sampler, temperature, top_k, top_p, seed=seed)
    max_new = [9, 30, 300][number % 3]
    stops = [(), ("e",), ("no stop",)][number // 3 % 3]
    prompt = ["apple", "", "pear größe 東京 plum apple cherry", "größe"][number % 4]
    return {"prompt": prompt, "max_new": max_new, "new_sampler": make, "stops": stops}


def test_a_text_does_not_depend_on_those_that_it_joins(language):
    """Texts begin and end at any step, some beyond the context, and one is given up."""
    writer = Writer(language.model, language.task)
    assert writer.language.max_len < 300
    options = [settings_of(number) for number in range(12)]
    expected = []
    for each in options:
        text = Text(**each)
        writer.write([text], batch_size=1)
        expected.append((text.text, text.ids, text.is_stopped))
    writing = Writing(writer, batch_size=4)
    texts = [Text(**each) for each in options]
    left = Text("plum", max_new=50)
    writing.add(texts[:2])
    for number in range(10):
        for _ in range(number):
            writing.step()
        writing.add(texts[number + 2 : number + 3])
        if number == 3:
            writing.add([left])
        left.is_cancelled = bool(left.ids)
    while writing.is_running:
        assert len(writing.generation.samples if writing.generation else ()) <= 4
        writing.step()
    assert [(text.text, text.ids, text.is_stopped) for text in texts] == expected
    assert len(left.ids) < 50
