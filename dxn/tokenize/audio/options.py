"""Option groups of the audio adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from dxn.core.schema import options
from dxn.tokenize.patches import as_pair

Frontend = Literal["mel", "kaldi", "whisper"]
Scale = Literal["log", "pcen"]
AudioTokens = Literal["frames", "patches", "waveform"]
NormalizationKind = Literal["dataset", "clip", "none"]


@options
class SpectrogramOptions:
    """Options of the mel spectrogram of a clip.

    Args:
        n_fft: Window length in samples. Default: 25 ms.
        hop_length: Distance between consecutive windows in samples. Default: 10 ms.
        n_mels: Number of mel bins.
        f_min: Lowest frequency of the mel bins in hertz.
        f_max: Highest frequency of the mel bins in hertz. Default: sample_rate / 2.
        frontend: Implementation of the spectrogram: mel (torchaudio), kaldi (Kaldi's filter banks,
            as used by AST) or whisper.
        scale: With frontend=mel, the scale of the power: log, or pcen (per-channel energy
            normalization, arXiv:1607.05666), which divides each bin by its mean over the last
            0.4 s, so that constant noise and the distance of the microphone matter less.
        top_db: With frontend=mel, clamp values to this many decibels below the maximum of the clip.
            Default: no clamping.
        num_frames: Number of frames to which every clip is truncated or padded. Default: keep the
            length of each clip.
        max_seconds: Maximum duration in seconds. Longer clips are rejected.
    """

    n_fft: int | None = None
    hop_length: int | None = None
    n_mels: int = 64
    f_min: float = 0.0
    f_max: float | None = None
    frontend: Frontend = "mel"
    scale: Scale = "log"
    top_db: Annotated[float, Gt(0)] | None = None
    num_frames: int | None = None
    max_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.frontend != "mel" and (self.f_min or self.f_max or self.top_db):
            raise ValueError(
                f"frontend={self.frontend} has a fixed frequency and dynamic range: leave out "
                f"f_min, f_max and top_db, got {self.f_min}, {self.f_max} and {self.top_db}"
            )
        if self.frontend != "mel" and self.scale != "log":
            raise ValueError(
                f"frontend={self.frontend} has a fixed scale: leave out scale, got {self.scale}"
            )


@options
class PatchOptions:
    """Options of the patches of a spectrogram.

    Args:
        size: Size of a patch: [mel bins, frames], or one number for a square.
        stride: Distance between consecutive patches: [mel bins, frames], or one number for both.
            Default: size, so that patches do not overlap.
        pad_end: Pad the end of a clip to a whole patch or token. False: drop the incomplete one.
    """

    size: int | Sequence[int] = 16
    stride: int | Sequence[int] | None = None
    pad_end: bool = True

    def __post_init__(self) -> None:
        # object.__setattr__, because the dataclass is frozen.
        object.__setattr__(self, "size", bins_and_frames(self.size, "patch size"))
        if self.stride is not None:
            object.__setattr__(self, "stride", bins_and_frames(self.stride, "patch stride"))


def bins_and_frames(size: int | Sequence[int], name: str) -> tuple[int, int]:
    """Convert one number, or a pair (mel bins, frames), to a pair."""
    return as_pair(size, name=name, axes="mel bins, frames")


@options
class AudioNormalization:
    """Normalization of the features to mean 0 and standard deviation 1.

    Args:
        kind: Source of the statistics: dataset (each bin over the training split), clip (each clip
            by itself) or none (no normalization).
        mean: Mean of all bins, for kind=dataset. Default: computed from the training split.
        std: Standard deviation of all bins, for kind=dataset. Default: computed from the training
            split.
    """

    kind: NormalizationKind = "dataset"
    mean: float | None = None
    std: float | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ValueError(
                f"normalize needs both mean and std, or neither, got {self.mean} and {self.std}"
            )
        if self.mean is not None and self.kind != "dataset":
            raise ValueError(
                f"normalize.mean and normalize.std need kind=dataset, got kind={self.kind}"
            )


@options
class AudioAugment:
    """Random augmentation of training clips. It is drawn again in each epoch.

    Args:
        crop: Train with a random part of this many seconds of longer clips. Validation, test and
            prediction use the whole clip. 0: off.
        time_shift: Maximum duration in seconds of the silence that is inserted before a clip.
        noise: Maximum amplitude of added white noise, relative to the root mean square of the clip.
        gain: Maximum change of the volume in decibels, up or down.
        speed: Maximum relative change of the speed, which also changes the pitch.
        freq_mask: Maximum number of mel bins in the frequency mask (SpecAugment, arXiv:1904.08779).
        time_mask: Maximum fraction of the frames in the time mask (SpecAugment).
        warp: Maximum relative stretching of the mel axis, which simulates another vocal tract
            length.
        tempo: Maximum relative change of the duration, which does not change the pitch.
        equalize: Maximum change in decibels of a random gain that varies smoothly along the mel
            axis, which simulates another microphone (arXiv:2110.03282). It requires frontend=mel.
    """

    crop: Annotated[float, Ge(0)] = 0.0
    time_shift: Annotated[float, Ge(0)] = 0.0
    noise: Annotated[float, Ge(0)] = 0.0
    gain: Annotated[float, Ge(0)] = 0.0
    speed: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    freq_mask: Annotated[int, Ge(0)] = 0
    time_mask: Annotated[float, Ge(0)] = 0.0
    warp: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    tempo: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    equalize: Annotated[float, Ge(0)] = 0.0
