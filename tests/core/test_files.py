"""Files and folders are replaced at once or not at all."""

import errno
import os
from pathlib import Path

import pytest

from dxn.core import files
from dxn.core.errors import UserError
from dxn.core.files import (
    append_line,
    atomic_file,
    check_sums,
    remove_unfinished,
    replace_folder,
    write_sums,
    write_text,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a" / "figures.json"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), atomic_file(path) as partial:
        partial.write_text("ne")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert names(path.parent) == ["figures.json"]


def test_a_folder_is_replaced_with_all_its_files(tmp_path):
    folder = tmp_path / "model"
    for content in ("old", "new"):
        with replace_folder(folder) as new:
            (new / f"{content}.txt").write_text(content)
            # The old folder is complete until the end of the block.
            assert not folder.exists() or names(folder) == ["old.txt"]
    assert names(folder) == ["new.txt"]
    assert names(tmp_path) == ["model"]


def test_the_target_of_a_link_is_replaced_and_not_the_link(tmp_path):
    """A user can link model/ to a larger disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "old.txt").touch()
    write_sums(tmp_path / "disk")
    folder = tmp_path / "model"
    folder.symlink_to(tmp_path / "disk", target_is_directory=True)
    with replace_folder(folder) as new:
        (new / "new.txt").touch()
    assert folder.is_symlink()
    assert names(tmp_path / "disk") == ["new.txt"]
    assert names(tmp_path) == ["disk", "model"]


def test_a_link_to_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "thesis.txt").touch()
    folder = tmp_path / "model"
    folder.symlink_to(tmp_path / "documents", target_is_directory=True)
    refused = pytest.raises(UserError, match="would be replaced with all its files")
    with refused, replace_folder(folder):
        pass
    assert names(tmp_path / "documents") == ["thesis.txt"]


@pytest.mark.parametrize("kind", ["link", "dangling link", "device", "folder", "pipe"])
def test_a_line_is_not_written_through_a_link_or_to_a_device(tmp_path, kind):
    path, target = tmp_path / "metrics.jsonl", tmp_path / "notes.txt"
    if kind == "link":
        target.write_text("mine")
    if "link" in kind:
        path.symlink_to(target)
    elif kind == "device":
        path.symlink_to("/dev/null")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(UserError, match="must be a regular file"):
        append_line(path, "line")
    assert not target.exists() or target.read_text() == "mine"


def test_an_error_while_a_folder_is_written_leaves_the_old_one(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old.txt").touch()
    with pytest.raises(ZeroDivisionError), replace_folder(folder):
        raise ZeroDivisionError
    assert names(folder) == ["old.txt"]
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "two renames"])
def test_a_folder_is_replaced_on_any_file_system(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    folder = tmp_path / "model"
    for content in ("old", "new"):
        with replace_folder(folder) as new:
            (new / content).touch()
    assert names(folder) == ["new"]
    assert names(tmp_path) == ["model"]


def test_a_crash_between_the_two_renames_is_repaired(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").touch()
    monkeypatch.setattr(files, "_exchange", lambda *_: False)
    rename = type(folder).replace

    def crash(path, target):
        if target == folder:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(type(folder), "replace", crash)
    with pytest.raises(KeyboardInterrupt), replace_folder(folder):
        pass
    assert not folder.exists()
    monkeypatch.undo()
    remove_unfinished(tmp_path)
    assert names(tmp_path) == ["model"] and names(folder) == ["old"]


def test_what_a_killed_process_left_behind_is_removed(tmp_path):
    write_text(tmp_path / "kept.json", "{}")
    (tmp_path / ".unfinished-0123abcd-kept.json").write_text("half")
    (tmp_path / ".unfinished-0123abcd-model").mkdir()
    remove_unfinished(tmp_path)
    assert names(tmp_path) == ["kept.json"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_named_with_the_size_and_the_free_space(tmp_path, code):
    path = tmp_path / "weights.bin"
    path.write_text("old")
    message = r"weights.bin: cannot be written: 0.7 MB were written before .* MB free"
    with pytest.raises(UserError, match=message), atomic_file(path) as partial:
        partial.write_bytes(bytes(700_000))
        raise OSError(code, os.strerror(code))
    assert path.read_text() == "old"
    assert names(tmp_path) == ["weights.bin"]


def test_a_log_that_cannot_grow_names_the_disk(monkeypatch):
    monkeypatch.setattr(files, "open_own", lambda path: path.open("a"))  # it refuses devices
    with pytest.raises(UserError, match=r"/dev/full: cannot be written: .* no space left"):
        append_line(Path("/dev/full"), "{}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "a").write_text("other"), "a: the file changed after it was saved"),
        (lambda f: (f / "a").unlink(), "a: file not found, although SHA256SUMS lists it"),
        (lambda f: (f / "SHA256SUMS").write_text("x"), "each line must have a SHA-256 digest"),
        (
            lambda f: (f / "SHA256SUMS").write_text("0" * 64 + "  ../b\n"),
            "the name of a file in this folder, got '0000",
        ),
        (
            lambda f: (f / "SHA256SUMS").write_text("0" * 64 + "  /dev/zero\n"),
            "the name of a file in this folder",
        ),
        (lambda f: (f / "SHA256SUMS").write_bytes(b"\xff\xfe"), "cannot be read as UTF-8"),
        (lambda f: (f / "SHA256SUMS").write_bytes(bytes(2**21)), "at most 1,048,576 bytes"),
    ],
)
def test_a_changed_folder_does_not_match_its_sums(tmp_path, change, message):
    (tmp_path / "a").write_text("content")
    write_sums(tmp_path)
    check_sums(tmp_path)
    change(tmp_path)
    with pytest.raises(UserError, match=message):
        check_sums(tmp_path)


def test_a_file_that_users_may_edit_may_differ(tmp_path):
    (tmp_path / "README.md").write_text("content")
    write_sums(tmp_path)
    (tmp_path / "README.md").write_text("edited")
    with pytest.raises(UserError, match="README"):
        check_sums(tmp_path)
    check_sums(tmp_path, may_differ=("README.md",))
