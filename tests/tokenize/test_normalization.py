"""Normalization in the weights of a model that is only used, and batches without padding."""

import copy
import pickle

import pytest
import torch

from dxn.tokenize import (
    AudioAdapter,
    ImageAdapter,
    ImageNormalization,
    SpectrogramOptions,
    VideoAdapter,
)
from dxn.tokenize.base import FULL

D = 16
NORMALIZE = ImageNormalization(mean=[0.2, 0.5, 0.7], std=[0.1, 0.3, 0.5])
SIZES = {"equal": [(24, 40)] * 3, "different": [(24, 40), (17, 31), (9, 8)]}
PICTURES = {
    "image": lambda **options: ImageAdapter(D, image_size=None, **options),
    "overlap": lambda **options: ImageAdapter(D, image_size=None, stride=5, **options),
    "conv": lambda **options: ImageAdapter(D, image_size=None, stem="conv", **options),
    "video": lambda **options: VideoAdapter(D, image_size=None, **options),
    "video conv": lambda **options: VideoAdapter(D, image_size=None, stem="conv", **options),
}


def make(kind, sizes):
    """An adapter, and a batch of pictures or clips of these sizes."""
    torch.manual_seed(0)
    adapter = PICTURES[kind](patch_size=8, normalize=NORMALIZE).eval()
    frames = (4,) if kind.startswith("video") else ()
    shapes = [(*frames, 3, *size) for size in SIZES[sizes]]
    raws = [torch.randint(256, shape, dtype=torch.uint8) for shape in shapes]
    return adapter, adapter.tokenizer.batch(raws)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", PICTURES)
@torch.no_grad()
def test_weights_with_the_scale_of_the_pixels_give_the_same_tokens(kind, sizes):
    adapter, batch = make(kind, sizes)
    folded = copy.deepcopy(adapter)
    folded.fold()
    expected = adapter(batch)
    torch.testing.assert_close(folded(batch).x, expected.x, rtol=1e-4, atol=1e-5)
    hidden = torch.rand(*batch["pixels"].shape[:1], *batch["pixels"].shape[-2:]) < 0.5
    masked = {**batch, "hidden": hidden}
    torch.testing.assert_close(folded(masked).x, adapter(masked).x, rtol=1e-4, atol=1e-5)
    # A copy, and an adapter that loads the weights, compute the same.
    copied = pickle.loads(pickle.dumps(folded))
    assert torch.equal(copied(batch).x, folded(batch).x)
    loaded = copy.deepcopy(adapter)
    loaded.load_state_dict(folded.state_dict())
    torch.testing.assert_close(loaded(batch).x, expected.x, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_scale_is_moved_once():
    adapter, batch = make("image", "equal")
    adapter.fold()
    expected = adapter(batch).x
    adapter.fold()
    assert torch.equal(adapter(batch).x, expected)


@pytest.mark.parametrize("kind", [*PICTURES, "audio", "patches", "whisper"])
@torch.no_grad()
def test_a_batch_that_is_known_to_have_no_padding_has_the_same_tokens(kind):
    if kind in PICTURES:
        adapter, batch = make(kind, "equal")
    else:
        options = {"whisper": {"stem": "whisper", "frame_size": 2}, "patches": {"tokens": kind}}
        spectrogram = SpectrogramOptions(n_mels=16)
        adapter = AudioAdapter(D, spectrogram=spectrogram, **options.get(kind, {})).eval()
        batch = adapter.tokenizer.batch([torch.randn(8000), torch.randn(8000)])
    assert batch[FULL]
    known, unknown = adapter(batch), adapter({**batch, FULL: False})
    torch.testing.assert_close(known.x, unknown.x, rtol=1e-5, atol=1e-6)
    assert torch.equal(known.mask, unknown.mask)
    assert known.num_real == known.mask.numel() and unknown.num_real is None
    torch.testing.assert_close(known.spans[0].coords, unknown.spans[0].coords, equal_nan=True)
