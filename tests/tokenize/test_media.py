"""Files to arrays: every supported kind of file, and the message that each bad one gives."""

import io
import warnings

import numpy as np
import pytest
import soundfile
import torch
from helpers.media import encoded, read_audio, read_image
from PIL import Image, ImageOps

from dxn.tokenize.audio.reader import audio_rate, audio_seconds
from dxn.tokenize.base import BadMedia

RATE = 8000


def picture(height=11, width=17, channels=3, seed=0):
    """A picture of random pixels, so that rotations and permutations show."""
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def sine(hertz=440.0, rate=RATE, seconds=0.5, channels=1, level=0.5):
    wave = level * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)
    return (
        wave.astype(np.float32)
        if channels == 1
        else np.stack([wave] * channels, 1).astype(np.float32)
    )


def sound(samples, rate=RATE, kind="WAV", subtype=None):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def loudest_hertz(samples, rate):
    spectrum = np.abs(np.fft.rfft(samples.numpy() * np.hanning(len(samples))))
    return float(spectrum.argmax() * rate / len(samples))


# Images


@pytest.mark.parametrize("kind", ["PNG", "BMP"])
def test_lossless_formats_keep_every_pixel(kind):
    pixels = picture()
    got = read_image(encoded(Image.fromarray(pixels), kind))
    assert got.dtype == torch.uint8 and got.shape == (3, 11, 17)
    assert np.array_equal(got.permute(1, 2, 0), pixels)


@pytest.mark.parametrize(
    ("kind", "options"), [("WEBP", {"lossless": True}), ("JPEG", {"quality": 95})]
)
def test_other_formats_are_read_as_pillow_reads_them(kind, options):
    data = encoded(Image.fromarray(picture()), kind, **options)
    assert np.array_equal(
        read_image(data).permute(1, 2, 0), np.array(Image.open(io.BytesIO(data)).convert("RGB"))
    )


def test_all_kinds_of_image_sources_give_the_same_pixels(tmp_path):
    pixels = picture()
    path = tmp_path / "a.png"
    path.write_bytes(encoded(Image.fromarray(pixels), "PNG"))
    expected = torch.from_numpy(pixels).permute(2, 0, 1)
    sources = [path, str(path), path.read_bytes(), Image.fromarray(pixels), pixels, expected]
    for channels in (3, 1):
        first, *rest = [read_image(source, channels=channels) for source in sources]
        assert first.shape == (channels, 11, 17)
        assert all(torch.equal(first, other) for other in rest)


def test_the_content_of_a_file_decides_its_format(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(encoded(Image.fromarray(picture()), "PNG"))
    assert np.array_equal(read_image(path).permute(1, 2, 0), picture())


@pytest.mark.parametrize(("image", "bit"), [(0, 0), (255, 255)])
def test_a_one_bit_picture_is_black_and_white(image, bit):
    data = encoded(Image.fromarray(np.full((5, 7), image, np.uint8)).convert("1"), "PNG")
    assert read_image(data).unique().tolist() == [bit]


def test_palette_images_get_their_colors():
    image = Image.fromarray(picture()).quantize(13)
    data = encoded(image, "PNG")
    assert np.array_equal(read_image(data).permute(1, 2, 0), np.array(image.convert("RGB")))
    assert len(np.unique(read_image(data).flatten(1), axis=1).T) == 13


def test_cmyk_images_become_rgb():
    ink = np.zeros((16, 16, 4), np.uint8)
    ink[..., 0] = 255  # only cyan ink, which absorbs red
    red, green, blue = (
        read_image(encoded(Image.fromarray(ink, "CMYK"), "JPEG", quality=100)).float().mean((1, 2))
    )
    assert red < 5 and green > 250 and blue > 250


def test_16_bits_are_scaled_to_8():
    values = np.array([[0, 257, 32896], [65535, 65278, 128]], np.uint16)
    grey = read_image(encoded(Image.fromarray(values), "PNG"), channels=1)
    assert grey.tolist() == [[[0, 1, 128], [255, 254, 0]]]


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0, 255), (255, 40), (51, 212)]
)  # 51 is a fifth: 255 - 215 / 5
def test_transparent_images_are_laid_over_white(alpha, expected):
    rgba = np.dstack([np.full((5, 7, 3), 40, np.uint8), np.full((5, 7), alpha, np.uint8)])
    la = np.ascontiguousarray(rgba[..., 2:])
    for pixels in (rgba, la):
        data = encoded(Image.fromarray(pixels), "PNG")
        for source in (data, pixels):
            for channels in (1, 3):
                got = read_image(source, channels=channels)
                assert got.shape == (channels, 5, 7)
                assert got.unique().tolist() == [expected]


def test_the_transparent_entry_of_a_palette_becomes_white():
    image = Image.new("P", (7, 5), 1)
    image.putpalette([0, 0, 0, 40, 40, 40])
    assert read_image(encoded(image, "PNG", transparency=1)).unique().tolist() == [255]
    assert read_image(encoded(image, "PNG", transparency=0)).unique().tolist() == [40]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(orientation):
    image = Image.fromarray(picture(16, 24))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for kind in ("JPEG", "PNG"):
        data = encoded(image, kind, exif=exif)
        expected = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
        assert expected.shape[:2] == ((16, 24) if orientation < 5 else (24, 16))
        assert np.array_equal(read_image(data).permute(1, 2, 0), expected)


def test_invalid_exif_data_is_ignored():
    data = encoded(
        Image.fromarray(picture(16, 16)),
        "JPEG",
        exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x07" * 31,
    )
    assert read_image(data).shape == (3, 16, 16)


def test_the_first_picture_of_an_animation_is_read():
    frames = [Image.new("RGB", (7, 5), colour) for colour in ("red", "green", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert Image.open(io.BytesIO(data)).n_frames == 3
    assert read_image(data)[:, 2, 3].tolist() == [255, 0, 0]


def test_gray_and_color_are_converted_into_each_other():
    grey = picture(channels=1)
    assert np.array_equal(read_image(grey, channels=3), np.stack([grey] * 3))
    colour = read_image(picture(), channels=1)[0].double()
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)  # ITU-R 601-2, as in Pillow
    expected = torch.from_numpy(picture()).double() @ weights
    assert float((colour - expected).abs().max()) <= 1


def test_reading_keeps_the_image_of_the_caller_open_and_warnings_on():
    image = Image.open(io.BytesIO(encoded(Image.fromarray(picture()), "PNG")))
    read_image(image)
    assert image.getpixel((3, 2)) == tuple(picture()[2, 3])
    with pytest.raises(UserWarning, match="still shown"):
        warnings.warn("still shown", UserWarning, stacklevel=1)


def cut_short(data, share=0.6):
    return data[: int(len(data) * share)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: b"", "^empty file$"),
        (lambda: b"just words", r"^not a supported image \(JPEG, PNG, .*\)$"),
        (
            lambda: cut_short(encoded(Image.fromarray(picture(67, 71)), "JPEG")),
            "^damaged or truncated image",
        ),
        (
            lambda: cut_short(encoded(Image.fromarray(picture(67, 71)), "PNG")),
            "^damaged or truncated image",
        ),
        (
            lambda: cut_short(encoded(Image.fromarray(picture(67, 71)), "BMP")),
            "^damaged or truncated image",
        ),
        (
            lambda: cut_short(encoded(Image.fromarray(picture(67, 71)), "WEBP")),
            "^(damaged|not a supported image)",
        ),
        (
            lambda: encoded(Image.fromarray(picture()), "ICO"),
            r"^not a supported image \(.*\)$",
        ),
        (
            lambda: encoded(Image.fromarray(picture(41, 53)), "PNG"),
            "^2,173 pixels, more than max_pixels=2,000$",
        ),
        (lambda: picture(41, 53), "^2,173 pixels, more than max_pixels=2,000$"),
        (lambda: Image.new("F", (5, 7)), "^floating-point images have no defined range"),
        (
            lambda: np.zeros((5, 7, 3), np.float32),
            r"must be uint8 with two or three dimensions, got torch.float32",
        ),
        (
            lambda: np.zeros((2, 5, 7, 3), np.uint8),
            r"must be uint8 .* got torch.uint8 \(2, 5, 7, 3\)",
        ),
        (lambda: np.zeros((0, 7, 3), np.uint8), r"must be uint8 .* got torch.uint8 \(0, 7, 3\)"),
        (
            lambda: np.zeros((5, 7, 11), np.uint8),
            "^an image array must have at most 4 channels, got 11$",
        ),
    ],
)
def test_a_bad_image_is_refused_with_the_reason(make, message):
    with pytest.raises(BadMedia, match=message):
        read_image(make(), max_pixels=2000 if "max_pixels" in message else 50_000_000)


def test_an_image_of_exactly_max_pixels_is_read():
    assert read_image(picture(41, 53), max_pixels=41 * 53).shape == (3, 41, 53)


def test_a_decompression_bomb_is_refused_before_it_is_decoded():
    data = encoded(Image.new("1", (17_000, 11_000)), "PNG")  # 187 million pixels in 50 kB
    assert len(data) < 100_000
    with pytest.raises(BadMedia, match="more than max_pixels"):
        read_image(data)


@pytest.mark.parametrize("read", [read_image, lambda path: read_audio(path, sample_rate=RATE)])
def test_missing_empty_and_text_files_are_refused_with_the_reason(read, tmp_path):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "words.jpg").write_text("neither an image nor audio, in spite of its name\n" * 50)
    for name, message in [
        ("none.jpg", "file not found"),
        ("empty.jpg", "empty file"),
        ("words.jpg", "^not a supported "),
    ]:
        with pytest.raises(BadMedia, match=message):
            read(tmp_path / name)
    with pytest.raises(BadMedia, match="file not found"):
        read(tmp_path)


# Audio


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
@pytest.mark.parametrize("sample_rate", [8000, 16000])
def test_resampling_keeps_pitch_and_length(rate, sample_rate):
    got = read_audio(sound(sine(441, rate), rate), sample_rate=sample_rate)
    assert got.dtype == torch.float32 and got.ndim == 1
    assert len(got) == pytest.approx(sample_rate / 2, abs=1)
    assert loudest_hertz(got, sample_rate) == pytest.approx(
        441, abs=2.5
    )  # the spectrum's bins are 2 Hz apart
    middle = got[len(got) // 4 : -len(got) // 4]
    assert float(middle.abs().max()) == pytest.approx(0.5, abs=0.02)


def test_frequencies_above_half_of_the_target_rate_are_filtered_out():
    assert (
        float(read_audio(sound(sine(7001, 32000), 32000), sample_rate=RATE)[500:-500].abs().max())
        < 0.01
    )


@pytest.mark.parametrize("rate", [22255, 7919])
def test_uncommon_rates_keep_their_pitch_within_a_thousandth(rate):
    got = read_audio(sound(sine(1009, rate, seconds=2), rate), sample_rate=16000)
    assert loudest_hertz(got, 16000) == pytest.approx(1009, abs=1.5)
    assert len(got) == pytest.approx(32000, rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "subtype", "tolerance"),
    [
        ("WAV", "PCM_U8", 1 / 100),
        ("WAV", "PCM_16", 1 / 20_000),
        ("WAV", "PCM_24", 1e-6),
        ("WAV", "PCM_32", 1e-6),
        ("WAV", "FLOAT", 0),
        ("WAV", "DOUBLE", 0),
        ("FLAC", "PCM_16", 1 / 20_000),
        ("FLAC", "PCM_24", 1e-6),
        ("AIFF", "PCM_16", 1 / 20_000),
        ("OGG", "VORBIS", 0.1),
        ("MP3", "MPEG_LAYER_III", 0.1),
    ],
)
def test_every_audio_format_gives_the_same_samples(kind, subtype, tolerance):
    wave = sine()
    got = read_audio(sound(wave, kind=kind, subtype=subtype), sample_rate=RATE)
    assert loudest_hertz(got, RATE) == pytest.approx(440, abs=2.5)
    if kind != "MP3":  # it adds silence before and after the clip
        torch.testing.assert_close(got, torch.from_numpy(wave), rtol=0, atol=tolerance)


def test_channels_are_averaged():
    stereo = np.stack([sine(300), sine(700, level=0.25)], 1)
    got = read_audio(sound(stereo, subtype="FLOAT"), sample_rate=RATE)
    torch.testing.assert_close(got, torch.from_numpy(stereo).mean(1), rtol=0, atol=1e-7)
    five = read_audio(sound(sine(channels=5), subtype="FLOAT"), sample_rate=RATE)
    torch.testing.assert_close(five, torch.from_numpy(sine()), rtol=0, atol=1e-7)


def test_all_kinds_of_audio_sources_give_the_same_samples(tmp_path):
    stereo = np.stack([sine(300), sine(700, level=0.25)], 1)
    path = tmp_path / "a.wav"
    path.write_bytes(sound(stereo, subtype="FLOAT"))
    sources = [
        path,
        str(path),
        path.read_bytes(),
        (stereo.T, RATE),
        (torch.from_numpy(stereo).T.double(), RATE),
    ]
    for sample_rate in (RATE, 11025):
        first, *rest = [read_audio(source, sample_rate=sample_rate) for source in sources]
        for other in rest:
            torch.testing.assert_close(other, first, rtol=0, atol=1e-6)
    assert [audio_rate(source) for source in sources] == [RATE] * 5
    assert {audio_seconds(source) for source in sources} == {len(stereo) / RATE}


def test_a_float32_array_at_its_own_rate_is_not_copied():
    sound = np.linspace(-1, 1, 101, dtype=np.float32)
    assert np.shares_memory(read_audio((sound, 8000), sample_rate=8000).numpy(), sound)


def test_int16_arrays_are_scaled_like_16_bit_files():
    whole = np.round(sine() * 32768).astype(np.int16)
    got = read_audio((whole, RATE), sample_rate=RATE)
    assert torch.equal(got, read_audio(sound(whole), sample_rate=RATE))
    assert float(got.abs().max()) == pytest.approx(0.5, abs=1e-3)


def test_a_wav_of_unknown_length_is_read_completely():
    data = bytearray(sound(sine()))
    at = data.index(b"data") + 4
    data[4:8] = data[at : at + 4] = b"\xff\xff\xff\xff"
    assert len(read_audio(bytes(data), sample_rate=RATE)) == RATE // 2


def noise(seconds=0.5):
    return np.random.default_rng(0).uniform(-0.5, 0.5, round(RATE * seconds)).astype(np.float32)


def with_sample(value):
    wave = sine()
    wave[137] = value
    return sound(wave, subtype="FLOAT")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: b"", "^empty file$"),
        (
            lambda: b"just words" * 100,
            r"^not a supported audio file \(WAV, FLAC, OGG, MP3, M4A, AAC",
        ),
        (lambda: cut_short(sound(noise())), "^truncated: the header promises 8,000 bytes of audio"),
        (lambda: cut_short(sound(noise(), kind="AIFF")), "^truncated: the header promises"),
        (lambda: cut_short(sound(noise(), kind="FLAC")), "truncated"),
        (lambda: sound(sine(seconds=0)), "^no samples in it$"),
        (lambda: (np.zeros((2, 0), np.float32), RATE), "^no samples in it$"),
        (lambda: with_sample(np.nan), "^samples that are NaN, infinite or above"),
        (lambda: with_sample(np.inf), "^samples that are NaN, infinite or above"),
        (lambda: (np.array([0.0, np.nan, 0.1]), RATE), "^samples that are NaN, infinite or above"),
        (lambda: sound(sine(seconds=2.5)), "^2.5 s, more than max_seconds=2$"),
        (lambda: (sine(seconds=2.5), RATE), "^2.5 s, more than max_seconds=2$"),
        (
            lambda: (np.zeros(5, np.int32), RATE),
            r"must be float or int16, .* got torch.int32 \(5,\) at 8000",
        ),
        (
            lambda: (np.zeros((2, 3, 5), np.float32), RATE),
            r"must be float or int16, .* got torch.float32 \(2, 3, 5\)",
        ),
        (lambda: (sine(), 0), "^a sample rate of 0 hertz; it must be from 100 to 768,000$"),
    ],
)
def test_a_bad_clip_is_refused_with_the_reason(make, message):
    with pytest.raises(BadMedia, match=message):
        read_audio(make(), sample_rate=RATE, max_seconds=2)


def test_a_clip_of_exactly_max_seconds_is_read():
    assert len(read_audio(sound(sine(seconds=2)), sample_rate=RATE, max_seconds=2)) == 2 * RATE


def test_a_raw_file_without_a_header_is_refused(tmp_path):
    (tmp_path / "a.raw").write_bytes(sine().tobytes())
    with pytest.raises(BadMedia, match="raw samples"):
        read_audio(tmp_path / "a.raw", sample_rate=RATE)


@pytest.mark.parametrize("source", [42, 3.5, ["a.png"], {"path": "a.png"}])
@pytest.mark.parametrize("read", [read_image, lambda source: read_audio(source, sample_rate=RATE)])
def test_sources_of_other_types_are_refused(read, source):
    with pytest.raises(BadMedia, match="must be a path, bytes or an array, got"):
        read(source)
