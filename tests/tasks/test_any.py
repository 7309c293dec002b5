"""Any inputs in, any inputs out: the common vocabulary, the drawn input, and created values."""

import csv
import json
import random
import shutil

import numpy as np
import pytest
import torch
from helpers.newcomer import printed, refused
from helpers.runs import SMALL_IMAGES
from helpers.shades import SHADES, TINY, train_any, train_codec
from PIL import Image

import dxn
from dxn.core.errors import UserError
from dxn.core.files import write_sums
from dxn.models.decoding.code_writing import Guided
from dxn.models.decoding.decoder import Memory
from dxn.runs.predictor.writing import Text, Writer
from dxn.tasks import WriteAny
from dxn.tasks.target import IGNORED
from dxn.tokenize import ImageAdapter, TextAdapter, TokenizerOptions


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A table of plain pictures with their names, and the run of a codec of them."""
    folder = tmp_path_factory.mktemp("any")
    train_codec(folder, epochs=30)
    return folder


@pytest.fixture(scope="module")
def trained(pictures):
    """The run of a model of texts and pictures, whose codec is gone."""
    shutil.copytree(pictures / "codec", pictures / "moved")
    train_any(pictures, "any", codec="moved")
    shutil.rmtree(pictures / "moved")
    return pictures / "any"


def target(*, names=(), texts=("a dark one", "a light one"), images=True, parallel=False):
    adapters = {"text": TextAdapter(8, tokenizer=TokenizerOptions(kind="word")).fit(list(texts))}
    if images:
        adapters["image"] = ImageAdapter(8, image_size=16, patch_size=8)
    task = WriteAny(decoder=None, names=names, parallel=parallel)
    task.target.bind(adapters)
    return task.target, adapters


def test_a_text_is_written_from_the_other_inputs():
    found, adapters = target()
    assert list(found.kinds) == ["text"]
    sample = {
        "text": adapters["text"].tokenizer("a light one"),
        "image": {"pixels": torch.zeros(1)},
        "#index": 0,
    }
    encoded = found.encode(None, sample, random.Random(0))
    assert set(sample) == {"image", "#index"}
    ids, labels = encoded["ids"][:, 0].tolist(), encoded["labels"][:, 0].tolist()
    vocabulary = found.vocabulary
    assert ids[0] == vocabulary.begin("text") and labels[-1] == vocabulary.end
    assert ids[1:] == labels[:-1]
    assert max(labels) < vocabulary.size
    assert vocabulary.decode("text", [ids[1:]]) == "a light one"


def test_masked_tokens_are_predicted_at_their_own_position():
    found, adapters = target(parallel=True)
    vocabulary = found.vocabulary
    counts = set()
    for seed in range(20):
        sample = {
            "text": adapters["text"].tokenizer("a light one"),
            "image": {"pixels": torch.zeros(1)},
        }
        encoded = found.encode(None, sample, random.Random(seed))
        ids, labels = encoded["ids"][:, 0], encoded["labels"][:, 0]
        masked = ids == vocabulary.mask
        assert torch.equal(masked, labels != IGNORED)
        assert ids[0] == vocabulary.begin("text") and not masked[0]
        assert len(ids) == 1 + vocabulary.writings["text"].max_len
        # The whole value: its words, and end tokens up to the maximum length.
        value = torch.where(masked, labels, ids)[1:].tolist()
        assert vocabulary.decode("text", [value[: value.index(vocabulary.end)]]) == "a light one"
        counts.add(int(masked.sum()))
    assert min(counts) >= 1 and len(counts) > 2


def test_a_row_with_one_input_teaches_nothing():
    found, adapters = target()
    sample = {"text": adapters["text"].tokenizer("a light one"), "#index": 0}
    assert len(found.encode(None, sample, random.Random(0))["ids"]) == 1
    assert "text" in sample


def test_only_tokens_of_the_input_are_allowed():
    found, _ = target()
    rules = found.vocabulary.rules("text")
    assert found.vocabulary.begin("text") in rules.forbidden
    assert found.vocabulary.end not in rules.forbidden


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ["image"]}, "image cannot be written; the inputs that can are text"),
        ({"images": False}, "needs two inputs or more"),
    ],
)
def test_inputs_that_cannot_be_written_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        target(**options)


def test_a_picture_is_created_from_a_text(trained, tmp_path, capsys):
    output = tmp_path / "light.png"
    out = printed(
        capsys, "generate", f"run={trained}", "input.text=a light one", f"output={output}"
    )
    assert f"written: {output}" in out
    with Image.open(output) as image:
        assert image.size == (16, 16)


def test_a_saved_codec_decodes_with_the_statistics_of_its_pictures(trained, pictures):
    codec = dxn.load(trained).adapters["image"].codec
    before = dxn.load(pictures / "codec").model.adapter("image")
    adapter = codec.model.adapter("image")
    assert torch.equal(adapter.mean, before.mean)
    assert torch.equal(codec.task.target.contents.shift.flatten(), before.mean)


def test_the_codec_stays_on_the_cpu(trained):
    adapter = dxn.load(trained).adapters["image"].to(torch.device("meta"))
    assert {each.device.type for each in adapter.parameters()} == {"meta"}
    assert {each.device.type for each in adapter.codec.parameters()} == {"cpu"}


def test_a_picture_of_another_size_than_those_of_the_codec_is_refused(pictures, tmp_path, capsys):
    options = [option for option in SMALL_IMAGES if "image_size" not in option]
    dxn.train(
        pictures / "rows.csv",
        *(*options, "data.image=image", "adapters.image.image_size=16", "head=codec"),
        *("adapters.image.resize.mode=within", "trainer.epochs=1", f"run={tmp_path / 'codec'}"),
    )
    flat = tmp_path / "flat.png"
    Image.fromarray(np.zeros((8, 16), np.uint8)).save(flat)
    table = tmp_path / "rows.csv"
    rows = "".join(f"{name},{pictures / '3.png'}\n" for name in "abcdefgh")
    table.write_text(f"text,image\n{rows}flat,{flat}\n")
    error = refused(
        capsys,
        *("train", str(table), "data.confine=false", "data.text=text", "data.image=image"),
        *("head=any", "adapters=[text,image_codes]", *TINY, "data.fractions=[1,0,0]"),
        *(f"adapters.image_codes.codec={tmp_path / 'codec'}", f"run={tmp_path / 'run'}"),
    )
    assert f"rows.csv row 10 ({flat}): image has another size than the codec needs" in error
    assert "2 tokens instead of 4" in error


def test_a_text_is_created_from_a_picture(trained, pictures, capsys):
    picture = pictures / "1.png"
    text = printed(capsys, "generate", f"run={trained}", f"input.image={picture}").strip()
    assert set(text.split()) <= {"a", "one", *SHADES}


def test_values_of_many_rows_are_files_in_a_folder(trained, pictures, tmp_path, capsys):
    folder = tmp_path / "version 1.0"
    printed(
        capsys,
        "generate",
        f"run={trained}",
        f"input={pictures / 'rows.csv'}",
        "create=image",
        f"output={folder}",
    )
    with (folder / "created.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 39  # the first one has no text
    assert all((folder / row["image"]).exists() for row in rows)
    with (pictures / "rows.csv").open(newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    assert [row["text"] for row in rows] == [text for text in texts if text]


def test_a_report_has_created_values_beside_true_ones(pictures, tmp_path, capsys):
    with (pictures / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (pictures / "gaps.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "image", "split"])
        writer.writeheader()
        for i, row in enumerate(rows[1:]):
            gap = {"image": ""} if i == 34 else {}
            split = "test" if i > 33 else "validation" if i > 28 else "train"
            writer.writerow({**row, **gap, "split": split})
    dxn.train(
        pictures / "gaps.csv",
        *("data.text=text", "data.image=image", "head=any", "adapters=[text,image_codes]"),
        *(*TINY, f"adapters.image_codes.codec={pictures / 'codec'}", f"run={tmp_path / 'run'}"),
    )
    printed(capsys, "report", f"run={tmp_path / 'run'}", "confine=false")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Each row uses only the inputs" not in page
    assert "<h1>run</h1>" in page
    texts, created = page.partition('id="examples"')[2].split("image from the others")
    # A text cannot be written from the row without a picture.
    assert texts.count("Created text") == texts.count("<img") == 4
    assert "<h4>image</h4>" in texts
    # That row has no true picture.
    assert created.count("Created image") == 5
    assert created.count("<img") == 9
    assert created.count("<h4>True image</h4>–") == 1
    assert "with temperature 1 and the default guidance" in texts


@pytest.mark.parametrize("end", [10, -30], ids=["a bad header", "a bad rest"])
def test_rows_whose_picture_cannot_be_read_are_skipped(trained, pictures, end, tmp_path, capsys):
    content = (pictures / "1.png").read_bytes()
    (tmp_path / "good.png").write_bytes(content)
    (tmp_path / "cut.png").write_bytes(content[:end])
    (tmp_path / "rows.csv").write_text("image\ngood.png\ncut.png\ngood.png\n")
    command = ["generate", f"run={trained}", f"input={tmp_path / 'rows.csv'}", "create=text"]
    assert "set on_bad" in refused(capsys, *command)
    out = printed(capsys, *command, "on_bad=skip", f"output={tmp_path / 'texts.csv'}")
    assert "1 row skipped" in out
    with (tmp_path / "texts.csv").open() as file:
        assert [row["row"] for row in csv.DictReader(file)] == ["2", "4"]


def test_the_same_seed_creates_the_same_pictures(trained):
    model = dxn.load(trained)
    first, second, other = (
        model.create("image", {"text": "a dark one"}, seed=seed)[0] for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert first.dtype == torch.uint8 and first.shape == (3, 16, 16)
    assert other.shape == first.shape


@pytest.fixture(scope="module", params=["one_by_one", "parallel"])
def overfitted(pictures, request):
    """A model that knows all rows by heart."""
    parallel = str(request.param == "parallel").lower()
    header, _, *rows = (pictures / "rows.csv").read_text().splitlines()
    (pictures / "few.csv").write_text("\n".join([header, *rows[:12]]))
    train_any(
        pictures,
        request.param,
        *("data.fractions=[1,0,0]", "trainer.patience=0", "trainer.epochs=50", "optimizer.lr=0.01"),
        *("head.unconditional=0.1", "backbone.dropout=0", "adapters.text.max_len=5", "dim=32"),
        f"head.parallel={parallel}",
        table="few.csv",
    )
    return dxn.load(pictures / request.param)


def test_a_picture_has_the_shade_that_the_text_names(overfitted):
    for name, shade in SHADES.items():
        given = {"text": f"a {name} one"}
        # Without guidance: these are the rows as they were learned.
        created = overfitted.create("image", given, temperature=0, guidance=1)[0]
        nearest = min(SHADES.values(), key=lambda each: abs(float(created.float().mean()) - each))
        assert nearest == shade


def test_a_name_is_learned_by_heart(overfitted, pictures):
    given = {"image": str(pictures / "3.png")}
    assert overfitted.create("text", given, temperature=0) == ["a dark one"]


@pytest.mark.parametrize(
    ("name", "given"), [("image", {"text": "a dark one"}), ("text", {"image": "3.png"})]
)
def test_unfinished_values_are_passed_on(overfitted, pictures, name, given, monkeypatch):
    monkeypatch.setattr("dxn.runs.predictor.writing.PARTS", 1)  # after each step
    monkeypatch.chdir(pictures)
    samples = overfitted.samples([given])
    shown = []
    text = Text(item=samples[0, 0], samples=samples, create=name, on_text=shown.append)
    (whole,) = Writer(overfitted.model, overfitted.task).write([text], batch_size=1)
    if name == "text":
        assert "".join(shown) == whole == "a dark one"
    else:
        # 4 tokens with 2 codes each.
        assert len(shown) == (8 if overfitted.task.parallel else 5)
        assert torch.equal(shown[-1], whole) and not torch.equal(shown[0], whole)


@pytest.mark.parametrize("scale", [0.0, 1.0, 2.5])
def test_guidance_combines_logits_with_and_without_the_inputs(overfitted, scale):
    decoder = overfitted.model.head.decoder
    dim = decoder.backbone.dim
    memory = Memory(torch.randn(3, 5, dim), None)
    ids = torch.randint(decoder.output.matrix.shape[0], (3, 7))
    mask = torch.ones_like(ids, dtype=torch.bool)
    with torch.inference_mode():
        c = decoder(ids, mask, memory)
        u = decoder(ids, mask, Memory(torch.zeros(3, 5, dim), None))
        expected = u + scale * (c - u)
        guided = Guided(decoder, scale)
        layer, caches = guided.output_layer(), guided.caches()
        if decoder.parallel:
            states = guided.next_states(ids.view(-1, 1), mask.view(-1, 1), memory, caches)
            torch.testing.assert_close(layer(states), expected.flatten(0, 1), rtol=1e-4, atol=1e-4)
            return
        for part in (ids[:, :6], ids[:, 6:]):
            stop = 6 if part.shape[1] == 6 else 7
            states = guided.next_states(part, mask[:, :stop], memory, caches)
            torch.testing.assert_close(layer(states), expected[:, stop - 1], rtol=1e-4, atol=1e-4)


def test_guided_texts_of_different_lengths_do_not_depend_on_the_batch(overfitted, pictures):
    given = [{"image": str(pictures / f"{i}.png")} for i in range(8)]
    options = {"temperature": 50.0, "guidance": 1.5, "seed": 3}
    together = overfitted.create("text", given, **options)
    apart = overfitted.create("text", given, batch_size=1, **options)
    assert together == apart
    assert len({len(each.split()) for each in together}) > 1


def test_the_same_seed_creates_the_same_values_in_any_batch(overfitted):
    given = {"text": "a gray one"}
    options = {"count": 4, "seed": 5, "temperature": 100.0, "guidance": 1.5}
    first = overfitted.create("image", given, **options)
    second = overfitted.create("image", given, batch_size=2, **options)
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "input: needs a value; for example input.text=... or input.image=..."),
        (["input.text=a dark one"], "output: needs a file that ends in .png"),
        (["input.text=a dark one", "output=x.wav"], "ends in .png or .jpg or .webp, got x.wav"),
        (["input.text=a dark one", "output=x", "create=sound"], "sound cannot be created"),
        (["input.text=a dark one", "count=2", "output=x.png"], "must be a folder for several"),
        (
            ["input.image=1.png", "create=image", "output=x.png"],
            "needs another input than image in each sample",
        ),
        (["input=texts.csv", "output=x"], "set create=text or create=image"),
        (["input.text=a dark one", "count=2", "output=texts.csv"], "must be a folder for several"),
        (["input.text=a dark one", "count=2", "output=plain"], "must be a folder for several"),
        (["input.text=a dark one", "guidance=2e6", "output=x.png"], "must be from 0 to 1e+06"),
        (["input.text=a dark one", "max_new=3", "output=x.png"], "max_new: this model creates"),
        (["input.text=a dark one", "chat=false", "output=x.png"], "chat: this model creates"),
        (["input=empty.csv", "create=image", "output=x"], "needs rows with another input than"),
        (["prompt=hello"], "prompt: this model creates an input from others"),
    ],
)
def test_wrong_options_are_refused(trained, pictures, arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(pictures)
    (pictures / "texts.csv").write_text("text\na dark one\n")
    (pictures / "plain").write_text("a file")
    (pictures / "empty.csv").write_text("text,image\n,1.png\n")
    assert message in refused(capsys, "generate", f"run={trained}", *arguments)


@pytest.mark.parametrize(
    ("options", "written"),
    [((), ["answer", "image"]), (("data.target=answer",), ["answer"])],
)
def test_target_columns_are_inputs_that_are_written(pictures, tmp_path, options, written):
    table = pictures / "answers.csv"  # "answer" is the target of other tasks
    table.write_text((pictures / "rows.csv").read_text().replace("text,image", "answer,image"))
    dxn.train(
        table,
        *("data.text=answer", "data.image=image", "head=any", "adapters=[text,image_codes]"),
        *(*TINY, f"adapters.image_codes.codec={pictures / 'codec'}", f"run={tmp_path / 'run'}"),
        *options,
    )
    predictor = dxn.load(tmp_path / "run")
    assert list(predictor.task.creates) == written
    assert list(predictor.inputs) == ["answer", "image"]


@pytest.mark.parametrize("target", [(), ("data.target=text",)])
def test_a_picture_that_is_only_read_is_named_once(pictures, target, tmp_path, capsys):
    options = ["data.text=text", "data.image=image", "adapters=[text,image]", "head=any", *TINY]
    options += [*target, "adapters.image.image_size=16", f"run={tmp_path / 'run'}"]
    out = printed(capsys, "train", str(pictures / "rows.csv"), *options)
    assert out.count("note: read but not written: image;") == (not target)


def test_an_unknown_target_is_refused(pictures, capsys):
    error = refused(
        capsys,
        *("train", str(pictures / "rows.csv"), "data.text=text", "data.image=image", "head=any"),
        *("adapters=[text,image_codes]", f"adapters.image_codes.codec={pictures / 'codec'}"),
        *("data.target=photo", *TINY),
    )
    assert "data.target: photo cannot be written; the inputs that can are text, image" in error


def refused_lines(lines, pictures, tmp_path, capsys):
    """Return the error of a training with a table of these lines."""
    table = pictures / "refused.csv"
    table.write_text("\n".join(lines))
    return refused(
        capsys,
        "train",
        str(table),
        *("data.text=text", "data.image=image", "head=any", "adapters=[text,image_codes]", *TINY),
        *(f"adapters.image_codes.codec={pictures / 'codec'}", f"run={tmp_path / 'run'}"),
    )


def test_rows_with_one_input_alone_are_refused(pictures, tmp_path, capsys):
    lines = [f"a dark one {i}," if i % 2 else f",{i}.png" for i in range(40)]
    error = refused_lines(["text,image", *lines], pictures, tmp_path, capsys)
    assert "no row of the training split has text or image and another input" in error
    assert not (tmp_path / "run" / "model").exists()


def test_validation_rows_with_one_input_alone_are_named(pictures, tmp_path, capsys):
    lines = [f"a dark one {i},{i}.png,train" for i in range(20)]
    lines += [f"a dark one {i},,validation" for i in range(20, 30)]
    error = refused_lines(["text,image,split", *lines], pictures, tmp_path, capsys)
    assert "rows with fewer than 2 inputs have no loss" in error


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_a_value_does_not_depend_on_the_others_of_its_batch(overfitted, guidance):
    inputs = [{"text": text} for text in ("a dark one", "one", "a light one a dark one", "gray")]
    options = {"guidance": guidance, "top_k": 5}
    together = overfitted.create("image", inputs, seed=3, **options)
    alone = [
        overfitted.create("image", each, seed=3 + i, **options)[0] for i, each in enumerate(inputs)
    ]
    assert all(map(torch.equal, together, alone))


@pytest.mark.parametrize("read", ["codes", "values"])
def test_a_classifier_reads_codes_or_values(pictures, read, tmp_path, capsys):
    run, picture = tmp_path / "run", pictures / "3.png"
    printed(
        capsys,
        *("train", str(pictures / "rows.csv"), "target=text", "data.image=image"),
        *("adapters=[image_codes]", f"adapters.image_codes.codec={pictures / 'codec'}"),
        *(f"adapters.image_codes.read={read}", f"run={run}", *TINY[:5], "data.on_bad=skip"),
    )
    tokens = dxn.load(run).adapters["image"].tokens([str(picture)])
    assert tokens.x.shape[:2] == (1, 4)
    assert tokens.spans[0].coords.isnan().all() == (read == "codes")
    drawn = tmp_path / "attention.html"
    printed(capsys, "attend", f"run={run}", f"input.image={picture}", f"output={drawn}")
    assert drawn.exists()


def test_another_run_is_no_codec(trained, pictures, capsys):
    error = refused(
        capsys,
        "train",
        str(pictures / "rows.csv"),
        "data.text=text",
        "data.image=image",
        "head=any",
        "adapters=[text,image_codes]",
        f"adapters.image_codes.codec={trained}",
        *TINY,
    )
    assert "must be a run of head=codec" in error


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("labels.json", "[]", "must be a run of head=codec"),
        ("labels.json", '{"task": "codec", "size": 3}', "size"),
        ("labels.json", "{", "invalid JSON"),
        ("labels.json", None, "labels.json is missing"),
        ("adapters.jsonl", "[1]", "adapters.jsonl: has no valid state of the input 'image'"),
        ("adapters.jsonl", '{"image": 3}', "adapters.jsonl: image: must be a mapping, got int"),
        ("model.safetensors", b"damaged", "model.safetensors"),
    ],
)
@pytest.mark.parametrize("is_listed", [True, False])
def test_a_damaged_codec_is_refused(pictures, file, content, message, is_listed, tmp_path, capsys):
    run = tmp_path / "codec"
    shutil.copytree(pictures / "codec" / "model", run)
    data = content.encode() if isinstance(content, str) else content
    (run / file).unlink(missing_ok=True)
    if data is not None:
        (run / file).write_bytes(data)
    if is_listed:
        write_sums(run)
    error = refused(
        capsys,
        "check",
        str(pictures / "rows.csv"),
        *("data.text=text", "data.image=image", "head=any", "adapters=[text,image_codes]"),
        *(f"adapters.image_codes.codec={run}", f"output={tmp_path / 'bad.csv'}"),
    )
    assert file in error or "adapters.image_codes.codec: " in error
    assert (message if is_listed or content is None else file) in error


@pytest.mark.parametrize("codec", ["5", "missing", "[1]"])
def test_what_is_no_codec_is_refused_with_its_option(pictures, codec, tmp_path, capsys):
    error = refused(
        capsys,
        "check",
        str(pictures / "rows.csv"),
        *("data.text=text", "data.image=image", "head=any", "adapters=[text,image_codes]"),
        *(f"adapters.image_codes.codec={codec}", f"output={tmp_path / 'bad.csv'}"),
    )
    assert "adapters.image_codes" in error


def test_a_codec_of_another_modality_is_refused(pictures, capsys):
    error = refused(
        capsys,
        "train",
        str(pictures / "rows.csv"),
        *("data.text=text", "data.video=image", "head=any", "adapters=[text,video_codes]", *TINY),
        f"adapters.video_codes.codec={pictures / 'codec'}",
    )
    assert "codec: must be a codec of video inputs, got one of image inputs (image)" in error


def test_only_all_inputs_are_evaluated(trained):
    subsets = json.loads((trained / "metrics.json").read_text())["subsets"]
    assert subsets == ["all"]


def test_codes_have_a_drawing_of_their_attention(trained, pictures, tmp_path, capsys):
    sample = [f"run={trained}", f"input.image={pictures / '1.png'}"]
    printed(capsys, "tokenize", *sample, f"output={tmp_path / 'tokens.png'}")
    printed(capsys, "attend", *sample, f"output={tmp_path / 'attention'}")
    assert (tmp_path / "tokens.png").exists()
    assert (tmp_path / "attention" / "attention.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "input.text=a dark one"], "use dxn generate create=image, or dxn embed"),
        (["export"], "a model of head=any cannot be exported"),
        (["evaluate", "only=[text]"], "needs at least 2 inputs of a row"),
    ],
)
def test_other_commands_say_what_to_do(trained, arguments, message, tmp_path, capsys):
    verb, *options = arguments
    assert message in refused(capsys, verb, f"run={trained}", *options)


def test_a_data_set_is_checked_with_the_codes_of_a_codec(pictures, capsys):
    out = printed(
        capsys,
        "check",
        str(pictures / "rows.csv"),
        *("data.text=text", "data.image=image", "head=any", "adapters=[text,image_codes]"),
        f"adapters.image_codes.codec={pictures / 'codec'}",
        f"output={pictures / 'bad.csv'}",
    )
    assert "next: dxn train" in out
