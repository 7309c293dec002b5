"""The frames of an MP3 file, to recognize a truncated one.

libsndfile knows the length of an MP3 file only if its encoder wrote a tag with it. Without the tag,
it returns what is left of a truncated file. Each frame has a header of four bytes that determines
its length (ISO 11172-3 section 2.4.2.3), so the last frame shows whether its end is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dxn.tokenize.media import bytes_or_path

# Kilobits per second by index, of layer III, for MPEG 1 and for MPEG 2 and 2.5.
BIT_RATES = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
SAMPLE_RATES = (44100, 48000, 32000)  # hertz of MPEG 1 by index
DIVISORS = {3: 1, 2: 2, 0: 4}  # of the sample rate, by the bits of the version: MPEG 1, 2 and 2.5
LAYER_3 = 1
MIN_FRAMES = 3  # the four bytes of a header can occur by chance


def is_cut_mp3(source: Any) -> bool:
    """Whether an MP3 file ends within a frame.

    Args:
        source: Path or bytes of the file.
    """
    opened = bytes_or_path(source)
    data = Path(opened).read_bytes() if isinstance(opened, str) else opened.getvalue()
    start = _end_of_tag(data)
    count = 0
    while (length := _frame_length(data[start : start + 4])) is not None:
        start += length
        count += 1
    # Anything but a frame after the last one is a tag at the end of the file.
    return count >= MIN_FRAMES and start > len(data)


def _end_of_tag(data: bytes) -> int:
    """Return the index of the first byte after an ID3 tag."""
    if not data.startswith(b"ID3") or len(data) < 10:
        return 0
    # Four bytes with seven bits each.
    size = 0
    for byte in data[6:10]:
        size = size << 7 | byte & 127
    return 10 + size


def _frame_length(header: bytes) -> int | None:
    """Return the number of bytes of a frame; None if there is no frame, or its length is free."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return None
    version = header[1] >> 3 & 3
    rate_index = header[2] >> 2 & 3
    bit_rate_index = header[2] >> 4
    if version not in DIVISORS or header[1] >> 1 & 3 != LAYER_3:
        return None
    if rate_index == 3 or bit_rate_index in (0, 15):
        return None
    is_first = version == 3
    bits = 1000 * BIT_RATES[0 if is_first else 1][bit_rate_index]
    rate = SAMPLE_RATES[rate_index] // DIVISORS[version]
    # 1152 samples per frame, or 576 of MPEG 2 and 2.5; 8 bits per byte.
    padding = header[2] >> 1 & 1
    return (144 if is_first else 72) * bits // rate + padding
