"""Folders of files as people have them: tables of the files, classes called "test", formats."""

import numpy as np
import pytest
import soundfile
from helpers.media import encoded
from helpers.newcomer import SMALL_IMAGES, TINY, refused, run
from PIL import Image

import dxn
from dxn.tokenize import ImageAdapter

FAST = [*TINY, "preset=plain", "baseline=none", "report=false", "trainer.epochs=1"]


def checked(capsys, path, *options):
    """What dxn check prints about data."""
    capsys.readouterr()
    assert run("check", path, *options) == 0
    return capsys.readouterr().out


def picture(path, seed, size=9):
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_metadata(folder, count, suffix="png", name="metadata.csv", seed=0):
    """Pictures or sounds and the table of them."""
    folder.mkdir(parents=True)
    rows = [{"file_name": f"{i}.{suffix}", "weather": ["sun", "rain"][i % 2]} for i in range(count)]
    for i, row in enumerate(rows):
        if suffix == "png":
            picture(folder / row["file_name"], seed + i)
        else:
            noise = np.random.default_rng(seed + i).uniform(-0.1, 0.1, 300)
            soundfile.write(folder / row["file_name"], noise, 8000)
    if name.endswith(".csv"):
        lines = ["file_name,weather", *(",".join(row.values()) for row in rows)]
    else:
        lines = [str(row).replace("'", '"') for row in rows]
    (folder / name).write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("metadata.csv", "png"), ("metadata.jsonl", "png"), ("metadata.csv", "wav")],
)
def test_a_table_in_each_split_folder_describes_its_files(tmp_path, capsys, name, suffix):
    write_metadata(tmp_path / "data" / "train", 20, suffix, name)
    write_metadata(tmp_path / "data" / "test", 6, suffix, name, seed=100)
    error = refused(capsys, "train", tmp_path / "data", *FAST)
    assert error.startswith("dxn: data.target: needs a value; the columns are weather, file_name;")
    output = checked(capsys, tmp_path / "data", "target=weather")
    assert f"file_name ({'image' if suffix == 'png' else 'audio'})" in output
    assert "train: 18 rows" in output and "test: 6 rows" in output


def test_the_model_of_such_a_folder_predicts_another_one(tmp_path, capsys):
    write_metadata(tmp_path / "data" / "train", 20)
    write_metadata(tmp_path / "data" / "validation", 6, seed=100)
    folder = tmp_path / "run"
    command = ["train", tmp_path / "data", "target=weather", "adapters=[image]", f"run={folder}"]
    assert run(*command, *SMALL_IMAGES, *FAST) == 0
    new = tmp_path / "data" / "validation"
    assert len(dxn.load(str(folder)).predict(file_name=str(new / "0.png"))) > 0
    assert run("predict", f"run={folder}", f"input={new}", f"output={tmp_path}/p.csv") == 0
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 7


def test_a_split_folder_without_a_table_is_named(tmp_path, capsys):
    write_metadata(tmp_path / "train", 8)
    picture(tmp_path / "test" / "1.png", 99)
    error = refused(capsys, "train", tmp_path, "target=weather", *FAST)
    assert f"{tmp_path}/test: the folder has no table of its files, unlike" in error
    assert f"data.train={tmp_path}/train/metadata.csv" in error


def test_an_archive_with_a_table_of_its_files_is_to_be_extracted(tmp_path, capsys):
    import shutil

    write_metadata(tmp_path / "data" / "train", 8)
    path = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "data")
    error = refused(capsys, "train", path, "adapters=[image]", *FAST)
    assert "contains a table of its files (metadata.csv); extract it" in error


def test_classes_can_be_called_train_and_test(tmp_path, capsys):
    for i in range(12):
        name = ["train", "bus", "test"][i % 3]
        picture(tmp_path / name / f"{['test', 'train', 'val'][i // 4]}_{i}.png", i)
    output = checked(capsys, tmp_path, "adapters=[image]", "data.fractions=[1]")
    assert "3 classes" in output and "train 4" in output and "test 4" in output


def test_folders_of_splits_can_contain_a_class_called_test(tmp_path, capsys):
    for i in range(12):
        name = ["train/train", "train/test", "test/train", "test/test"][i % 4]
        picture(tmp_path / name / f"train_{i}.png", i)
    output = checked(capsys, tmp_path, "adapters=[image]")
    assert "2 classes (" in output and "test: 6 rows" in output


def test_only_split_folders_with_files_and_no_classes_are_not_classes(tmp_path, capsys):
    for i in range(8):
        picture(tmp_path / ["train", "test"][i % 2] / f"{i}.png", i)
    error = refused(capsys, "train", tmp_path, "adapters=[image]", *FAST)
    assert "is not in a class folder" in error and "metadata.csv" in error


def test_a_target_column_called_set_does_not_divide_the_rows(tmp_path, capsys):
    lines = [
        f"the {['quick', 'slow'][i % 2]} one {i},{['train', 'test'][i % 2]}" for i in range(40)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["text,set", *lines]))
    output = checked(capsys, tmp_path / "t.csv", "target=set", "adapters=[text]")
    assert "2 classes (test 16, train 16)" in output or "2 classes (train 16, test 16)" in output
    assert "splits: from column" not in output


def read(source, channels=3):
    prepare = ImageAdapter(8, image_size=None, in_channels=channels).tokenizer
    return prepare.reader.read(source)


@pytest.mark.parametrize("suffix", ["tif", "tiff", "TIF", "avif", "ppm", "jfif"])
def test_pictures_of_other_formats_are_read(tmp_path, capsys, suffix):
    kind = {"avif": "AVIF", "ppm": "PPM", "jfif": "JPEG"}.get(suffix, "TIFF")
    for i in range(6):
        path = tmp_path / "ab"[i % 2] / f"{i}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (9, 9, 3), np.uint8)
        path.write_bytes(encoded(Image.fromarray(pixels), kind))
    output = checked(capsys, tmp_path, "data.fractions=[1]")
    assert "image: 6; all 9×9" in output and "not used" not in output


def test_bytes_of_a_tiff_and_an_avif_are_pictures_and_no_videos():
    from dxn.tokenize.media import kinds_of

    image = Image.new("RGB", (9, 9), "red")
    for kind in ("TIFF", "AVIF"):
        data = encoded(image, kind)
        assert kinds_of(data) == ("image",)
        assert read(data)[0].float().mean() > 240


@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_16_bits_are_scaled_to_8(order):
    values = np.array([[0, 257, 32896, 65535]], order)
    assert read(encoded(Image.fromarray(values), "TIFF"), 1).tolist() == [[[0, 1, 128, 255]]]


def test_values_above_16_bits_are_refused():
    values = np.array([[0, 70_000]], np.int32)
    with pytest.raises(ValueError, match="above 65,535: convert the image to 8 or 16 bits"):
        read(encoded(Image.fromarray(values), "TIFF"))


def test_the_first_page_of_a_tiff_is_read_and_others_are_counted(tmp_path, capsys):
    pages = [Image.new("RGB", (9, 9), (10 * i, 200, 3)) for i in range(3)]
    for i in range(4):
        path = tmp_path / "ab"[i % 2] / f"{i}.tif"
        path.parent.mkdir(exist_ok=True)
        pages[0].putpixel((0, 0), (i, i, i))
        path.write_bytes(encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:]))
    assert read(str(path))[:, 5, 5].tolist() == [0, 200, 3]
    output = checked(capsys, tmp_path, "adapters=[image]", "data.fractions=[1]")
    assert "only the first page of 4 files with several pages is read" in output
