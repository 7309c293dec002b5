"""Shards of small pictures with labels, as tar and Parquet files, and a server for them."""

import io
import tarfile
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import datasets
import numpy as np
from PIL import Image

SIZES = (13, 7, 11, 5, 17)  # rows of the shards
COLORS = ("red", "green", "blue")


def rows_of(start, count):
    """Rows of a picture, its color and a text."""
    rows = []
    for i in range(start, start + count):
        rand = np.random.default_rng(i)
        label = int(rand.integers(3))
        pixels = rand.integers(0, 60, (8, 8, 3), dtype=np.uint8)
        pixels[..., label] += 150
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        rows.append({"png": file.getvalue(), "color": COLORS[label], "txt": f"picture number {i}"})
    return rows


def all_rows(sizes=SIZES):
    """The rows of each shard."""
    starts = np.cumsum([0, *sizes]).tolist()
    return [rows_of(start, size) for start, size in zip(starts, sizes, strict=False)]


def write_tars(folder, sizes=SIZES):
    """Write a data set in the format of WebDataset, and return the name of its files."""
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(all_rows(sizes)):
        with tarfile.open(folder / f"part-{number:02}.tar", "w") as archive:
            for i, row in enumerate(rows):
                contents = {"png": row["png"], "color": row["color"], "txt": row["txt"]}
                for end, content in contents.items():
                    content = content if isinstance(content, bytes) else content.encode()
                    # What `datasets` decodes has one of the usual ends.
                    end = {"color": "label.txt"}.get(end, end)
                    info = tarfile.TarInfo(f"{number:02}-{i:04}.{end}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return f"{folder}/part-{{00..{len(sizes) - 1:02}}}.tar"


def write_parquet(folder, sizes=SIZES):
    """Write the same rows as Parquet files, as the library of the hub does."""
    folder.mkdir(exist_ok=True)
    features = datasets.Features(
        png=datasets.Image(),
        color=datasets.ClassLabel(names=list(COLORS)),
        txt=datasets.Value("string"),
    )
    for number, rows in enumerate(all_rows(sizes)):
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        columns["png"] = [{"bytes": content, "path": None} for content in columns["png"]]
        part = datasets.Dataset.from_dict(columns, features=features)
        part.to_parquet(folder / f"part-{number:02}.parquet")
    return f"{folder}/part-{{00..{len(sizes) - 1:02}}}.parquet"


class Quiet(SimpleHTTPRequestHandler):
    """Serves the whole files of a folder, without a log."""

    def log_message(self, *args):
        pass


class Files(Quiet):
    """Serves also parts of files, which Parquet needs."""

    def do_GET(self):
        first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        path = Path(self.translate_path(self.path))
        if not first or not path.is_file():
            super().do_GET()
            return
        content = path.read_bytes()
        end = int(last) + 1 if last else len(content)
        part = content[int(first) : end]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def end_headers(self):
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()


@contextmanager
def served(folder, *, parts=True):
    """Serve a folder on this machine, and return its URL.

    Args:
        folder: The folder.
        parts: Whether the server sends parts of files.
    """
    handler = Files if parts else Quiet
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
