"""Caps on pictures, sounds and videos are checked before memory is used."""

import io
import struct
import tracemalloc
import zlib

import av
import numpy as np
import pytest
import soundfile
import torch
from helpers.media import read_audio, read_image, read_video
from PIL import Image

from dxn.tokenize.audio.reader import MAX_FILTER, _resampler, read_sound_track
from dxn.tokenize.base import BadMedia
from dxn.tokenize.image import reader as image_file
from dxn.tokenize.media import MAX_RATE, MIN_RATE
from dxn.tokenize.text.vocabulary import train_tokenizer
from dxn.tokenize.video.reader import VideoSampling

RATE = 16_000


def wav(rate, channels, frames, bits=16):
    data = bytes(frames * channels * bits // 8)
    width = channels * bits // 8
    form = struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * width % 2**32, width, bits)
    content = b"WAVEfmt " + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(content)) + content


def encoded(samples, rate=RATE, **options):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, **options)
    return file.getvalue()


def noise(*shape):
    return np.random.default_rng(0).normal(0, 0.1, shape).astype(np.float32)


@pytest.mark.parametrize("rate", [1, MIN_RATE - 1, MAX_RATE + 1, 10_000_000, 2**31 - 1])
def test_an_implausible_sample_rate_is_refused(rate):
    with pytest.raises(BadMedia, match=rf"^a sample rate of {rate:,} hertz; it must be from 100"):
        read_audio(wav(rate, 1, 40), sample_rate=RATE)
    with pytest.raises(BadMedia, match=r"^a sample rate of"):
        read_audio((noise(7), rate), sample_rate=RATE)


@pytest.mark.parametrize("rate", [100, 101, 8000, 11_025, 15_999, 22_255, 44_100, 767_999, 768_000])
def test_the_filter_of_every_allowed_rate_is_small(rate):
    resample = _resampler(rate, RATE)
    product = resample.orig_freq * resample.new_freq / resample.gcd**2
    assert product <= MAX_FILTER
    error = resample.orig_freq / resample.new_freq / (rate / RATE) - 1
    assert abs(error) < 1e-3
    assert len(read_audio(wav(rate, 1, rate // 10), sample_rate=RATE)) > 0


def test_the_product_of_frames_and_channels_is_limited_by_the_header():
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", 655_350, 8, "PCM_16", format="FLAC") as sound:
        for _ in range(31):
            sound.write(np.zeros((655_350, 8), np.int16))
    with pytest.raises(
        BadMedia, match=r"^162,526,800 values in all channels, more than 96,000,000"
    ):
        read_audio(file.getvalue(), sample_rate=RATE)


def test_many_channels_of_a_short_clip_are_averaged_in_blocks(monkeypatch):
    samples = noise(997, 7)
    whole = read_audio(encoded(samples, format="WAV", subtype="FLOAT"), sample_rate=RATE)
    monkeypatch.setattr("dxn.tokenize.audio.reader.BLOCK", 7 * 13)
    blocks = read_audio(encoded(samples, format="WAV", subtype="FLOAT"), sample_rate=RATE)
    assert torch.equal(whole, torch.from_numpy(samples.T.copy()).mean(0))
    # The order of the sums depends on the length of a block.
    torch.testing.assert_close(blocks, whole, rtol=0, atol=1e-7)
    assert read_audio(wav(RATE, 1000, 11), sample_rate=RATE).shape == (11,)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e7])
def test_samples_that_are_no_sound_are_refused(value):
    samples = noise(97)
    samples[13] = value
    with pytest.raises(BadMedia, match=r"^samples that are NaN, infinite or above 1,000,000$"):
        read_audio(encoded(samples, format="WAV", subtype="FLOAT"), sample_rate=RATE)


def test_the_rate_of_a_sound_track_is_that_of_its_frames(monkeypatch):
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(
            (noise(1, 8000) * 9999).astype(np.int16), format="s16", layout="stereo"
        )
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    samples, rate = read_sound_track(file.getvalue(), 60)
    assert rate == 8000
    assert samples.shape == (4000,)
    # The rate of the container, a float64 of 8000, is replaced by 1 hertz.
    content = file.getvalue().replace(struct.pack(">d", 8000.0), struct.pack(">d", 1.0))
    assert content != file.getvalue()
    with pytest.raises(BadMedia):
        read_sound_track(content, 60)


def clip(width, height):
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for i in range(3):
            pixels = np.full((height, width, 3), 50 * i, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode())
    return file.getvalue()


def test_the_limit_of_a_video_is_its_size_without_the_padding_of_the_decoder():
    def read(content, max_pixels):
        return read_video(
            content,
            sampling=VideoSampling(),
            num_kept=2,
            max_pixels=max_pixels,
            reduced_size=lambda height, width: (8, 8),
        )

    assert read(clip(300, 300), 100_000).shape == (2, 3, 8, 8)
    assert read(clip(300, 300), 90_000).shape == (2, 3, 8, 8)
    assert read(clip(2, 1000), 2000).shape == (2, 3, 8, 8)
    with pytest.raises(BadMedia, match="90,000 pixels, more than max_pixels=89,999"):
        read(clip(300, 300), 89_999)


def large_png(size):
    def chunk(kind, data):
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", size, size, 1, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes((size + 7) // 8)) * size, 9)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_a_small_file_of_a_large_picture_is_reduced_before_it_is_held():
    content = large_png(6000)
    assert len(content) < 10_000
    tracemalloc.start()
    pixels = read_image(content, reduced_size=lambda height, width: (16, 16))
    peak = tracemalloc.get_traced_memory()[1]  # of NumPy; the strips are the only arrays
    tracemalloc.stop()
    assert pixels.shape == (3, 16, 16)
    assert peak < 30_000_000
    with pytest.raises(BadMedia, match="36,000,000 pixels, more than max_pixels=1,000,000"):
        read_image(content, max_pixels=1_000_000)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_strips_do_not_change_a_picture(monkeypatch, mode, channels):
    values = np.random.default_rng(0).integers(0, 255, (23, 19, 3), dtype=np.uint8)
    image = Image.fromarray(values)
    if mode == "I;16":
        image = Image.fromarray(values[..., 0].astype(np.uint16) * 257)
    elif mode != "RGB":
        image = image.convert(mode)
    if mode == "P":
        image.info["transparency"] = 3
    whole = read_image(image, channels=channels)
    monkeypatch.setattr(image_file, "STRIP_PIXELS", 5 * 19)
    assert torch.equal(read_image(image, channels=channels), whole)


def test_a_long_text_without_spaces_does_not_slow_down_the_training_of_a_tokenizer():
    # The time grows with the square of the length of a word, so long ones are cut.
    tokenizer = train_tokenizer(["x" * 100_000, "a few words"] * 3, vocab_size=300)
    text = "x" * 5000
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    same = train_tokenizer([" ".join(["x" * 1000] * 100), "a few words"] * 3, vocab_size=300)
    assert tokenizer.to_str() == same.to_str()
