"""Links in folders and archives, and what is kept in memory of bad files."""

import gc
import io
import tarfile

import numpy as np
import pytest
import torch
from helpers.newcomer import SMALL_IMAGES, TINY, refused, run
from PIL import Image
from torch import Tensor

from dxn.data.raws import CacheBudget
from dxn.data.reading import open_rows
from dxn.data.rows import Rows
from dxn.tokenize import ImageAdapter
from dxn.tokenize.image.reader import ImageReader


def png(seed, size=9):
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def checked(capsys, path):
    """What dxn check prints about a folder or an archive of pictures."""
    capsys.readouterr()
    assert run("check", path, "adapters=[image]", "data.fractions=[1]") == 0
    return capsys.readouterr().out


def add(archive, name, data=b"", kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, target
    archive.addfile(info, io.BytesIO(data))


def test_the_links_of_a_tar_archive_are_files(tmp_path, capsys):
    path = tmp_path / "pictures.tar"
    with tarfile.open(path, "w") as archive:
        add(archive, "./b/early.png", kind=tarfile.SYMTYPE, target="../a/0.png")
        for i in range(10):
            add(archive, f"./{'ab'[i % 2]}/{i}.png", png(i))
        add(archive, "./b/hard.png", kind=tarfile.LNKTYPE, target="./a/2.png")
        add(archive, "./b/again.png", kind=tarfile.SYMTYPE, target="hard.png")
    assert "(b 8, a 5)" in checked(capsys, path)


def test_a_link_to_a_missing_file_of_an_archive_is_a_bad_file(tmp_path, capsys):
    path = tmp_path / "pictures.tar"
    with tarfile.open(path, "w") as archive:
        for i in range(10):
            add(archive, f"./{'ab'[i % 2]}/{i}.png", png(i))
        add(archive, "b/round.png", kind=tarfile.SYMTYPE, target="gone.png")
    error = refused(capsys, "train", path, "adapters=[image]", *SMALL_IMAGES, *TINY)
    assert "b/round.png: image: " in error


def test_a_class_folder_can_be_a_link_inside_of_the_data(tmp_path, capsys):
    for i in range(10):
        folder = tmp_path / ("a" if i % 2 else ".store")
        folder.mkdir(exist_ok=True)
        (folder / f"{i}.png").write_bytes(png(i))
    (tmp_path / "b").symlink_to(tmp_path / ".store")
    (tmp_path / "a" / "circle").symlink_to(tmp_path)
    assert "(a 5, b 5)" in checked(capsys, tmp_path)


def num_pictures():
    """Number of pictures that this process holds in memory."""
    gc.collect()
    return sum(isinstance(each, Image.Image) for each in gc.get_objects())


def test_the_pixels_of_damaged_pictures_are_not_kept():
    class Counting(ImageReader):
        """Counts the pictures that are in memory when the last file is read."""

        count = 0

        def read(self, cell: bytes) -> Tensor:
            if cell == b"last":
                self.count = num_pictures()
                cell = png(0)
            return super().read(cell)

    tokenizer = ImageAdapter(8).tokenizer
    tokenizer.reader = reader = Counting()
    files = [png(i, 300)[:-40_000] for i in range(40)]
    before = num_pictures()  # other tests of this process may hold some
    rows = Rows({"image": [*files, b"last"]}, [str(i) for i in range(41)])
    opened = open_rows(rows, {"image": tokenizer}, on_bad="skip")
    assert len(opened) == 1 and len(opened.bad) == 40
    assert reader.count - before < 20


def test_a_slow_file_does_not_let_all_others_be_read_meanwhile():
    class Slow(ImageReader):
        """Reads the last file only if few others were read while the first one was."""

        num_read = most = 0

        def read(self, cell: bytes) -> Tensor:
            self.num_read += 1
            if cell == b"first":
                while self.num_read < 8:  # others are read meanwhile
                    pass
                for _ in range(1000):
                    torch.zeros(1000).sum()
                self.most = self.num_read
            return torch.zeros(1)

    tokenizer = ImageAdapter(8).tokenizer
    tokenizer.reader = reader = Slow()
    files = [b"first", *(str(i).encode() for i in range(500))]
    rows = Rows({"image": files}, [str(i) for i in range(501)])
    open_rows(rows, {"image": tokenizer})
    assert reader.num_read == 501 and reader.most < 40


def test_a_file_that_two_inputs_read_counts_once():
    budget = CacheBudget(1e-6)
    files = [b"x" * 300, b"y" * 300]
    for _ in range(2):
        budget.take_anyway(files)
    assert budget.num_bytes == pytest.approx(400)


def test_a_folder_that_is_a_link_out_of_the_data_is_refused(tmp_path, capsys):
    for name in ("data/a", "data/b", "private"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.png").write_bytes(png(len(name)))
    (tmp_path / "data" / "c").symlink_to(tmp_path / "private")
    options = ["adapters=[image]", *SMALL_IMAGES, *TINY]
    error = refused(capsys, "train", tmp_path / "data", *options)
    assert f"{tmp_path}/data/c: leads out of the data folder" in error
    command = ["check", tmp_path / "data", "adapters=[image]", "data.confine=false"]
    assert run(*command, "data.fractions=[1]", f"output={tmp_path / 'bad.csv'}") == 0
    assert "(a 1, b 1, c 1)" in capsys.readouterr().out
