"""Videos and their sound from files: training, all commands, clips without sound, broken files."""

import csv

import pytest
import torch
from helpers.data import EXAMPLES
from helpers.runs import refused, train, weights_of
from helpers.training import D
from helpers.videos import moving_bar, sine, write_video

import dxn
from dxn.cli import main
from dxn.data.dataset import Opened, Samples
from dxn.models import Backbone, EarlyFusion, MultimodalModel
from dxn.tasks import Classify
from dxn.tokenize import VideoAdapter, VideoSampling

VIDEO = [
    *("dim=12", "backbone.depth=1", "backbone.num_heads=2", "batch_size=7", "trainer.epochs=1"),
    *("trainer.device=cpu", "trainer.precision=float32"),
    *("adapters.video.image_size=16", "adapters.video.patch_size=8"),
    "adapters.video.sampling.num_frames=4",
]
TINY = [
    *VIDEO,
    *("adapters.audio.sample_rate=4000", "adapters.audio.spectrogram.n_mels=8"),
    "adapters.audio.spectrogram.n_fft=256",
]
BOTH = ["adapters=[video,audio]", "data.video=clip", "data.audio=clip", "target=label"]
COUNT = 16
PARTS = ["data.fractions=[0.5,0.25,0.25]"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """clips.csv with 16 rows, and the same clips in a folder per class. Some have no sound."""
    folder = tmp_path_factory.mktemp("videos")
    (folder / "classes").mkdir()
    with (folder / "clips.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["clip", "label"])
        for i in range(COUNT):
            label = ("left", "right")[i % 2]
            suffix = (".mp4", ".webm")[i == 3]
            bar = moving_bar(4, 16, 32, step=4 + i // 4, direction=1 if i % 2 else -1)
            sound = sine(0.4, hertz=300 + 20 * i) if i % 3 else None
            (folder / "classes" / label).mkdir(exist_ok=True)
            path = folder / "classes" / label / f"{i}{suffix}"
            write_video(path, bar, fps=10, sound=sound)
            # A row without a clip has no input, so it is a bad row.
            writer.writerow([f"classes/{label}/{i}{suffix}", label])
    return folder


@pytest.fixture(scope="module")
def run(place):
    folder = place / "run"
    train(folder, str(place / "clips.csv"), *BOTH, *TINY)
    return folder


def test_a_column_of_clips_can_be_two_inputs(run):
    model = dxn.load(str(run))
    assert model.columns == {"audio_clip": "clip", "video_clip": "clip"}


def test_a_clip_without_sound_lacks_the_audio_input_only(run, place):
    model = dxn.load(str(run))
    silent, loud = (str(place / f"classes/{('left', 'right')[i % 2]}/{i}.mp4") for i in (0, 1))
    tokens = model.tokens(video_clip=silent, audio_clip=silent)
    assert [span.name for span in tokens.spans] == ["video_clip"]
    assert len(model.tokens(video_clip=loud, audio_clip=loud).spans) == 2


def test_clips_are_predicted_from_a_table_a_folder_and_a_single_file(run, place, capsys, tmp_path):
    out = tmp_path / "answers.csv"
    for source in (place / "clips.csv", place / "classes"):
        command = ["predict", f"run={run}", f"input={source}", f"output={out}"]
        assert main(command) == 0
        with out.open() as file:
            assert len(list(csv.DictReader(file))) == COUNT
        out.unlink()
    capsys.readouterr()
    assert main(["predict", f"run={run}", f"input={place / 'classes/right/1.mp4'}"]) == 0
    alone = capsys.readouterr().out
    # The single file is read as both inputs of its column.
    both = [f"input.{name}_clip={place / 'classes/right/1.mp4'}" for name in ("video", "audio")]
    assert main(["predict", f"run={run}", *both]) == 0
    assert capsys.readouterr().out == alone


@pytest.mark.parametrize(
    ("verb", "file"), [("tokenize", "tokens.png"), ("attend", "attention/attention.html")]
)
def test_a_clip_is_drawn_with_its_sound(run, place, verb, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [verb, f"run={run}", f"input={place / 'classes/right/1.mp4'}"]
    assert main(command) == 0
    assert (tmp_path / file).exists()


def test_an_untrained_adapter_tokenizes_a_clip(place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["tokenize", f"input={place / 'classes/right/1.mp4'}"]) == 0
    assert "tubelets of 2 frames × 16×16 pixels" in capsys.readouterr().out
    assert (tmp_path / "tokens.png").exists()


def test_a_run_is_evaluated_and_its_vectors_are_written(run, place, tmp_path):
    assert main(["evaluate", f"run={run}", f"input={place / 'clips.csv'}"]) == 0
    out = tmp_path / "vectors.npy"
    assert main(["embed", f"run={run}", f"input={place / 'clips.csv'}", f"output={out}"]) == 0


def test_a_folder_of_clips_is_read_as_video_or_as_both(place, tmp_path):
    source = [f"data.path={place / 'classes'}", "adapters=[video,audio]", *TINY]
    assert "audio" not in dxn_inputs(train_folder(tmp_path / "a", source))
    both = train_folder(tmp_path / "b", [*source, "data.read_as=[video,audio]"])
    assert dxn_inputs(both) == ["audio", "video"]
    sound = train_folder(
        tmp_path / "c", [*source, "data.read_as=[audio]", "data.on_bad=skip", *PARTS]
    )
    assert dxn_inputs(sound) == ["audio"]


def train_folder(folder, overrides):
    train(folder, *overrides)
    return folder


def dxn_inputs(folder):
    return sorted(dxn.load(str(folder)).inputs)


def test_an_unknown_input_of_a_folder_is_refused(place, capsys, tmp_path):
    arguments = [
        "train",
        f"data.path={place / 'classes'}",
        "data.read_as=[text]",
        f"run={tmp_path / 'r'}",
    ]
    (line,) = refused(capsys, arguments)
    assert "data.read_as: must be adapters in use that read files, got [text]" in line


def test_check_reports_clips_and_broken_files(place, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = tmp_path / "clips.csv"
    (tmp_path / "broken.mp4").write_bytes(b"\0\0\0\x18ftypisom" + bytes(40))
    rows = (place / "clips.csv").read_text().replace("classes/", f"{place}/classes/")
    table.write_text(rows + "broken.mp4,left\nmissing.mp4,right\n")
    main(["check", str(table), *BOTH, "data.confine=false"])
    out = capsys.readouterr().out
    assert "damaged or truncated file" in out
    assert "file not found" in out
    assert "frames are read" in out
    options = [*BOTH, *TINY, "data.confine=false", f"run={tmp_path / 'r'}"]
    (line,) = refused(capsys, ["train", str(table), *options])
    assert "broken.mp4: damaged or truncated file" in line or "missing.mp4: file not found" in line


def test_rows_without_a_clip_use_their_other_inputs(place, tmp_path):
    table = tmp_path / "clips.csv"
    lines = (place / "clips.csv").read_text().replace("classes/", f"{place}/classes/").splitlines()
    rows = ["clip,note,label"]
    for i, line in enumerate(lines[1:]):
        clip, label = line.split(",")
        rows.append(f"{'' if i % 4 == 0 else clip},note number {i},{label}")
    table.write_text("\n".join(rows))
    names = ["adapters=[text,video,audio]", "data.video=clip", "data.audio=clip"]
    train(tmp_path / "run", str(table), "target=label", "data.confine=false", *names, *TINY)
    model = dxn.load(str(tmp_path / "run"))
    assert model.predict(note="note number 3", video_clip=None)["prediction"] in ("left", "right")


def test_masked_pretraining_learns_from_clips(place, tmp_path):
    options = ["adapters=[video]", f"data.path={place / 'classes'}", *VIDEO, "pretrain=masked"]
    train(tmp_path / "run", *options)
    assert weights_of(tmp_path / "run")


def test_a_run_on_generated_videos_with_tones_has_both_inputs(tmp_path):
    counts = ["data.num_train=9", "data.num_validation=3", "data.num_test=3", "data.size=16"]
    train(
        tmp_path / "run",
        EXAMPLES,
        "data=motion",
        "data.label=turn",
        "adapters=[video,audio]",
        *counts,
        *TINY,
    )
    assert dxn_inputs(tmp_path / "run") == ["audio", "video"]


def test_eight_clips_are_overfitted():
    torch.manual_seed(0)
    task = Classify()
    targets = ["left", "right"] * 4
    task.target.fit(targets)
    adapter = VideoAdapter(
        D,
        image_size=16,
        patch_size=8,
        tubelet_frames=4,
        pos_embed="sinusoidal",
        sampling=VideoSampling(num_frames=4),
    )
    clips = [
        adapter.tokenizer.reader.read(
            moving_bar(4, 16, 16, step=2 + i // 4, direction=1 if i % 2 else -1)
        )
        for i in range(8)
    ]
    adapter.fit(clips)
    fusion = EarlyFusion(D, inputs=("video",))
    model = MultimodalModel(
        {"video": adapter},
        inputs={"video": "video"},
        fusion=fusion,
        backbone=Backbone(D, depth=1, num_heads=2),
        head=task.make_head(D, fusion.width, {"video": adapter}),
    )
    opened = Opened({"video": clips}, targets, [f"row {i}" for i in range(8)])
    samples = Samples(opened, {"video": adapter.tokenizer}, task=task)
    batch = samples.collate([samples[(0, i)] for i in range(8)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = task.loss(model(batch), batch).mean
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
