"""Rows of bench.py: reading texts, pictures, videos and sounds."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile
import torch
import torchaudio
import transformers
from bench_row import OURS, Call, Goal, Options, Row, Work, check_equal
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from dxn.data.dataset import Samples
from dxn.data.loader import BatchOrder, Loader
from dxn.data.raws import CacheBudget
from dxn.data.reading import open_rows
from dxn.data.rows import Rows
from dxn.tokenize import AudioAdapter, ImageAdapter, VideoAdapter
from dxn.tokenize.audio.spectrogram import SpectrogramOptions
from dxn.tokenize.text.tokenizer import TextTokenizer
from dxn.tokenize.text.vocabulary import train_tokenizer

DOCUMENTS = 10_000
BATCH = 64
MAX_LEN = 512
WORKERS = 2
PHOTOS = 384
PHOTO_SIZE = (500, 400)
SIDE = 224
CLIPS = 192
RATE = 16_000
FILMS = 16
FILM_SIZE = (320, 240)
FPS, SECONDS = 25, 10


def documents(count: int) -> list[str]:
    """Return texts of 20 to 120 random words, whose frequencies follow Zipf's law."""
    rand = random.Random(0)
    letters = "etaoinshrdlcumwfgypbvk"
    words = ["".join(rand.choices(letters, k=rand.randint(2, 9))) for _ in range(4000)]
    weights = [1 / (i + 1) for i in range(len(words))]
    return [" ".join(rand.choices(words, weights, k=rand.randint(20, 120))) for _ in range(count)]


def text_ids(options: Options) -> Work:
    """10,000 documents as padded batches of ids and masks, in order, without a cache."""
    texts = documents(DOCUMENTS)
    tokenizer = train_tokenizer(texts[:2000], kind="bpe", vocab_size=8000)
    bare = Tokenizer.from_str(tokenizer.to_str())
    bare.enable_truncation(MAX_LEN)
    bare.enable_padding()

    def ours() -> list[tuple[Tensor, Tensor]]:
        # A new preprocessor, which has not seen these texts.
        prepare = TextTokenizer(max_len=MAX_LEN)
        prepare.use_vocabulary(tokenizer)
        opened = open_rows(Rows({"text": texts}, [""] * len(texts)), {"text": prepare})
        loader = Loader(BatchOrder(Samples(opened, {"text": prepare}), BATCH), num_workers=0)
        return [(batch["text"]["ids"], batch["text"]["mask"]) for batch in loader]

    def tensors() -> list[tuple[Tensor, Tensor]]:
        batches = []
        for start in range(0, len(texts), BATCH):
            encodings = bare.encode_batch_fast(texts[start : start + BATCH])
            ids = torch.tensor([e.ids for e in encodings])
            batches.append((ids, torch.tensor([e.attention_mask for e in encodings]).bool()))
        return batches

    def peer() -> None:
        for start in range(0, len(texts), BATCH):
            bare.encode_batch_fast(texts[start : start + BATCH])

    for (ids, mask), (peer_ids, peer_mask) in zip(ours(), tensors(), strict=True):
        check_equal(mask, peer_mask, tolerance=0, name="masks")
        check_equal(ids * mask, peer_ids * peer_mask, tolerance=0, name="ids")
    calls = {
        OURS: returns_nothing(ours),
        "tokenizers": peer,
        "tokenizers and tensors": returns_nothing(tensors),
    }
    return Work(calls)


def jpeg_folder(options: Options) -> Work:
    """A folder of JPEG files to batches of uint8 pixels, read again in each call."""
    paths = make_photos(options.folder)
    prepare = ImageAdapter(image_size=SIDE, resize=_crop()).tokenizer
    # No file fits into this memory, so every call reads all of them.
    opened = open_rows(
        Rows({"image": paths}, [""] * len(paths)), {"image": prepare}, budget=CacheBudget(0)
    )
    loader = Loader(BatchOrder(Samples(opened, {"image": prepare}), BATCH), num_workers=WORKERS)
    steps = (v2.PILToTensor(), v2.Resize(SIDE, antialias=True), v2.CenterCrop(SIDE))
    images = ImageFolder(str(options.folder), v2.Compose(steps))
    peers = DataLoader(images, BATCH, num_workers=WORKERS, persistent_workers=True)

    def ours() -> list[Tensor]:
        return [batch["image"]["pixels"] for batch in loader]

    def peer() -> list[Tensor]:
        return [pixels for pixels, _ in peers]

    check_equal(torch.cat(ours()), torch.cat(peer()), tolerance=0, name="pixels")
    return Work({OURS: returns_nothing(ours), "torchvision": returns_nothing(peer)})


def make_photos(folder: Path) -> list[str]:
    """Write photos of smooth colors with noise to one folder per class, and return their paths."""
    paths = []
    for i in range(PHOTOS):
        rand = np.random.default_rng(i)
        colors = Image.fromarray(rand.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        smooth = np.asarray(colors.resize(PHOTO_SIZE, Image.Resampling.BICUBIC), np.float32)
        noise = 6 * rand.standard_normal(smooth.shape, np.float32)
        path = folder / "ab"[i * 2 // PHOTOS] / f"{i:05}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray((smooth + noise).clip(0, 255).astype(np.uint8)).save(path, quality=90)
        paths.append(str(path))
    return paths


def wav_folder(options: Options) -> Work:
    """16 kHz WAV files of 1 to 10 s to batches of Kaldi's log-mel, as AST needs them."""
    paths = make_clips(options.folder)
    spectrogram = SpectrogramOptions(frontend="kaldi", n_mels=128, num_frames=1024)
    prepare = AudioAdapter(sample_rate=RATE, spectrogram=spectrogram).tokenizer
    extractor = transformers.ASTFeatureExtractor(do_normalize=False)

    def ast(batch: list[str]) -> Tensor:
        clips = [soundfile.read(path, dtype="float32")[0] for path in batch]
        return extractor(clips, sampling_rate=RATE, return_tensors="pt")["input_values"]

    def kaldi(path: str) -> Tensor:
        return torchaudio.compliance.kaldi.fbank(
            torch.from_numpy(soundfile.read(path, dtype="float32")[0])[None],
            sample_frequency=RATE,
            window_type="hanning",
            num_mel_bins=128,
        )

    def bare(batch: list[str]) -> Tensor:
        clips = [kaldi(path) for path in batch]
        padded = [nn.functional.pad(clip, (0, 0, 0, 1024 - len(clip))) for clip in clips]
        return torch.stack(padded)

    return _sounds(paths, prepare, {"transformers": ast, "torchaudio": bare})


def wav_folder_mel(options: Options) -> Work:
    """The same files to batches of the default log-mel."""
    paths = make_clips(options.folder)
    prepare = AudioAdapter(sample_rate=RATE).tokenizer
    mel = torchaudio.transforms.MelSpectrogram(
        RATE, n_fft=400, hop_length=160, n_mels=64, f_max=RATE / 2, pad_mode="constant"
    )

    def bare(batch: list[str]) -> Tensor:
        clips = [torch.from_numpy(soundfile.read(path, dtype="float32")[0]) for path in batch]
        mels = [(mel(clip) + 1e-6).log().T for clip in clips]
        return nn.utils.rnn.pad_sequence(mels, batch_first=True)

    return _sounds(paths, prepare, {"torchaudio": bare})


def make_clips(folder: Path) -> list[str]:
    """Write clips of noise of 1 to 10 s as 16-bit WAV files, and return their paths."""
    paths = []
    for i, seconds in enumerate(np.linspace(1, 10, CLIPS).tolist()):
        rand = np.random.default_rng(i)
        path = folder / f"{i:05}.wav"
        samples = np.multiply(0.1, rand.standard_normal(round(seconds * RATE)))
        soundfile.write(path, samples.clip(-1, 1), RATE, subtype="PCM_16")
        paths.append(str(path))
    return paths


def video_folder(options: Options) -> Work:
    """A folder of H.264 files to batches of 16 frames per clip at the default size.

    torchcodec is a peer if it can be imported: it needs the libraries of FFmpeg.
    """
    paths = make_films(options.folder)
    prepare = VideoAdapter().tokenizer
    rows = Rows({"video": paths}, [""] * FILMS)
    opened = open_rows(rows, {"video": prepare}, budget=CacheBudget(0))
    loader = Loader(BatchOrder(Samples(opened, {"video": prepare}), 4), num_workers=WORKERS)
    count = prepare.sampling.num_frames
    times = [(i + 0.5) * SECONDS / count for i in range(count)]
    size = prepare.image.kept_size(FILM_SIZE[1], FILM_SIZE[0])

    def resized(frames: Tensor) -> Tensor:
        return nn.functional.interpolate(frames, size, mode="bilinear", antialias=True)

    def pyav(path: str) -> Tensor:
        with av.open(path) as container:
            numbers = {int(time * FPS) for time in times}
            decoded = enumerate(container.decode(video=0))
            frames = [frame.to_ndarray(format="rgb24") for i, frame in decoded if i in numbers]
        return resized(torch.from_numpy(np.stack(frames)).movedim(-1, 1))

    def torchcodec(path: str) -> Tensor:
        return resized(VideoDecoder(path).get_frames_played_at(times).data)

    peers: dict[str, Callable[[str], Tensor]] = {"PyAV": pyav}
    try:
        from torchcodec.decoders import VideoDecoder  # pyright: ignore[reportMissingImports]

        peers["torchcodec"] = torchcodec
    except (ImportError, RuntimeError, OSError) as error:
        print(f"video_folder: without torchcodec ({str(error).splitlines()[0]})")

    def ours() -> list[Tensor]:
        return [batch["video"]["pixels"] for batch in loader]

    calls: dict[str, Call] = {OURS: returns_nothing(ours)}
    frames = ours()
    for name, run in peers.items():
        files = _Files(paths, lambda batch, run=run: torch.stack([run(path) for path in batch]))
        theirs = DataLoader(
            files, 4, num_workers=WORKERS, collate_fn=_same, persistent_workers=True
        )
        for one, other in zip(frames, theirs, strict=True):
            check_equal(one, other, tolerance=0, name=f"frames of {name}")
        calls[name] = returns_nothing(lambda theirs=theirs: list(theirs))
    return Work(calls)


def make_films(folder: Path) -> list[str]:
    """Write clips of a camera that moves over smooth colors, and return their paths.

    As by default in FFmpeg's encoder, there are keyframes only after large changes of the picture.
    """
    paths = []
    for i in range(FILMS):
        rand = np.random.default_rng(i)
        colors = Image.fromarray(rand.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        wide = np.asarray(colors.resize((960, 720), Image.Resampling.BICUBIC), np.int16)
        noise = np.multiply(4, rand.standard_normal((260, 340, 3))).round().astype(np.int16)
        path = folder / f"{i:05}.mp4"
        with av.open(str(path), "w") as container:
            # The preset only makes the benchmark start earlier.
            stream = container.add_stream("libx264", rate=FPS, options={"preset": "veryfast"})
            stream.width, stream.height = FILM_SIZE
            for t in range(FPS * SECONDS):
                top, left = int(240 + 200 * np.sin(t / 40)), int(320 + 300 * np.cos(t / 55))
                down, across = rand.integers(20, size=2)
                frame = wide[top : top + 240, left : left + 320]
                frame = frame + noise[down : down + 240, across : across + 320]
                pixels = av.VideoFrame.from_ndarray(
                    frame.clip(0, 255).astype(np.uint8), format="rgb24"
                )
                container.mux(stream.encode(pixels))
            container.mux(stream.encode())
        paths.append(str(path))
    return paths


class _Files(Dataset):
    """The results of a function for batches of files."""

    def __init__(self, paths: list[str], run: Callable[[list[str]], Tensor]):
        self.paths = paths
        self.run = run

    def __len__(self) -> int:
        return len(self.paths)

    def __getitems__(self, rows: list[int]) -> Tensor:
        return self.run([self.paths[i] for i in rows])


def _sounds(
    paths: list[str], prepare: Any, peers: dict[str, Callable[[list[str]], Tensor]]
) -> Work:
    """Compare batches of features, which both sides compute in two processes."""
    rows = Rows({"audio": paths}, [""] * len(paths))
    opened = open_rows(rows, {"audio": prepare}, budget=CacheBudget(0))
    samples = Samples(opened, {"audio": prepare})
    loader = Loader(BatchOrder(samples, 16), num_workers=WORKERS)

    def ours() -> list[Tensor]:
        return [batch["audio"]["features"] for batch in loader]

    calls: dict[str, Call] = {OURS: returns_nothing(ours)}
    features = ours()
    for name, run in peers.items():
        theirs = DataLoader(
            _Files(paths, run), 16, num_workers=WORKERS, collate_fn=_same, persistent_workers=True
        )
        for one, other in zip(features, theirs, strict=True):
            check_equal(one, other, tolerance=1e-3, name=f"features of {name}")
        calls[name] = returns_nothing(lambda theirs=theirs: list(theirs))
    return Work(calls)


def _same(batch: Any) -> Any:
    return batch


def _crop() -> Any:
    from dxn.tokenize.image.tokenizer import ResizeOptions

    return ResizeOptions(mode="crop", crop_ratio=1.0)


def returns_nothing(call: Callable[[], object]) -> Callable[[], None]:
    """Return a call without its result, which would be taken for a measurement."""

    def run() -> None:
        call()

    return run


ROWS = (
    Row(
        "text_ids",
        "10,000 documents of 70 words to padded batches of ids and masks",
        "input",
        text_ids,
        (Goal(at_least=0.9, peer="tokenizers"),),
    ),
    Row(
        "jpeg_folder",
        f"{PHOTOS} JPEG files of 500×400 pixels to batches at 224, 2 workers",
        "input",
        jpeg_folder,
        (Goal(at_least=1.5),),
    ),
    Row(
        "video_folder",
        f"{FILMS} H.264 files of {SECONDS} s, 320×240, to batches of 16 frames, 2 workers",
        "input",
        video_folder,
        (Goal(at_least=1.0),),
    ),
    Row(
        "wav_folder",
        f"{CLIPS} WAV files of 1 to 10 s to Kaldi's log-mel, 2 workers",
        "input",
        wav_folder,
        (Goal(at_least=1.5, peer="transformers"), Goal(at_least=0.8, peer="torchaudio")),
    ),
    Row(
        "wav_folder_mel",
        "the same to the default log-mel",
        "input",
        wav_folder_mel,
        (Goal(at_least=0.8, peer="torchaudio"),),
    ),
)
