"""A folder a class: on disk or packed, split or not, and what is said of one that is neither."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from dxn.data.folders import folder
from dxn.errors import UserError

CATS = {f"cat/{i:02}.png": f"cat {i}".encode() for i in range(11)}
DOGS = {f"dog/{i:02}.JPG": f"dog {i}".encode() for i in range(7)}
PETS = {**CATS, **DOGS}  # the contents are never decoded here: that is open_rows' work


def unpacked(place: Path, files: dict[str, bytes]) -> str:
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return str(place)


def packed(place: Path, files: dict[str, bytes]) -> str:
    if place.suffix == ".zip":
        with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    else:
        with tarfile.open(place, "w" + {".gz": ":gz", ".xz": ":xz"}.get(place.suffix, "")) as archive:
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return str(place)


def labelled(source):
    """Every file of every split with its class."""
    return {o: t for rows in source.splits.values() for o, t in zip(rows.origin, rows.cells["target"], strict=True)}


def sizes(source):
    return {name: len(rows) for name, rows in source.splits.items()}


def test_each_folder_is_a_class_and_its_files_are_drawn_into_splits(tmp_path):
    source = folder(unpacked(tmp_path, PETS))
    assert labelled(source) == {name: name[:3] for name in PETS}
    assert source.target_kind == "class" and dict(source.columns) == {"image": "files", "target": "folder"}
    assert sizes(source) == {"train": 14, "validation": 2, "test": 2}
    rows = source.splits["train"]
    assert rows.cells["image"] == [str(tmp_path / name) for name in rows.origin]


def test_sounds_are_audio(tmp_path):
    source = folder(unpacked(tmp_path, {"yes/a.wav": b"1", "no/b.flac": b"2", "no/c.MP3": b"3"}))
    assert dict(source.columns) == {"audio": "files", "target": "folder"}


def test_a_file_deeper_down_is_of_the_uppermost_folders_class(tmp_path):
    source = folder(unpacked(tmp_path, {"cat/tabby/old/a.png": b"1", "dog/b.png": b"2", "dog/big/c.png": b"3"}))
    assert labelled(source) == {"cat/tabby/old/a.png": "cat", "dog/b.png": "dog", "dog/big/c.png": "dog"}


def test_train_and_test_folders_are_the_splits_and_validation_is_drawn_of_train(tmp_path):
    files = {f"Training/{name}": data for name, data in PETS.items()} | {"test/cat/x.png": b"x", "test/dog/y.png": b"y"}
    source = folder(unpacked(tmp_path, files))
    assert sizes(source) == {"train": 16, "validation": 2, "test": 2}
    assert source.splits["test"].origin == ["test/cat/x.png", "test/dog/y.png"]
    assert source.splits["test"].cells["target"] == ["cat", "dog"]
    assert all(name.startswith("Training/") for name in source.splits["validation"].origin)


def test_all_three_folders_are_taken_as_they_are(tmp_path):
    files = {
        f"{part}/{c}/{i}.png": b"1"
        for part, n in (("train", 5), ("val", 3), ("test", 2))
        for c in "ab"
        for i in range(n)
    }
    source = folder(unpacked(tmp_path, files))
    assert sizes(source) == {"train": 10, "validation": 6, "test": 4} and list(source.notes) == []


@pytest.mark.parametrize("name", ["pets.tar", "pets.tar.gz", "pets.tar.xz", "pets.zip"])
def test_an_archive_gives_what_its_folder_gives(tmp_path, name):
    source, plain = folder(packed(tmp_path / name, PETS)), folder(unpacked(tmp_path / "pets", PETS))
    for split, rows in plain.splits.items():
        assert source.splits[split].origin == rows.origin
        assert source.splits[split].cells["target"] == rows.cells["target"]
        assert source.splits[split].cells["image"] == [PETS[name] for name in rows.origin]


@pytest.mark.parametrize("root", ["pets/", "./pets/", "data/pets/"])
def test_folders_around_everything_say_nothing(tmp_path, root):
    source = folder(packed(tmp_path / "pets.zip", {root + name: data for name, data in PETS.items()}))
    assert labelled(source) == {name: name[:3] for name in PETS}


def test_a_single_class_is_not_taken_for_a_folder_around_everything(tmp_path):
    assert set(labelled(folder(unpacked(tmp_path, CATS))).values()) == {"cat"}


def test_hidden_files_are_passed_over_and_other_files_counted(tmp_path):
    odd = {
        "cat/.hidden.png": b"",
        ".git/a.png": b"",
        "__MACOSX/cat/._00.png": b"",
        "cat/readme.txt": b"",
        "about.md": b"",
    }
    for path in (unpacked(tmp_path / "pets", {**PETS, **odd}), packed(tmp_path / "pets.zip", {**PETS, **odd})):
        source = folder(path)
        assert sum(sizes(source).values()) == 18
        assert source.notes[0] == "not used: 2 files of other kinds"


def test_a_hidden_folder_above_hides_nothing(tmp_path):
    assert sum(sizes(folder(unpacked(tmp_path / ".cache" / "pets", PETS))).values()) == 18


def test_shares_and_the_seed_are_as_given(tmp_path):
    path = unpacked(tmp_path, PETS)
    source = folder(path, fractions=(0.5, 0.0, 0.5), seed=5, on_bad="skip")
    assert sizes(source) == {"train": 9, "test": 9} and source.on_bad == "skip"
    assert folder(path, fractions=(0.5, 0.0, 0.5), seed=5) != folder(path, fractions=(0.5, 0.0, 0.5), seed=7)


OUTSIDE = "is in no class's folder; put each file in a folder named after its class"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a/x.png": b"", "a/y.wav": b""}, "{}: must hold pictures or sounds, got pictures and sounds; {}"),
        ({"a/x.txt": b"", "y.pdf": b""}, "{}: must hold pictures or sounds, got neither (2 other files); {}"),
        ({"a/.x.png": b""}, "{}: must hold pictures or sounds, got neither (0 other files); {}"),
        ({"a/x.png": b"", "y.png": b""}, "{}: y.png " + OUTSIDE),
        ({"train/a/x.png": b"", "train/y.png": b""}, "{}: train/y.png " + OUTSIDE),
        (
            {"train/a/x.png": b"", "cat/y.png": b""},
            "{}: cat/y.png is in none of train, validation and test, but such folders are there",
        ),
    ],
)
def test_a_folder_that_does_not_fit_is_said_in_one_sentence(tmp_path, files, message):
    with pytest.raises(UserError) as caught:
        folder(unpacked(tmp_path, files))
    assert str(caught.value) == message.format(tmp_path, "for both, write a table of their paths")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError) as caught:
        folder(str(tmp_path / "none"))
    assert str(caught.value) == f"{tmp_path / 'none'}: no such folder or archive"


@pytest.mark.parametrize("data", [b"", b"not an archive", bytes(range(256)) * 7])
def test_a_file_that_is_no_archive_is_named(tmp_path, data):
    (tmp_path / "pets.zip").write_bytes(data)
    with pytest.raises(UserError) as caught:
        folder(str(tmp_path / "pets.zip"))
    assert str(caught.value) == f"{tmp_path / 'pets.zip'}: neither a folder nor a tar or zip archive"


@pytest.mark.parametrize("name", ["pets.tar", "pets.tar.gz", "pets.zip"])
def test_an_archive_cut_short_anywhere_is_said_to_be_damaged(tmp_path, name):
    """Never a traceback, and never fewer files than were packed."""
    place = tmp_path / name
    data = Path(packed(place, PETS)).read_bytes()
    content = 512 * 2 * len(PETS) if place.suffix == ".tar" else len(data)  # zeros follow a tar's last file
    for cut in range(1, content, max(content // 61, 1)):
        place.write_bytes(data[:cut])
        with pytest.raises(UserError, match=r"damaged or truncated archive|neither a folder nor a tar"):
            folder(str(place))


def test_a_damaged_header_amid_a_tar_does_not_end_it_quietly(tmp_path):
    place = tmp_path / "pets.tar"
    data = bytearray(Path(packed(place, PETS)).read_bytes())
    data[7 * 1024 + 30] ^= 0x55  # each file takes a header of 512 bytes and a block of 512
    place.write_bytes(bytes(data))
    with pytest.raises(UserError) as caught:
        folder(str(place))
    assert str(caught.value) == f"{place}: damaged or truncated archive (it breaks off at byte 7,168)"


@pytest.mark.parametrize("name", ["pets.tar.gz", "pets.zip"])
def test_a_flipped_byte_in_an_archive_is_noticed(tmp_path, name):
    place = tmp_path / name
    data = bytearray(Path(packed(place, {"cat/a.png": bytes(range(256)) * 5, "dog/b.png": b"dog"})).read_bytes())
    data[len(data) // 4] ^= 0x55
    place.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"damaged or truncated archive \(.+\)$"):
        folder(str(place))
