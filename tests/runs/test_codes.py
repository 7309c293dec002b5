"""The codes of each row: dxn predict of a codec."""

import csv
import json

import numpy as np
import pandas
import pytest
import torch
from helpers.newcomer import printed, read_csv, refused
from helpers.runs import SMALL_IMAGES
from helpers.shades import train_any, train_codec

import dxn
from dxn.config.instantiate import build
from dxn.runs.saved.codecs import codec_node
from dxn.tasks.codec.stored import StoredCodec


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("codes")
    train_codec(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return dxn.load(folder / "codec")


@pytest.fixture(scope="module")
def codec(model):
    """The same codec as a part of another model."""
    task, adapter = model.task, model.adapters["image"]
    parts = {"adapter": adapter, "fusion": model.model.fusion, "backbone": model.model.backbone}
    codec = StoredCodec(input="image", task=task, size=task.target.size, **parts)
    codec.model.head.load_state_dict(model.model.head.state_dict())
    return codec


@pytest.fixture(scope="module")
def codes(folder, codec):
    """The codes of each picture."""
    pictures = [codec.reader.read(str(folder / f"{i}.png")) for i in range(40)]
    return [each.tolist() for each in codec.encode(pictures)]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json", "parquet"])
def test_a_table_gets_the_codes_of_each_row_and_how_close_it_is(folder, codes, suffix, capsys):
    output = folder / f"codes.{suffix}"
    printed(capsys, "predict", f"run={folder / 'codec'}", folder / "rows.csv", f"output={output}")
    readers = {
        "csv": read_csv,
        "json": lambda path: json.loads(path.read_text()),
        "jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
        "parquet": lambda path: pandas.read_parquet(path).to_dict("records"),
    }
    rows = readers[suffix](output)
    assert [int(row["row"]) for row in rows] == list(range(2, 42))
    for row, own in zip(rows, codes, strict=True):
        found = row["prediction"]
        found = json.loads(found) if suffix == "csv" else [list(each) for each in found]
        assert found == own
        assert int(row["tokens"]) == 4
        # 2 codes of each token, each one of 25.
        assert float(row["bits"]) == pytest.approx(8 * np.log2(25))
        assert 5 < float(row["psnr"]) < 100


def test_the_fidelity_is_that_of_the_decoded_pixels(folder, codec, model, codes):
    for i in range(5):
        true = codec.reader.read(str(folder / f"{i}.png")).double() / 255
        decoded = codec.decode(torch.tensor(codes[i])).double() / 255
        psnr = -10 * (true - decoded).square().mean().log10()
        found = model.predict(image=str(folder / f"{i}.png"))["fidelity"]["psnr"]
        # Decoded pixels are rounded to whole numbers.
        assert found == pytest.approx(float(psnr), abs=0.2)


def test_one_sample_prints_its_codes_and_how_close_it_is(folder, model, codes, capsys):
    shown = printed(capsys, "predict", f"run={folder / 'codec'}", f"input.image={folder / '3.png'}")
    assert f"prediction: {codes[3]}" in shown
    answer = model.predict(image=str(folder / "3.png"))
    assert f"psnr: {answer['fidelity']['psnr']:.3f}" in shown


def test_python_takes_one_value_a_list_and_a_data_frame(folder, model, codes):
    paths = [str(folder / f"{i}.png") for i in range(3)]
    answer = model.predict(image=paths[0])
    assert answer["prediction"] == codes[0] and answer["num_codes"] == 25
    assert set(answer["fidelity"]) == {"psnr", "ssim", "bits"}
    assert [each["prediction"] for each in model.predict(paths)] == codes[:3]
    frame = model.predict(pandas.DataFrame({"image": paths}, index=[7, 8, 9]))
    assert frame["prediction"].tolist() == codes[:3] and frame.index.tolist() == [7, 8, 9]


def test_bad_rows_are_refused_or_left_out_as_in_other_tasks(folder, codes, capsys):
    with (folder / "bad.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["image"], ["1.png"], ["none.png"], [""], ["2.png"]])
    command = ["predict", f"run={folder / 'codec'}", folder / "bad.csv"]
    output = folder / "left.csv"
    message = refused(capsys, *command, f"output={output}")
    assert "none.png" in message and not output.exists()
    shown = printed(capsys, *command, f"output={output}", "on_bad=skip")
    assert "2 rows, 2 skipped" in shown
    rows = read_csv(output)
    assert [json.loads(row["prediction"]) for row in rows] == codes[1:3]


def test_a_codec_is_part_of_a_model_whatever_the_name_of_its_column(folder):
    table = folder / "photos.csv"
    table.write_text((folder / "rows.csv").read_text().replace("text,image", "text,photo"))
    dxn.train(
        table,
        *("data.image=photo", *SMALL_IMAGES, "head=codec", "head.levels=[5,5]"),
        f"run={folder / 'photos'}",
    )
    codec = build(codec_node(str(folder / "photos"), key="codec"), key="codec")
    (codes,) = codec.encode([codec.reader.read(str(folder / "1.png"))])
    model = dxn.load(folder / "photos")
    assert codes.tolist() == model.predict(photo=str(folder / "1.png"))["prediction"]


def test_a_model_of_any_inputs_says_what_to_use_instead(folder, capsys):
    train_any(folder, "any")
    message = refused(capsys, "predict", f"run={folder / 'any'}", folder / "rows.csv")
    assert "use dxn generate create=image" in message
