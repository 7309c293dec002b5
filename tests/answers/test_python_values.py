"""What Python programs pass to a model and to an adapter."""

import numpy as np
import pandas as pd
import pytest
import soundfile
import torch
from helpers.runs import PLAIN, SMALL, train
from PIL import Image

import dxn
from dxn.core.errors import UserError
from dxn.tokenize import (
    AudioAdapter,
    CategoryAdapter,
    DateAdapter,
    ImageAdapter,
    NumberAdapter,
    SeriesAdapter,
    TextAdapter,
)

OPTIONS = [*SMALL, *PLAIN, "trainer.epochs=1", "report=false", "target=label"]
TEXTS = ["fine film", "dull film", "a film"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A model with one input, and a model with two."""
    folder = tmp_path_factory.mktemp("values")
    rows = [(f"{['fine', 'dull'][i % 2]} film {i}", i % 7 + 0.5, "ab"[i % 2]) for i in range(40)]
    frame = pd.DataFrame(rows, columns=["review", "stars", "label"])
    frame.to_csv(folder / "two.csv", index=False)
    frame.drop(columns="stars").to_csv(folder / "one.csv", index=False)
    for name in ("one", "two"):
        train(folder / name, str(folder / f"{name}.csv"), *OPTIONS)
    return dxn.load(folder / "one"), dxn.load(folder / "two")


def test_every_form_of_the_same_texts_has_the_same_answers(texts):
    model, _ = texts
    expected = [model.predict(review=text) for text in TEXTS]
    for answers in (model.predict(TEXTS), model.predict([{"review": text} for text in TEXTS])):
        # Batches of another size change the last digits.
        for answer, alone in zip(answers, expected, strict=True):
            assert answer["prediction"] == alone["prediction"]
            assert answer["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-5)
    assert [model.predict(text) for text in TEXTS] == expected
    assert [model.predict({"review": text}) for text in TEXTS] == expected
    column = model.predict(pd.Series(TEXTS, index=[5, 3, 9]))
    assert list(column["prediction"]) == [answer["prediction"] for answer in expected]
    assert list(column.index) == [5, 3, 9]


def test_every_form_of_the_same_row_has_the_same_answer(texts):
    _, model = texts
    frame = pd.DataFrame({"review": TEXTS, "stars": [1.5, 2.5, None], "label": ["a", "b", "a"]})
    expected = model.predict(review=TEXTS[0], stars=1.5)
    assert model.predict(frame.iloc[0]) == expected
    assert model.predict({"review": TEXTS[0], "stars": 1.5}) == expected
    assert model.predict(frame)["prediction"][0] == expected["prediction"]
    with pytest.raises(UserError, match="this model has the inputs review, stars; name them"):
        model.predict(TEXTS)
    with pytest.raises(UserError, match="cannot be combined with a positional argument"):
        model.predict(frame, stars=3)


def test_tokens_and_embeddings_take_the_same_forms(texts):
    _, model = texts
    frame = pd.DataFrame({"review": TEXTS, "stars": [1.5, 2.5, None]})
    vectors = model.embed(frame)
    tokens = model.tokens(frame)
    assert len(vectors) == len(tokens) == 3
    for i, row in frame.iterrows():
        inputs = {name: value for name, value in row.items() if value == value}
        torch.testing.assert_close(vectors[i], model.embed(**inputs), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(tokens[i], model.tokens(**inputs)[0], atol=1e-5, rtol=1e-5)
    one, _ = texts
    assert one.embed(TEXTS).shape[0] == 3 and one.embed(TEXTS[0]).ndim == 1


def test_an_adapter_is_fitted_to_what_it_reads(tmp_path):
    """`fit` takes what `tokens` takes: paths and cells, and not only raw values."""
    picture, sound = tmp_path / "a.png", tmp_path / "a.wav"
    Image.fromarray(np.full((8, 8, 3), 51, np.uint8)).save(picture)
    soundfile.write(sound, np.sin(np.arange(8000) / 5), 8000)
    image = ImageAdapter(dim=16).fit([str(picture)])
    assert image.mean.tolist() == pytest.approx([0.2] * 3)
    assert AudioAdapter(dim=16, sample_rate=8000).fit([str(sound)]).std.max() < 10
    categories = CategoryAdapter(dim=16).fit(["red", "blue", "red"])
    assert len(categories.tokenizer.choices) == 2
    assert NumberAdapter(dim=16).fit(["1,000", "3,000"]).tokenizer.center == 2000
    assert DateAdapter(dim=16).fit(["2024-01-01", "2024-01-03"]).tokenizer.scale == 1
    assert SeriesAdapter(dim=16).fit([[1.0, 2.0, 3.0]]).tokens([[4.0, 5.0]]).x.shape[0] == 1
    assert TextAdapter(dim=16).fit(["a film"]).tokens(["a film"]).x.shape[0] == 1
