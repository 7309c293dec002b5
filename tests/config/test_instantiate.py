"""One function builds what a configuration names, and refuses everything that it does not know."""

import functools
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeVar

import pytest
from annotated_types import Ge, Gt, Interval

from dxn.config import signatures
from dxn.config.instantiate import (
    MODEL_PACKAGES,
    build,
    check_targets,
    complete,
    completed,
    signature_of,
)
from dxn.config.signatures import Node, plain_type, signature_from
from dxn.config.values import describe, problem
from dxn.core.errors import UserError
from dxn.models import Backbone, NormOptions
from dxn.tasks import Classify

TOY = '''
from __future__ import annotations
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from math import sqrt
from torch import load
import json

@dataclass(frozen=True)
class Inner:
    depth: int = 2

@dataclass(frozen=True)
class Options:
    """Options."""
    eps: float = 1e-5
    kind: Literal["a", "b"] = "a"
    inner: Inner = Inner()

    def __post_init__(self):
        if self.eps <= 0:
            raise ValueError(f"eps must be above 0, got {self.eps}")

class Part:
    def __init__(self, dim: int, *, options: Options = Options(kind="b"),
                 extra: Options | None = None, sizes: Sequence[int] = (3, 5),
                 shares: Mapping[str, float] = {}, name: str | None = None):
        if dim == 13:
            raise ValueError("dim must not be 13")
        if dim == 17:
            raise RuntimeError("out of luck")
        self.dim, self.options, self.extra = dim, options, extra
        self.sizes, self.shares, self.name = sizes, shares, name

class Whole:
    def __init__(self, parts: Sequence[Part], maker=None, *, inputs: Sequence[str] = ()):
        self.parts, self.maker, self.inputs = parts, maker, inputs

class Broken(Exception):
    pass

def source(path: str, *, seed: int = 0, **columns: str | Sequence[str] | None):
    return {"path": path, "seed": seed, **columns}
'''
TRUST = ("toy_parts",)
PART = {"_target_": "toy_parts.Part", "dim": 7}


@pytest.fixture(autouse=True)
def toy(tmp_path, monkeypatch):
    """A package of the user's own, which can be imported but is not trusted by itself."""
    (tmp_path / "toy_parts.py").write_text(TOY)
    (tmp_path / "broken_parts.py").write_text("raise RuntimeError('boom')")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("toy_parts", None)


def message(call, *arguments, **named):
    with pytest.raises(UserError) as error:
        call(*arguments, **named)
    return str(error.value)


def build_completed(node, *, key, trust=TRUST):
    """The object of a node that contains only some of its options."""
    return build(completed(node, trust, key=key), key=key, trust=trust)


def test_a_node_becomes_an_object_with_the_nodes_below_it():
    node = {"_target_": "toy_parts.Whole", "parts": [PART, {**PART, "dim": 11}]}
    whole = build(node, key="whole", trust=TRUST)
    assert [part.dim for part in whole.parts] == [7, 11]


def test_the_caller_passes_what_the_target_takes_and_nothing_else():
    node = {"_target_": "toy_parts.Whole", "parts": [], "inputs": ["typed"]}
    whole = build(node, key="whole", trust=TRUST, inputs=["title"], seed=3)
    assert whole.inputs == ["title"]


def test_a_function_with_any_columns_takes_all_that_the_caller_knows():
    node = {"_target_": "toy_parts.source", "path": "x.csv", "text": ["a", "b"]}
    built = build(node, key="data", trust=TRUST, seed=3, smell="c")
    assert built == {"path": "x.csv", "seed": 3, "text": ["a", "b"], "smell": "c"}


def test_a_partial_node_is_built_again_with_each_call():
    maker = {"_target_": "toy_parts.Whole", "_partial_": True, "parts": [PART]}
    node = {"_target_": "toy_parts.Whole", "parts": [], "maker": maker}
    built = build(node, key="whole", trust=TRUST)
    first, second = built.maker(inputs=["a"]), built.maker()
    assert first.inputs == ["a"]
    assert first.parts[0] is not second.parts[0]


def test_an_option_group_needs_only_what_differs():
    part = build_completed({**PART, "extra": {"eps": 0.5}}, key="part")
    assert (part.extra.eps, part.extra.kind, part.options.kind) == (0.5, "a", "b")


def test_defaults_are_filled_in_from_signatures():
    expanded = completed(PART, TRUST)
    inner = {"_target_": "toy_parts.Inner", "depth": 2}
    assert expanded == {
        "_target_": "toy_parts.Part",
        "dim": 7,
        "options": {"_target_": "toy_parts.Options", "eps": 1e-5, "kind": "b", "inner": inner},
        "extra": None,
        "sizes": [3, 5],
        "shares": {},
        "name": None,
    }


def test_a_group_given_in_part_keeps_the_defaults_of_its_parameter():
    expanded = completed({**PART, "options": {"inner": {"depth": 3}}}, TRUST)["options"]
    assert expanded["kind"] == "b"
    assert expanded["inner"] == {"_target_": "toy_parts.Inner", "depth": 3}
    assert completed({**PART, "extra": {"eps": 1.0}}, TRUST)["extra"]["kind"] == "a"


def test_what_was_expanded_builds_the_same_object():
    part = build(completed(PART, TRUST), key="part", trust=TRUST)
    plain = build(PART, key="part", trust=TRUST)
    assert part.options == plain.options
    assert (part.dim, list(part.sizes), part.shares) == (plain.dim, list(plain.sizes), {})


@pytest.mark.parametrize("known", [{"inputs": ["a"]}, {}])
def test_arguments_of_the_caller_are_no_keys(known):
    assert "inputs" not in completed({"_target_": "toy_parts.Whole", "parts": []}, TRUST)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"dim": 13}, "part: dim must not be 13"),
        ({"dim": 17}, "part: RuntimeError: out of luck"),
        ({"dim": "many"}, "part.dim: must be a whole number, got 'many'"),
        ({"dim": True}, "part.dim: must be a whole number, got True"),
        ({"sizes": 3}, "part.sizes: must be a list of integers, got 3"),
        ({"sizes": [3, "x"]}, "part.sizes: must be a list of integers, got [3, 'x']"),
        ({"shares": {"a": "b"}}, "part.shares: must be a mapping, got {'a': 'b'}"),
        ({"name": 3}, "part.name: must be a string or null, got 3"),
        ({"options": None}, "part.options: must be Options, got None"),
        ({"options": {"eps": 0}}, "part.options: eps must be above 0, got 0"),
        (
            {"options": {"kind": "c"}},
            "part.options.kind: must be one of a, b, got 'c'",
        ),
        ({"options": {"_target_": "toy_parts.Inner"}}, "part.options: must be Options, got"),
        ({"siz": 3}, "part.siz: Part has no such argument; did you mean sizes?"),
        ({"zzz": 3}, "part.zzz: Part has no such argument"),
    ],
)
def test_a_wrong_argument_is_named_with_its_key(change, expected):
    assert message(build_completed, {**PART, **change}, key="part").startswith(expected)


def test_a_missing_argument_is_named():
    node = {"_target_": "toy_parts.Part"}
    assert message(build, node, key="part", trust=TRUST) == "part.dim: needs a value, part.dim=..."


def test_all_problems_are_listed_with_their_keys():
    node = {"a": {**PART, "dim": "x", "options": {"_target_": "toy_parts.Options", "eps": "y"}}}
    problems = []
    complete(node, TRUST, problems=problems)
    assert problems == [
        "a.dim: must be a whole number, got 'x'",
        "a.options.eps: must be a number, got 'y'",
    ]


REFUSED = [
    "os.system",
    "subprocess.Popen",
    "toy_parts.Part",
    "dxn.models.attention.torch.load",
    "dxn.models.torch.hub.load",
    "dxn.tokenize.media.io.open",
    "dxn.tokenize.image.reader.threading.Thread",
    "dxn.tokenize.media.Path",
    "dxn.models./tmp/x.Y",
    "dxn.models...os.system",
    "dxn.models.__builtins__.eval",
    "dxn.tokenize.text.adapter.Tokenizer.from_file",
    "dxn.models.Backbone.__init__",
    "dxn.models.Backbone.__class__",
    "dxn.models.Backbone.forward",
    "dxn.core.tensors.write_tensors",
    "dxn.tokenizeX.a",
    "dxn.tokenize.BadMedia",
    "dxn.models.backbone.UserError",
    "dxn.config.compose.compose",
    "dxn.cli.main",
    "dxn.models.Nothing",
    "dxn.models.",
    "dxn",
    "",
    "x",
    None,
    3,
    ["a"],
    {"a": 1},
]


@pytest.mark.parametrize("target", REFUSED, ids=str)
def test_a_target_that_is_no_part_of_dxn_is_refused(target):
    assert message(build, {"_target_": target}, key="head").startswith("head: ")


@pytest.mark.parametrize(
    "target",
    ["toy_parts.load", "toy_parts.sqrt", "toy_parts.json.load", "toy_parts.Broken", "toy_parts.No"],
)
def test_a_trusted_package_gives_only_what_it_defines(target):
    assert message(build, {"_target_": target}, key="head", trust=TRUST).startswith("head: ")


def test_the_standard_library_cannot_be_trusted():
    node = {"_target_": "subprocess.Popen", "args": ["true"]}
    assert "not imported" in message(build, node, key="head", trust=["subprocess"])


def test_a_package_that_fails_to_import_is_named():
    expected = "head: importing broken_parts failed: RuntimeError('boom')"
    node = {"_target_": "broken_parts.Part"}
    assert message(build, node, key="head", trust=["broken_parts"]) == expected


def test_checking_targets_imports_nothing():
    node = {"head": {"norm": [{"_target_": "toy_parts.Part"}]}, "x": {"_target_": "os.system"}}
    assert message(check_targets, node).splitlines() == [
        "head.norm.0: toy_parts.Part does not belong to dxn and was not imported; "
        "if you trust the code of this package, add trust=[toy_parts], or conf_dir=FOLDER with its "
        "YAML files if it is not installed",
        "x: os.system does not belong to dxn and was not imported",
    ]
    assert "toy_parts" not in sys.modules


def test_a_model_folder_can_be_limited_to_parts_of_models():
    node = {"_target_": "dxn.data.table", "path": "/etc/passwd"}
    check_targets(node)
    assert "not imported" in message(check_targets, node, packages=MODEL_PACKAGES, key="head")


# Stored signatures


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """The file with the stored signatures of one class and its groups of options."""
    monkeypatch.setattr(signatures, "PATH", tmp_path / "signatures.json")
    signatures.write({"dxn.models.Backbone": Backbone})
    yield tmp_path / "signatures.json"
    monkeypatch.undo()
    signatures.read.cache_clear()


def test_a_stored_signature_equals_that_of_the_class(stored):
    known = signatures.read().signatures
    assert known["dxn.models.Backbone"] == signature_from(Backbone)
    assert known["dxn.models.blocks.NormOptions"] == signature_from(NormOptions)
    assert "dxn.models.Decoder" not in known


@pytest.mark.parametrize("content", [None, "", "{", '{"sources": "old", "names": {}}'])
def test_a_missing_or_outdated_file_is_not_used(stored, content):
    stored.unlink() if content is None else stored.write_text(content)
    signatures.read.cache_clear()
    is_current = signatures.read().is_current
    assert not is_current
    assert signature_of("dxn.models.Backbone", key="backbone") == signature_from(Backbone)


def test_the_defaults_of_a_signature_are_copied():
    node = {"_target_": "dxn.models.Backbone"}
    completed(node)["norm"]["eps"] = 5.0
    assert completed(node)["norm"]["eps"] == 1e-5


NORM = Annotated[Mapping[str, Any], Node("dxn.models.blocks.NormOptions", is_group=True)]


@pytest.mark.parametrize(
    ("annotation", "expected", "words"),
    [
        (int | None, int | None, "a whole number or null"),
        (Literal["a", 3], Literal["a", 3], "one of a, 3"),
        (tuple[str, ...], Sequence[str], "a list of texts"),
        (dict[str, float] | None, Mapping[str, float] | None, "a mapping or null"),
        (NormOptions, NORM, "NormOptions"),
        (NormOptions | None, NORM | None, "NormOptions or null"),
        (Fraction, Annotated[Mapping[str, Any], Node("fractions.Fraction")], "Fraction"),
        (Annotated[int, Ge(1)] | str, Annotated[int, Ge(1)] | str, "a whole number or a string"),
        (Any, Any, "any value"),
        (object, Any, "any value"),
        (TypeVar("T"), Any, "any value"),
    ],
)
def test_a_type_without_the_classes_of_its_module(annotation, expected, words):
    assert plain_type(annotation) == expected
    assert describe(expected) == words


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Annotated[int, Ge(1)], 0, "must be at least 1, got 0"),
        (Annotated[int, Ge(1)] | None, 0, "must be at least 1, got 0"),
        (Annotated[float, Gt(0)], float("nan"), "must be a finite number, got nan"),
        (Annotated[float, Interval(ge=0, le=1)], 2, "must be at most 1, got 2"),
        (bool | Literal["auto"], "atuo", "must be one of true, false, auto, got 'atuo'; did you"),
        (Sequence[int] | None, [1, "x"], "must be a list of integers or null, got [1, 'x']"),
        (Sequence[Annotated[int, Ge(1)]], [1, "x"], "must be a list of integers, got [1, 'x']"),
        (Sequence[Literal["a", "b"]], ["a", "c"], "must be a list of values from a, b, got"),
        (float, True, "must be a number, got True"),
        (NORM, 3, "must be NormOptions, got 3"),
        (NORM, {"eps": 1}, None),
        (Mapping[str, str], {"a": "b"}, None),
        (Sequence[str], ("a",), None),
        (float, 1, None),
    ],
)
def test_a_value_is_checked_against_a_type(annotation, value, expected):
    found = problem(value, annotation)
    assert found is None if expected is None else str(found).startswith(expected)


def test_a_built_object_passes_through_a_node():
    part = build(PART, key="part", trust=TRUST)
    call = functools.partial(build, {"_target_": "toy_parts.Whole"}, key="w", trust=TRUST)
    assert call(parts=[part]).parts == [part]


def test_a_class_derived_from_a_dataclass_has_the_parameters_of_its_own_constructor():
    class Focal(Classify):
        def __init__(self, *, gamma: float = 2.0):
            super().__init__()
            self.gamma = gamma

    parameters = signature_from(Focal).parameters
    assert list(parameters) == ["gamma"] and parameters["gamma"].type is float
    assert "label_smoothing" in signature_from(Classify).parameters
