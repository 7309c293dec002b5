"""Reading of video files: formats, times, rotation, limits, sound tracks, and broken files."""

import struct
import warnings

import av
import numpy as np
import pytest
import torch
from helpers.media import read_audio, read_video
from helpers.videos import (
    CODECS,
    RATE,
    SOUND_CODECS,
    as_bytes,
    bar_position,
    moving_bar,
    rotated,
    sine,
    write_video,
)
from PIL import Image

from dxn.tokenize import AudioAdapter, BadMedia, VideoAdapter, VideoSampling
from dxn.tokenize.audio.reader import audio_rate
from dxn.tokenize.column_profile import profile_of, scores_of
from dxn.tokenize.media import kinds_of
from dxn.tokenize.video.reader import displayed, frame_rate, sample_times

SOUNDING = [suffix for suffix in SOUND_CODECS if suffix != ".avi"]  # AVI needs an MP3 encoder


def read(source, *, num_kept=16, max_pixels=100_000, size=None, **sampling):
    return read_video(
        source,
        sampling=VideoSampling(**sampling),
        num_kept=num_kept,
        max_pixels=max_pixels,
        reduced_size=lambda height, width: size or (height, width),
    )


def places(frames):
    return [round(float(bar_position(frame)) * frames.shape[3]) for frame in frames]


# Formats


@pytest.mark.parametrize("suffix", CODECS)
def test_a_file_of_each_format_has_the_frames_that_were_written(tmp_path, suffix):
    path = write_video(tmp_path / f"a{suffix}", moving_bar(frames=11))
    frames = read(path)
    assert frames.shape == (11, 3, 48, 64)
    assert frames.dtype == torch.uint8
    assert places(frames) == pytest.approx([4 * i for i in range(11)], abs=1)
    assert torch.equal(read((tmp_path / f"a{suffix}").read_bytes()), frames)
    assert "video" in kinds_of(path)


@pytest.mark.parametrize("suffix", CODECS)
@pytest.mark.parametrize("sampling", [{}, {"num_frames": 5}, {"fps": 5}, {"mode": "random"}])
def test_a_header_tells_the_length_of_a_clip_of_each_format(tmp_path, suffix, sampling):
    path = write_video(tmp_path / f"a{suffix}", moving_bar(frames=11))
    adapter = VideoAdapter(dim=8, image_size=[16, 24], sampling=VideoSampling(**sampling))
    tokenizer = adapter.tokenizer
    assert tokenizer.header(path) == tokenizer.length(tokenizer.reader.read(path))


def test_a_header_of_a_clip_finds_what_reading_it_would_find(tmp_path):
    path = write_video(tmp_path / "a.mp4", moving_bar(frames=11))
    for sampling, limit in (({"max_frames": 10}, "max_frames"), ({"max_seconds": 0.5}, "seconds")):
        options = VideoSampling(**sampling)
        tokenizer = VideoAdapter(dim=8, image_size=16, sampling=options).tokenizer
        with pytest.raises(BadMedia, match=limit):
            tokenizer.header(path)
        with pytest.raises(BadMedia, match=limit):
            tokenizer.reader.read(path)


def test_the_content_decides_about_the_format_not_the_suffix(tmp_path):
    path = write_video(tmp_path / "a.webm", moving_bar())
    wrong = tmp_path / "a.mp4"
    (tmp_path / "a.webm").rename(wrong)
    assert read(wrong).shape == (12, 3, 48, 64)
    assert path.endswith(".webm")


def test_frames_are_reduced_while_they_are_read(tmp_path):
    path = write_video(tmp_path / "a.mp4", moving_bar(width=96))
    frames = read(path, size=(12, 24))
    assert frames.shape == (12, 3, 12, 24)
    assert places(frames) == pytest.approx(list(range(12)), abs=1)


def test_the_header_has_the_frame_rate(tmp_path):
    path = write_video(tmp_path / "a.mkv", moving_bar(), fps=7)
    assert frame_rate(path) == pytest.approx(7, rel=0.01)
    assert frame_rate(moving_bar()) == 0


def test_transparent_pixels_of_a_gif_are_white(tmp_path):
    frames = [Image.new("RGBA", (10, 6)) for _ in range(2)]
    for i, frame in enumerate(frames):
        frame.paste((200, 0, 0, 255), (0, 0, 5, 2 + i))
    path = tmp_path / "a.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100)
    got = read(path)
    assert len(got) == 2
    for frame in got:
        assert frame[:, 1, 1].tolist() == pytest.approx([200, 0, 0], abs=10)
        assert frame[:, 4, 7].tolist() == [255, 255, 255]


# Rotation


@pytest.mark.parametrize(
    ("degrees", "shape", "first", "last"),
    [
        (90, (64, 48), (0, 24), (44, 24)),  # the bar starts at the top and moves down
        (180, (48, 64), (24, 56), (24, 12)),
        (270, (64, 48), (56, 24), (12, 24)),
    ],
)
def test_the_rotation_of_the_header_is_applied(degrees, shape, first, last):
    frames = read(rotated(as_bytes(".mp4", moving_bar()), degrees))
    assert frames.shape[2:] == shape
    for frame, (row, column) in ((frames[0], first), (frames[-1], last)):
        assert int(frame[0, min(row + 4, shape[0] - 1), min(column + 4, shape[1] - 1)]) > 200
        assert float(frame.float().mean()) == pytest.approx(255 * 8 / 64, rel=0.3)


@pytest.mark.parametrize(
    ("matrix", "corners"),
    [
        ((1, 0, 0, 1), "ab cd"),
        ((-1, 0, 0, 1), "ba dc"),
        ((1, 0, 0, -1), "cd ab"),
        ((-1, 0, 0, -1), "dc ba"),
        ((0, 1, -1, 0), "ca db"),
        ((0, -1, 1, 0), "bd ac"),
        ((0, 1, 1, 0), "ac bd"),
        ((0, -1, -1, 0), "db ca"),
    ],
)
def test_a_display_matrix_turns_and_mirrors(matrix, corners):
    stored = np.array([list(b"ab"), list(b"cd")])[..., None]
    shown = displayed(stored, [65_536 * value for value in matrix])
    assert shown[..., 0].tolist() == [list(row.encode()) for row in corners.split()]


# Times


def test_frames_of_an_avi_file_with_times_of_decoding_are_in_order(tmp_path):
    path = write_video(tmp_path / "a.avi", moving_bar(), codec="libx264")
    assert places(read(path)) == pytest.approx([4 * i for i in range(12)], abs=1)
    assert places(read(path, num_frames=3, num_kept=3)) == pytest.approx([8, 24, 40], abs=1)


def test_a_part_of_a_recording_keeps_its_times_and_is_complete(tmp_path):
    times = [3_600_000 + 100 * i for i in range(12)]
    path = write_video(tmp_path / "a.mkv", moving_bar(), times=times)
    assert places(read(path)) == pytest.approx([4 * i for i in range(12)], abs=1)


def test_a_frame_rate_repeats_or_leaves_out_frames(tmp_path):
    path = write_video(tmp_path / "a.mp4", moving_bar(), fps=12)  # one second
    assert places(read(path, fps=4)) == pytest.approx([0, 12, 24, 36], abs=1)
    twice = places(read(path, fps=24, num_kept=99))
    assert twice == pytest.approx([4 * (i // 2) for i in range(24)], abs=1)


def test_frames_with_a_variable_rate_are_read_at_their_times(tmp_path):
    # Two quick frames, and a third one that stays for most of the clip.
    path = write_video(tmp_path / "a.mkv", moving_bar(4, step=12), times=[0, 100, 200, 1000])
    frames = read(path, fps=10, num_kept=99)
    assert places(frames)[:11] == pytest.approx([0, 12, *[24] * 8, 36], abs=1)


@pytest.mark.parametrize(
    ("sampling", "num_kept", "expected"),
    [
        ({}, 4, [1.0, 3.0, 5.0, 7.0]),  # the middle of four equal parts of 8 seconds
        ({}, 16, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"mode": "first"}, 3, [0, 1, 2]),
        ({"mode": "random"}, 3, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"fps": 0.5}, 9, [0, 2, 4, 6]),
        ({"fps": 0.5}, 2, [2.0, 6.0]),
        ({"fps": 2, "mode": "first"}, 3, [0, 0.5, 1]),
        ({"fps": 0.01}, 3, [0]),  # at least one frame
    ],
)
def test_the_times_follow_from_the_options(sampling, num_kept, expected):
    options = VideoSampling(**sampling)
    assert sample_times(range(8), 8, options, num_kept, fps=options.fps) == expected


# Packets


@pytest.mark.parametrize(
    ("suffix", "codec", "options"),
    [
        (".mp4", "libx264", {"g": "6"}),
        (".mkv", "libx264", {"x264-params": "keyint=6:open-gop=1:bframes=3"}),
        # A frame is complete only some frames after the keyframe, so all packets are decoded.
        (".mp4", "libx264", {"x264-params": "keyint=6:intra-refresh=1"}),
        (".avi", "mpeg4", {"g": "6", "bf": "2"}),
        (".webm", "libvpx-vp9", {"g": "6", "auto-alt-ref": "1", "lag-in-frames": "9"}),
    ],
)
def test_frames_are_the_same_if_packets_between_them_are_left_out(tmp_path, suffix, codec, options):
    rng = np.random.default_rng(0)
    clip = moving_bar(24, step=2) // 2 + rng.integers(0, 99, (24, 48, 64, 3), dtype=np.uint8)
    path = write_video(tmp_path / f"a{suffix}", clip, fps=10, codec=codec, options=options)
    every = read(path, num_kept=24, num_frames=24)
    for count in (1, 2, 3):
        step = 24 // count
        assert torch.equal(read(path, num_kept=count, num_frames=count), every[step // 2 :: step])


def test_packets_that_no_frame_needs_are_not_decoded(tmp_path):
    path = tmp_path / "a.mp4"
    write_video(path, moving_bar(24, step=2), options={"g": "6"})
    expected = read(path, num_kept=1, num_frames=1)
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux() if packet.size]
        places = [(packet.pos, packet.size) for packet in packets]
        keys = [i for i, packet in enumerate(packets) if packet.is_keyframe]
    data = bytearray(path.read_bytes())
    # The frame in the middle, the thirteenth, belongs to the third group of frames.
    assert keys[2] <= 12 < keys[3]
    for start, size in places[keys[1] : keys[2]]:
        data[start : start + size] = bytes(size)
    assert torch.equal(read(bytes(data), num_kept=1, num_frames=1), expected)
    with pytest.raises(BadMedia, match="damaged"):
        read(bytes(data), num_kept=24, num_frames=24)


# Arrays


def test_arrays_and_tensors_with_channels_first_or_last_are_the_same_clip():
    clip = moving_bar(5, 11, 13, step=1)
    expected = torch.from_numpy(clip).permute(0, 3, 1, 2)
    readonly = clip.copy()
    readonly.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source in (clip, readonly, torch.from_numpy(clip), expected):
            assert torch.equal(read(source), expected)
    assert torch.equal(read(clip[..., 0]), expected)  # gray becomes RGB
    assert kinds_of(clip) == kinds_of(expected) == ("video",)
    assert kinds_of(clip[0]) == ("image",)


# Limits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seconds": 0.5}, r"^1\.0 s, more than max_seconds=0\.5$"),
        ({"max_frames": 11}, r"^12 frames, more than max_frames=11$"),
        ({"max_pixels": 3071}, r"more than max_pixels=3,071( pixels)?$"),
    ],
)
@pytest.mark.parametrize("suffix", CODECS)
def test_limits_are_checked(tmp_path, suffix, options, message):
    path = write_video(tmp_path / f"a{suffix}", moving_bar())
    with pytest.raises(BadMedia, match=message):
        read(path, **options)


def test_limits_of_arrays_are_checked():
    with pytest.raises(BadMedia, match="12 frames, more than max_frames=5"):
        read(moving_bar(), max_frames=5)
    with pytest.raises(BadMedia, match="3,072 pixels, more than max_pixels=100"):
        read(moving_bar(), max_pixels=100)


def with_patch(data, name, offset, value):
    """The bytes of an MP4 with a changed number after the first part of this name."""
    data = bytearray(data)
    start = data.index(name) + len(name) + offset
    data[start : start + 4] = struct.pack(">I", value)
    return bytes(data)


def test_a_header_with_a_huge_size_is_refused_before_decoding():
    data = bytearray(as_bytes(".gif", moving_bar()))
    data[6:10] = struct.pack("<2H", 65535, 65535)  # width and height follow the signature
    with pytest.raises(BadMedia, match="more than max_pixels=100,000"):
        read(bytes(data))


def test_a_header_with_a_short_duration_does_not_hide_a_long_clip():
    data = as_bytes(".mp4", moving_bar(30))
    for name in (b"mvhd", b"mdhd"):
        data = with_patch(data, name, 16, 1)
    with pytest.raises(BadMedia, match="more than max_seconds=1"):
        read(data, max_seconds=1)


@pytest.mark.parametrize(("seconds", "message"), [(1e9, "max_seconds=60"), (9, "^truncated")])
def test_a_header_with_a_long_duration_is_refused(seconds, message):
    data = bytearray(as_bytes(".webm", moving_bar()))
    start = data.index(b"\x44\x89\x88") + 3  # the element Duration, eight bytes, in milliseconds
    data[start : start + 8] = struct.pack(">d", 1000 * seconds)
    with pytest.raises(BadMedia, match=message):
        read(bytes(data))


# Broken files


def truncated_mp4():
    data = as_bytes(".mp4", moving_bar(24))
    return data[: len(data) // 2]  # the index is at the end, so it is missing


def truncated(suffix):
    noise = np.random.default_rng(0).integers(0, 256, (24, 48, 64, 3), dtype=np.uint8)
    data = as_bytes(suffix, noise)
    return data[: len(data) // 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: b"", "^empty file$"),
        (lambda: b"just words" * 100, r"^not a supported video \(MP4, WebM, MKV, AVI, MOV, GIF\)$"),
        (lambda: b"#EXTM3U\n#EXTINF:1,\nhttp://localhost/a.ts\n", "^not a supported video"),
        (lambda: b"ffconcat version 1.0\nfile /etc/hostname\n", "^not a supported video"),
        (truncated_mp4, "^damaged or truncated file"),
        (lambda: truncated(".mkv"), "^truncated|^damaged or truncated"),
        (lambda: truncated(".webm"), "^truncated|^damaged or truncated"),
        (lambda: truncated(".avi"), "^truncated|^damaged or truncated"),
        (lambda: as_bytes(".mp4", sound=sine()), "^has no pictures: it is an audio file$"),
        (lambda: b"\0\0\0\x18ftypisom" + bytes(100), "^damaged or truncated file|^no frames"),
        (lambda: b"GIF89a" + bytes(50), "^no|^damaged"),
        (lambda: "missing.mp4", "^file not found "),
        (lambda: "https://example.com/a.mp4", "^is a URL"),
        (lambda: 17, "^must be a path, bytes or an array, got int$"),
        (lambda: np.zeros((3, 4, 5, 3)), r"^a video array must be uint8 .*float64"),
        (lambda: np.zeros((0, 4, 5, 3), np.uint8), r"^a video array must be uint8"),
        (lambda: np.zeros((2, 4, 5, 7), np.uint8), "at most 4 channels, got 7"),
    ],
)
def test_a_broken_file_is_bad_media_with_the_reason(make, message):
    with pytest.raises(BadMedia, match=message):
        read(make())


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".avi", ".gif"])
def test_damaged_bytes_never_end_in_another_error(suffix):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    data = as_bytes(suffix, noise)
    for _ in range(40):
        broken = bytearray(data)
        for place in rng.integers(0, len(data), 20):
            broken[place] = int(rng.integers(256))
        try:
            frames = read(bytes(broken), max_pixels=10_000)
        except BadMedia:
            continue
        assert frames.ndim == 4 and frames.shape[1] == 3


# Sound tracks


@pytest.mark.parametrize("suffix", SOUNDING)
def test_the_sound_track_of_a_video_is_audio(tmp_path, suffix):
    path = write_video(tmp_path / f"a{suffix}", moving_bar(24), sound=sine(2, hertz=440))
    samples = read_audio(path, sample_rate=8000)
    assert len(samples) == pytest.approx(16000, rel=0.1)
    spectrum = torch.fft.rfft(samples[1000:9000]).abs()
    assert int(spectrum.argmax()) == 440
    assert audio_rate(path) in (RATE, 48000)  # Opus always has 48,000 Hz
    assert torch.equal(
        read_audio((tmp_path / f"a{suffix}").read_bytes(), sample_rate=8000), samples
    )
    assert read(path).shape == (16, 3, 48, 64)


def test_m4a_files_are_audio(tmp_path):
    path = write_video(tmp_path / "a.mp4", sound=sine(1))
    m4a = tmp_path / "a.m4a"
    (tmp_path / "a.mp4").rename(m4a)
    assert len(read_audio(m4a, sample_rate=RATE)) == pytest.approx(RATE, rel=0.1)
    assert kinds_of(str(m4a)) == ("audio",)
    assert "audio" not in kinds_of(path)


def test_a_video_without_a_sound_track_is_a_missing_input(tmp_path):
    path = write_video(tmp_path / "a.mp4", moving_bar())
    assert read_audio(path, sample_rate=RATE) is None
    with pytest.raises(BadMedia, match=r"^has no sound track$"):
        audio_rate(path)
    assert AudioAdapter(8).tokenizer.reader.read(path) is None


def test_limits_of_a_sound_track_are_checked(tmp_path):
    path = write_video(tmp_path / "a.mp4", moving_bar(24), sound=sine(2))
    with pytest.raises(BadMedia, match="more than max_seconds=1"):
        read_audio(path, sample_rate=RATE, max_seconds=1)


def test_a_truncated_sound_track_is_bad_media():
    data = as_bytes(".mp4", moving_bar(), sound=sine())
    with pytest.raises(BadMedia, match=r"^damaged or truncated"):
        read_audio(data[:-900], sample_rate=RATE)


# Type inference


def test_a_gif_is_an_image_where_an_image_adapter_is_in_use():
    scores = scores_of(profile_of(["a.gif"]))
    assert scores["image"] == scores["video"] == 1
    assert scores["audio"] == 0
    mixed = scores_of(profile_of(["a.gif", "b.mp4", "c.mp4"]))
    assert mixed["video"] == 1 > mixed["image"]


def test_an_adapter_of_pictures_is_preferred_for_videos():
    films = scores_of(profile_of(["a.mp4", "b.webm"]))
    assert (films["video"], films["audio"]) == (1, 0.5)
    assert scores_of(profile_of(["a.wav", "b.m4a"]))["audio"] == 1
    assert scores_of(profile_of(["a.wav", "a text"]))["video"] == 0
    content = scores_of(profile_of([as_bytes(".webm", moving_bar(2))]))
    assert (content["video"], content["audio"]) == (1, 0.5)
