"""One folder of files per class: on disk or packed, with or without splits, and what is refused."""

import gzip
import io
import os
import tarfile
import time
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from helpers.data import by_modality, sizes

from dxn.core.errors import UserError
from dxn.data import InputSpec
from dxn.data import folder as read_folder
from dxn.tokenize import Reader

# The contents are not decoded here; that is the work of open_rows.
CATS = {f"cat/{i:02}.png": f"cat {i}".encode() for i in range(11)}
DOGS = {f"dog/{i:02}.JPG": f"dog {i}".encode() for i in range(7)}
PETS = {**CATS, **DOGS}


def folder(path, *, readers=None, **options):
    return read_folder(path, readers=readers or by_modality(), **options)


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
        return str(place)
    compression = {".gz": ":gz", ".xz": ":xz"}.get(place.suffix, "")
    with tarfile.open(place, "w" + compression) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return str(place)


def classes(source):
    """The class of every file of every split."""
    pairs = {}
    for rows in source.splits.values():
        pairs |= dict(zip(rows.origin, rows.cells["target"], strict=True))
    return pairs


def test_each_folder_is_a_class_and_its_files_are_divided(tmp_path):
    source = folder(unpacked(tmp_path, PETS))
    assert classes(source) == {name: name[:3] for name in PETS}
    assert source.inputs == {"image": InputSpec("files", "image")}
    assert (source.target, source.task) == ("folder name", "classify")
    assert sizes(source.splits) == {"train": 14, "validation": 2, "test": 2}
    rows = source.splits["train"]
    assert rows.cells["image"] == [str(tmp_path / name) for name in rows.origin]


def test_the_readers_decide_what_the_files_are(tmp_path):
    files = {"yes/a.wav": b"1", "no/b.flac": b"2", "no/c.MP3": b"3"}
    source = folder(unpacked(tmp_path, files))
    assert source.inputs == {"audio": InputSpec("files", "audio")}


def test_a_modality_of_the_user_can_be_in_folders(tmp_path):
    class Scans(Reader):
        modality = "scan"
        files = True

        def score(self, cells):
            return sum(str(cell).endswith(".dcm") for cell in cells) / len(cells)

    files = {"ill/a.dcm": b"1", "well/b.dcm": b"2", "well/readme.txt": b""}
    readers = {**by_modality(), "scan": Scans()}
    source = folder(unpacked(tmp_path, files), readers=readers)
    assert source.inputs == {"scan": InputSpec("files", "scan")}
    assert len(classes(source)) == 2


def test_a_nested_file_belongs_to_the_class_of_its_top_folder(tmp_path):
    files = {"cat/tabby/old/a.png": b"1", "dog/b.png": b"2", "dog/big/c.png": b"3"}
    source = folder(unpacked(tmp_path, files))
    assert classes(source) == {
        "cat/tabby/old/a.png": "cat",
        "dog/b.png": "dog",
        "dog/big/c.png": "dog",
    }


def test_folders_that_several_classes_have_are_noted(tmp_path):
    years = {f"{2020 + i % 2}/{name}": data for i, (name, data) in enumerate(PETS.items())}
    source = folder(unpacked(tmp_path, years))
    assert set(classes(source).values()) == {"2020", "2021"}
    assert "such as 2020, and not those in them, such as cat and dog" in source.notes[0]


def test_train_and_test_folders_are_the_splits_and_validation_is_drawn(tmp_path):
    files = {f"Training/{name}": data for name, data in PETS.items()}
    files |= {"test/cat/x.png": b"x", "test/dog/y.png": b"y"}
    source = folder(unpacked(tmp_path, files))
    assert sizes(source.splits) == {"train": 16, "validation": 2, "test": 2}
    assert source.splits["test"].origin == ["test/cat/x.png", "test/dog/y.png"]
    assert source.splits["test"].cells["target"] == ["cat", "dog"]
    assert all(name.startswith("Training/") for name in source.splits["validation"].origin)


def test_all_three_folders_are_used_as_they_are(tmp_path):
    files = {}
    for split, count in (("train", 5), ("val", 3), ("test", 2)):
        for name in "ab":
            files |= {f"{split}/{name}/{i}.png": b"1" for i in range(count)}
    source = folder(unpacked(tmp_path, files))
    assert sizes(source.splits) == {"train": 10, "validation": 6, "test": 4}
    assert list(source.notes) == []


@pytest.mark.parametrize("name", ["pets.tar", "pets.tar.gz", "pets.tar.xz", "pets.zip"])
def test_an_archive_gives_the_same_as_its_folder(tmp_path, name):
    source = folder(packed(tmp_path / name, PETS))
    plain = folder(unpacked(tmp_path / "pets", PETS))
    for split, rows in plain.splits.items():
        assert source.splits[split].origin == rows.origin
        assert source.splits[split].cells["target"] == rows.cells["target"]
        contents = [Path(cell).read_bytes() for cell in source.splits[split].cells["image"]]
        assert contents == [PETS[name] for name in rows.origin]


def test_a_changed_archive_is_extracted_again_and_an_unchanged_one_is_not(tmp_path):
    place = tmp_path / "pets.zip"
    files = [
        Path(str(folder(packed(place, pets)).splits["train"].cells["image"][0]))
        for pets in (PETS, {**PETS, "cat/new.png": b"new"})
    ]
    assert files[0].parent.parent != files[1].parent.parent
    again = folder(str(place)).splits["train"].cells["image"][0]
    assert Path(again) == files[1]


def test_an_interrupted_extraction_is_not_taken_for_a_whole_one(tmp_path, monkeypatch):
    place = packed(tmp_path / "pets.zip", PETS)
    with monkeypatch.context() as patch:

        def interrupted(archive, info, path):
            raise KeyboardInterrupt

        patch.setattr(zipfile.ZipFile, "extract", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder(place)
    assert classes(folder(place)) == {name: name[:3] for name in PETS}


def test_the_folder_of_an_extraction_that_was_killed_is_removed_after_a_day(tmp_path):
    cache = Path(
        folder(packed(tmp_path / "first.zip", PETS), fractions=None).splits["all"].cells["image"][0]
    )
    cache = next(parent for parent in cache.parents if parent.name == "archives")
    for name, age in ((".old-x", 2 * 86_400), (".new-x", 60)):
        (cache / name / "a").mkdir(parents=True)
        os.utime(cache / name, (time.time() - age,) * 2)
    folder(packed(tmp_path / "second.zip", PETS))
    assert [path.name for path in cache.glob(".*")] == [".new-x"]


def test_hostile_names_and_links_of_archives_are_refused(tmp_path):
    for name, kind, target, words in (
        ("a/../../evil.png", tarfile.REGTYPE, "", "outside the destination"),
        ("a/link.png", tarfile.SYMTYPE, "/etc/passwd", "absolute path"),
        ("a/link.png", tarfile.LNKTYPE, "../../etc/passwd", "outside the destination"),
        ("a/device.png", tarfile.CHRTYPE, "", "is a special file"),
    ):
        place = tmp_path / "a.tar"
        with tarfile.open(place, "w") as archive:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
        with pytest.raises(UserError, match=words):
            folder(str(place))
    place = tmp_path / "a.zip"
    for name in ("../evil.png", "/etc/evil.png", "a/../../evil.png"):
        with pytest.raises(UserError, match="leads out of the archive; pack it again"):
            folder(packed(place, {name: b"evil"}))
    with zipfile.ZipFile(place, "w") as archive:
        link = zipfile.ZipInfo("b/link.png")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "../a/0.png")
    with pytest.raises(
        UserError, match=r"^\S+: b/link\.png is a link; pack it again with the file"
    ):
        folder(str(place))
    with zipfile.ZipFile(place, "w") as archive, pytest.warns(match="Duplicate name"):
        for content in ("1", "2"):
            archive.writestr("a/0.png", content)
    with pytest.raises(UserError, match=r"^\S+: contains two files called a/0\.png"):
        folder(str(place))
    content = bytearray(Path(packed(place, {"a/0.png": b"secret"})).read_bytes())
    content[6] |= 1  # the flag of encrypted files, in the local header and in the directory
    content[content.index(b"PK\1\2") + 8] |= 1
    place.write_bytes(content)
    with pytest.raises(UserError, match=r"^\S+: a/0\.png is encrypted; extract the archive with"):
        folder(str(place))


def test_an_archive_that_expands_to_too_many_bytes_is_refused(tmp_path):
    place = tmp_path / "a.tar"
    with gzip.GzipFile(place, "wb", 1) as file:
        info = tarfile.TarInfo("a/0.png")
        info.size = 3 << 30
        file.write(info.tobuf() + bytes(1_000_000))
    with pytest.raises(UserError, match="expand to 3,221,225,472 or more"):
        folder(str(place))


@pytest.mark.parametrize("root", ["pets/", "./pets/", "data/pets/"])
def test_folders_around_everything_are_ignored(tmp_path, root):
    source = folder(
        packed(tmp_path / "pets.zip", {root + name: data for name, data in PETS.items()})
    )
    assert classes(source) == {name: name[:3] for name in PETS}


def test_a_single_class_is_not_a_folder_around_everything(tmp_path):
    assert set(classes(folder(unpacked(tmp_path, CATS))).values()) == {"cat"}


def test_hidden_files_are_ignored_and_other_files_are_counted(tmp_path):
    others = {
        "cat/.hidden.png": b"",
        ".git/a.png": b"",
        "__MACOSX/cat/._00.png": b"",
        "cat/readme.txt": b"",
        "about.md": b"",
    }
    files = {**PETS, **others}
    for path in (unpacked(tmp_path / "pets", files), packed(tmp_path / "pets.zip", files)):
        source = folder(path)
        assert sum(sizes(source.splits).values()) == 18
        assert source.notes[0] == "not used: 2 files of another type"


def test_a_hidden_folder_above_hides_nothing(tmp_path):
    source = folder(unpacked(tmp_path / ".cache" / "pets", PETS))
    assert sum(sizes(source.splits).values()) == 18


def test_fractions_seed_and_on_bad_are_options(tmp_path):
    path = unpacked(tmp_path, PETS)
    source = folder(path, fractions=(0.5, 0.0, 0.5), seed=5, on_bad="skip")
    assert sizes(source.splits) == {"train": 9, "test": 9}
    assert source.on_bad == "skip"
    again, other = (folder(path, fractions=(0.5, 0.0, 0.5), seed=seed) for seed in (5, 7))
    assert again.splits == source.splits != other.splits


@pytest.mark.parametrize(
    ("name", "expected"), [("pets", "pets"), ("pets.tar.gz", "pets"), ("my.pets.zip", "my.pets")]
)
def test_a_run_is_called_like_the_folder(tmp_path, name, expected):
    path = packed(tmp_path / name, PETS) if "." in name else unpacked(tmp_path / name, PETS)
    assert folder(path).name == expected


def test_without_fractions_files_stay_undivided(tmp_path):
    assert sizes(folder(unpacked(tmp_path, PETS), fractions=None).splits) == {"all": 18}


def test_copies_of_a_file_are_in_the_same_split(tmp_path):
    files = {f"{'ab'[i % 2]}/{i}.png": b"%05d" % (i // 4) * 2000 for i in range(80)}
    source = folder(unpacked(tmp_path, files))
    for rows in source.splits.values():
        numbers = Counter(int(name[2:-4]) // 4 for name in rows.origin)
        assert set(numbers.values()) == {4}
    assert all(len(rows) for rows in source.splits.values())


OUTSIDE = (
    "is not in a class folder; put each file in a folder named after its class, or write a table "
    "of the files and their targets (metadata.csv)"
)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a/x.png": b"", "a/y.wav": b""},
            "{}: all files must have the same modality, got 1 image files, 1 audio files; for "
            "several inputs, write a table with the paths and use data=table; "
            "data.read_as=[image] uses one kind of files",
        ),
        (
            {"a/x.txt": b"", "y.pdf": b""},
            "{}: none of its 2 files can be read by an adapter in use (adapters that read files: "
            "image, audio); set adapters, or check the path",
        ),
        ({"a/.x.png": b""}, "{}: the folder has no files; choose another one"),
        ({"a/x.png": b"", "y.png": b""}, "{}: y.png " + OUTSIDE),
        ({"train/a/x.png": b"", "train/y.png": b""}, "{}: train/y.png " + OUTSIDE),
        (
            {"train/a/x.png": b"", "cat/y.png": b""},
            "{}: cat/y.png is outside of the folders for the splits (train); move or delete it, "
            "or, if these folders are classes, put all class folders into a folder called train",
        ),
    ],
)
def test_a_folder_with_another_layout_is_explained(tmp_path, files, message):
    with pytest.raises(UserError) as caught:
        folder(unpacked(tmp_path, files))
    assert str(caught.value) == message.format(tmp_path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UserError) as caught:
        folder(str(tmp_path / "none"))
    here = f"current directory: {Path.cwd()}"
    assert str(caught.value) == f"file or folder not found: {tmp_path / 'none'} ({here})"


@pytest.mark.parametrize("data", [b"", b"not an archive", bytes(range(256)) * 7])
def test_a_file_that_is_no_archive_is_named(tmp_path, data):
    (tmp_path / "pets.zip").write_bytes(data)
    with pytest.raises(UserError) as caught:
        folder(str(tmp_path / "pets.zip"))
    expected = f"{tmp_path / 'pets.zip'}: must be a folder, or a tar or zip archive"
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("name", ["pets.tar", "pets.tar.gz", "pets.zip"])
def test_an_archive_truncated_anywhere_is_refused(tmp_path, name):
    """Never with a traceback, and never with fewer files than were packed."""
    place = tmp_path / name
    data = Path(packed(place, PETS)).read_bytes()
    # Zeros follow the last file of a tar; without some of them nothing is lost.
    content = 512 * 2 * len(PETS) if place.suffix == ".tar" else len(data)
    for cut in range(1, content, max(content // 61, 1)):
        place.write_bytes(data[:cut])
        expected = r"damaged or truncated archive|must be a folder"
        with pytest.raises(UserError, match=expected):
            folder(str(place))


def test_a_damaged_header_within_a_tar_does_not_end_it_silently(tmp_path):
    place = tmp_path / "pets.tar"
    data = bytearray(Path(packed(place, PETS)).read_bytes())
    data[7 * 1024 + 30] ^= 0x55  # each file has a header of 512 bytes and a block of 512 bytes
    place.write_bytes(bytes(data))
    with pytest.raises(UserError) as caught:
        folder(str(place))
    reason = "unexpected end at byte 7,168"
    assert f"damaged or truncated archive ({reason}); " in str(caught.value)


@pytest.mark.parametrize("name", ["pets.tar.gz", "pets.zip"])
def test_a_changed_byte_in_an_archive_is_noticed(tmp_path, name):
    place = tmp_path / name
    files = {"cat/a.png": bytes(range(256)) * 5, "dog/b.png": b"dog"}
    data = bytearray(Path(packed(place, files)).read_bytes())
    data[len(data) // 4] ^= 0x55
    place.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"damaged or truncated archive \(.+\); download"):
        folder(str(place))


def test_folders_of_a_zip_archive_can_be_separated_by_backslashes(tmp_path):
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        for name in ("cat\\1.png", "dog\\2.png"):
            archive.writestr(zipfile.ZipInfo(name), name)
    source = folder(str(tmp_path / "pets.zip"))
    assert classes(source) == {"cat/1.png": "cat", "dog/2.png": "dog"}


def test_a_name_with_backslashes_does_not_lead_out_of_an_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("..\\..\\1.png"), "1")
    with pytest.raises(UserError, match="leads out of the archive"):
        folder(str(tmp_path / "pets.zip"))


@pytest.mark.parametrize("split", ["", "train/"])
def test_a_class_without_a_file_to_read_is_named(tmp_path, split):
    files = {f"{split}cat/1.png": b"1", f"{split}cat/2.png": b"2", f"{split}bird/1.heic": b"3"}
    root = unpacked(tmp_path, {**files, f"{split}dog/3.png": b"3"})
    (tmp_path / split / "fish").mkdir()
    assert "not used: 2 folders without a file to read: bird, fish" in folder(root).notes
