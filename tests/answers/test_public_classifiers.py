"""A fine-tuned public model is saved as a folder that its original library loads."""

import json
import wave

import numpy as np
import pytest
import timm
import torch
import transformers
from helpers.runs import table_of
from PIL import Image
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoModel,
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import dxn
from dxn.core.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:::transformers", "ignore:::torch", "ignore:::timm")

OPTIONS = [
    *("preset=plain", "baseline=none", "trainer.epochs=1", "report=false", "batch_size=8"),
    *("optimizer.lr=0.01", "trainer.precision=float32", "trainer.device=cpu"),
]
WORDS = ["apple", "pear", "plum", "cherry", "number", *map(str, range(40))]
SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 40,
}
DISTILBERT = {"dim": 12, "n_layers": 2, "n_heads": 2, "hidden_dim": 20}
# A text model with a pooler, one of masked language modelling, one without a head, and one with
# the classifier of other labels.
TEXT_MODELS = {
    "bert": (AutoModel, {}),
    "roberta": (AutoModel, {}),
    "distilbert": (AutoModel, DISTILBERT),
    "modernbert": (AutoModelForMaskedLM, {}),
    "bert with other labels": (AutoModelForSequenceClassification, {"num_labels": 5}),
}
# Layers of the head that these checkpoints lack, but their classifiers in transformers have.
HEADS = {"distilbert": ["head.hidden=relu"]}


def save_randomized(cls, config, folder):
    """Save a public model with random weights, also where they are 0 or 1 at first."""
    torch.manual_seed(1)
    model = cls.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)


def save_text_model(name, folder):
    cls, options = TEXT_MODELS[name]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS]))
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    # Rows of the embedding that the tokenizer does not use.
    sizes = {**SIZES, "vocab_size": len(tokenizer) + 3, **options}
    ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}
    config = AutoConfig.for_model(name.partition(" ")[0], **sizes, **ids)
    save_randomized(cls, config, folder)
    tokenizer.save_pretrained(folder)


def saved(run, public, tmp_path):
    """The trained model, and the folder in which it was saved for the original library."""
    model = dxn.load(run.folder)
    model.save_public(tmp_path / "saved", str(public))
    return model, tmp_path / "saved"


def load_complete(cls, folder):
    """Load a model, whose folder must have exactly its tensors."""
    model, report = cls.from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], report
    return model.eval()


def assert_same_answers(model, peer, answers, logits):
    names = [peer.config.id2label[i] for i in range(peer.config.num_labels)]
    assert sorted(names) == sorted(model.labels)
    assert peer.config.label2id == {name: i for i, name in enumerate(names)}
    for answer, row in zip(answers, logits.detach().softmax(-1), strict=True):
        expected = [answer["probabilities"][name] for name in names]
        torch.testing.assert_close(row, torch.tensor(expected), atol=1e-4, rtol=0)
    # Another row has another answer, so the comparison is not of constants.
    assert (logits[0] - logits[-1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", sorted(TEXT_MODELS))
def test_a_text_classifier_is_loaded_by_transformers(name, tmp_path):
    save_text_model(name, tmp_path / "public")
    (tmp_path / "table.csv").write_text(table_of(24))
    weights = f"weights={tmp_path / 'public'}"
    options = [
        *OPTIONS,
        weights,
        "adapters=[text]",
        "adapters.text.max_len=20",
        *HEADS.get(name, ()),
    ]
    run = dxn.train(tmp_path / "table.csv", *options, target="label", output=str(tmp_path / "runs"))
    model, folder = saved(run, tmp_path / "public", tmp_path)
    peer = load_complete(AutoModelForSequenceClassification, folder)
    texts = ["apple number 3", "plum", "number 7 cherry pear apple 12"]
    batch = AutoTokenizer.from_pretrained(folder)(texts, return_tensors="pt", padding=True)
    assert_same_answers(
        model, peer, model.predict([{"text": t} for t in texts]), peer(**batch).logits
    )


def train_folder(write, tmp_path, *options):
    """Train on one folder per class, whose files `write(path, i)` writes."""
    for i in range(24):
        folder = tmp_path / "data" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, i)
    weights = f"weights={tmp_path / 'public'}"
    output = f"output={tmp_path / 'runs'}"
    return dxn.train(tmp_path / "data", *OPTIONS, weights, output, *options)


def write_picture(folder, i):
    pixels = np.random.default_rng(i).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / f"{i}.png")


IMAGE_SIZES = {**SIZES, "image_size": 24, "patch_size": 8, "hidden_size": 12}
IMAGE_MODELS = {
    "vit": (AutoModel, {}),
    "deit": (AutoModel, {}),
    "deit with a teacher": (transformers.DeiTForImageClassificationWithTeacher, {}),
    "dinov2": (AutoModelForImageClassification, {}),
    "dinov2_with_registers": (AutoModelForImageClassification, {}),
}


@pytest.mark.parametrize("name", sorted(IMAGE_MODELS))
def test_an_image_classifier_is_loaded_by_transformers(name, tmp_path):
    cls, options = IMAGE_MODELS[name]
    kind = name.partition(" ")[0]
    config = AutoConfig.for_model(kind, **IMAGE_SIZES, num_labels=5, **options)
    if name == "deit with a teacher":
        torch.manual_seed(1)
        cls(config).save_pretrained(tmp_path / "public")
    else:
        save_randomized(cls, config, tmp_path / "public")
    processor = transformers.ViTImageProcessor(size={"height": 24, "width": 24})
    processor.save_pretrained(tmp_path / "public")
    run = train_folder(write_picture, tmp_path, "adapters=[image]")
    model, folder = saved(run, tmp_path / "public", tmp_path)
    peer = load_complete(AutoModelForImageClassification, folder)
    paths = sorted((tmp_path / "data" / "a").iterdir())[:3]
    batch = AutoImageProcessor.from_pretrained(folder)(
        [Image.open(path) for path in paths], return_tensors="pt"
    )
    answers = model.predict([{"image": str(path)} for path in paths])
    assert_same_answers(model, peer, answers, peer(**batch).logits)


def test_an_image_classifier_is_loaded_by_timm(tmp_path):
    options = {"img_size": 24, "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 2}
    public = timm.create_model("vit_tiny_patch16_224", num_classes=5, **options)
    timm.models.save_for_hf(public, tmp_path / "public", model_args=options)
    run = train_folder(write_picture, tmp_path, "adapters=[image]")
    model, folder = saved(run, tmp_path / "public", tmp_path)
    peer = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert peer.pretrained_cfg["label_names"] == list(model.labels)
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=peer))
    paths = sorted((tmp_path / "data" / "a").iterdir())[:3]
    logits = peer(torch.stack([transform(Image.open(path)) for path in paths]))
    answers = model.predict([{"image": str(path)} for path in paths])
    expected = [[answer["probabilities"][name] for name in model.labels] for answer in answers]
    torch.testing.assert_close(
        logits.detach().softmax(-1), torch.tensor(expected), atol=1e-4, rtol=0
    )


def write_sound(folder, i):
    samples = np.random.default_rng(i).integers(-9000, 9000, 3000 + 100 * i).astype("<i2")
    with wave.open(str(folder / f"{i}.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(samples.tobytes())


def test_an_audio_classifier_is_loaded_by_transformers(tmp_path):
    sizes = {"max_length": 40, "num_mel_bins": 32, "num_labels": 5}
    config = AutoConfig.for_model("audio-spectrogram-transformer", **SIZES, **sizes)
    save_randomized(AutoModelForAudioClassification, config, tmp_path / "public")
    extractor = transformers.ASTFeatureExtractor(max_length=40, num_mel_bins=32)
    extractor.save_pretrained(tmp_path / "public")
    run = train_folder(write_sound, tmp_path, "adapters=[audio]")
    model, folder = saved(run, tmp_path / "public", tmp_path)
    peer = load_complete(AutoModelForAudioClassification, folder)
    paths = sorted((tmp_path / "data" / "a").iterdir())[:3]
    sounds = []
    for path in paths:
        with wave.open(str(path)) as file:
            sounds.append(np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768)
    extractor = AutoFeatureExtractor.from_pretrained(folder)
    batch = extractor(sounds, sampling_rate=16000, return_tensors="pt")
    answers = model.predict([{"audio": str(path)} for path in paths])
    assert_same_answers(model, peer, answers, peer(**batch).logits)


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """The folder of a BERT."""
    folder = tmp_path_factory.mktemp("public") / "bert"
    save_text_model("bert", folder)
    return folder


def trained(public, tmp_path, *options, table=None, target="label"):
    (tmp_path / "table.csv").write_text(table or table_of(24))
    options = [*OPTIONS, f"weights={public}", "adapters=[text]", *options]
    run = dxn.train(tmp_path / "table.csv", *options, target=target, output=str(tmp_path / "runs"))
    return dxn.load(run.folder)


NUMBERS = "\n".join(["text,label", *(f"apple number {i},{i}.5" for i in range(24))])


@pytest.mark.parametrize(
    ("options", "table", "message"),
    [
        (["baseline=always"], None, "its answers are those of a mixture with a baseline"),
        (["fusion.pool=mean"], None, "BERT cannot represent this model, because its options"),
        (["head.hidden=gelu"], None, "train with weights=.* fusion.pool=first head.hidden=tanh"),
        (["head.hidden=none"], None, "the trained model has no head.pre.dense.weight; train with"),
        ([], NUMBERS, "its task is regress, must be classify"),
    ],
)
def test_a_model_that_the_original_library_cannot_represent_is_refused(
    options, table, message, public, tmp_path
):
    model = trained(public, tmp_path, *options, table=table)
    with pytest.raises(UserError, match=message):
        model.save_public(tmp_path / "saved", str(public))
    assert not (tmp_path / "saved").exists()


def test_a_folder_with_other_files_is_not_replaced(public, tmp_path):
    model = trained(public, tmp_path)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="saved: must be a new or empty folder"):
        model.save_public(tmp_path / "saved", str(public))
    (tmp_path / "saved" / "mine.txt").unlink()
    model.save_public(tmp_path / "saved", str(public))
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "a", "1": "b"}


def test_other_labels_than_ascii_are_kept(public, tmp_path):
    table = table_of(24).replace(",a\n", ",größer\n").replace(",b", ",小")
    model = trained(public, tmp_path, table=table)
    model.save_public(tmp_path / "saved", str(public))
    peer = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert set(peer.config.label2id) == {"größer", "小"}
