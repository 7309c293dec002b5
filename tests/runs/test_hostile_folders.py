"""Any change of a model folder gives an error with the name of the folder, or a finite answer."""

import json
import math
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from helpers.runs import attack, train
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dxn.core.errors import UserError
from dxn.core.files import write_sums
from dxn.runs.saved.model_folder import load

TINY = ["dim=16", "backbone.depth=1", "trainer.epochs=1", "adapters=[text]"]
CPU = ["trainer.device=cpu", "trainer.precision=float32", "adapters.text.tokenizer.kind=word"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model folder."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = "".join(f"{word} {i},{word[0]}\n" for i, word in enumerate(["apple", "banana"] * 20))
    (folder / "table.csv").write_text(f"text,label\n{rows}")
    data = ["data=table", f"data.path={folder / 'table.csv'}", "data.target=label"]
    train(folder / "run", *data, *TINY, *CPU)
    return folder / "run" / "model"


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats()
    | st.sampled_from(["", "x", "../a", "${oc.env:HOME}", "dxn.models.Backbone", [], {}, [[]]])
    | st.just("attack")
)


def places(tree):
    """The containers and keys of all values of a tree."""
    items = list(tree.items() if isinstance(tree, dict) else enumerate(tree))
    inner = [v for _, v in items if isinstance(v, dict | list)]
    return [(tree, key) for key, _ in items] + [place for node in inner for place in places(node)]


def finite(value):
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    return not isinstance(value, float) or math.isfinite(value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(file=st.sampled_from(["config.yaml", "labels.json"]), data=st.data())
def test_a_changed_value_is_refused_or_harmless(trained, file, data):
    with TemporaryDirectory() as scratch:
        model, canary = Path(scratch, "model"), Path(scratch, "canary")
        shutil.copytree(trained, model)
        is_json = file.endswith(".json")
        text = (model / file).read_text()
        tree = json.loads(text) if is_json else yaml.safe_load(text)
        node, key = data.draw(st.sampled_from(places(tree)), label="place")
        value = data.draw(VALUES, label="value")
        node[key] = attack(canary) if value == "attack" else value
        (model / file).write_text(json.dumps(tree) if is_json else yaml.safe_dump(tree))
        write_sums(model)
        try:
            answer = load(model).predict(text="an apple")
        except UserError as error:
            assert str(model) in str(error)
        else:
            assert finite(answer)
        assert not canary.exists()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_changed_bytes_are_refused_or_harmless(trained, data):
    with TemporaryDirectory() as scratch:
        model = Path(scratch, "model")
        shutil.copytree(trained, model)
        names = sorted(path.name for path in model.iterdir() if path.suffix != ".md")
        path = model / data.draw(st.sampled_from(names), label="file")
        content = bytearray(path.read_bytes())
        start = data.draw(st.integers(0, len(content)), label="start")
        stop = data.draw(st.integers(start, len(content)), label="stop")
        content[start:stop] = data.draw(st.binary(max_size=20), label="bytes")
        path.write_bytes(content)
        if path.name != "SHA256SUMS":
            write_sums(model)
        try:
            answer = load(model).predict(text="an apple")
        except UserError as error:
            assert str(error)
        else:
            assert finite(answer)
