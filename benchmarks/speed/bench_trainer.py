"""Train with the Trainer of transformers: the peer of the rows of bench_runs.py.

    python benchmarks/speed/bench_trainer.py {sst2,fsdd,cifar10} PATH EPOCHS RESULT DTYPE

The model has the width and depth of the dxn experiment of the same name, and as many epochs and
samples per batch. Everything else is what the documentation of transformers shows.
"""

from __future__ import annotations

import csv
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch.utils.data import Dataset
from torchvision.transforms import v2

T: Any = transformers
DIM, HEADS = 128, 4


class Items(Dataset):
    """Items of a list, converted by a function when they are read."""

    def __init__(self, items: list[Any], convert: Callable[[Any], dict[str, Any]]):
        self.items = items
        self.convert = convert

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.convert(self.items[i])


def size(depth: int) -> dict[str, int]:
    """Return the arguments of a configuration that set the size of the model."""
    return {
        "hidden_size": DIM,
        "num_hidden_layers": depth,
        "num_attention_heads": HEADS,
        "intermediate_size": 4 * DIM,
    }


def sst2(path: Path, folder: Path) -> dict[str, Any]:
    """A BERT of two blocks with a vocabulary of words."""
    rows = {}
    for split in ("train", "test"):
        with (path / f"{split}.csv").open(newline="", encoding="utf-8") as file:
            rows[split] = list(csv.DictReader(file))
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        [row["text"] for row in rows["train"]],
        trainers.WordLevelTrainer(vocab_size=16000, special_tokens=["[PAD]", "[UNK]"]),
    )
    fast = T.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    )
    labels = {label: i for i, label in enumerate(sorted({r["label"] for r in rows["train"]}))}

    def convert(row: dict[str, str]) -> dict[str, Any]:
        return {
            **fast(row["text"], truncation=True, max_length=256),
            "labels": labels[row["label"]],
        }

    config = T.BertConfig(**size(2), vocab_size=len(fast), num_labels=len(labels))
    return {
        "model": T.BertForSequenceClassification(config),
        "data_collator": T.DataCollatorWithPadding(fast),
        "train_dataset": Items(rows["train"], convert),
        "eval_dataset": Items(rows["test"], convert),
    }


def fsdd(path: Path, folder: Path) -> dict[str, Any]:
    """An AST of four blocks on clips of up to 2.4 s."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    extractor = T.ASTFeatureExtractor(sampling_rate=8000, num_mel_bins=40, max_length=240)

    def convert(row: dict[str, str]) -> dict[str, Any]:
        samples, rate = soundfile.read(path.parent / row["path"], dtype="float32")
        features = extractor(samples, sampling_rate=rate, return_tensors="pt")
        return {"input_values": features["input_values"][0], "labels": int(row["digit"])}

    config = T.ASTConfig(
        **size(4), num_labels=10, num_mel_bins=40, max_length=240, patch_size=8,
        frequency_stride=8, time_stride=8,
    )  # fmt: skip
    return {
        "model": T.ASTForAudioClassification(config),
        "train_dataset": Items([r for r in rows if r["split"] == "train"], convert),
        "eval_dataset": Items([r for r in rows if r["split"] == "test"], convert),
    }


def cifar10(path: Path, folder: Path) -> dict[str, Any]:
    """A ViT of the size of backbone=tiny."""
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    files = sorted(folder.rglob("*.jpg"))
    labels = {name: i for i, name in enumerate(sorted({file.parent.name for file in files}))}
    steps = (v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.25]))
    plain = v2.Compose(steps)
    augmented = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), *steps])

    def converter(transform: Callable[[Any], Any]) -> Callable[[Path], dict[str, Any]]:
        def convert(file: Path) -> dict[str, Any]:
            with Image.open(file) as image:
                pixels = transform(image.convert("RGB"))
            return {"pixel_values": pixels, "labels": labels[file.parent.name]}

        return convert

    size_of_tiny = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 6}
    config = T.ViTConfig(
        **size_of_tiny, intermediate_size=768, image_size=32, patch_size=4, num_labels=len(labels)
    )
    train = [file for file in files if "train" in file.parts]
    return {
        "model": T.ViTForImageClassification(config),
        "train_dataset": Items(train, converter(augmented)),
        "eval_dataset": Items([f for f in files if "test" in f.parts], converter(plain)),
    }


# What builds the model and the data sets, and the batch size.
SETS: dict[str, tuple[Callable[[Path, Path], dict[str, Any]], int]] = {
    "sst2": (sst2, 64),
    "fsdd": (fsdd, 32),
    "cifar10": (cifar10, 128),
}


def accuracy(predictions: Any) -> dict[str, float]:
    """Return the fraction of correct predictions."""
    return {"accuracy": float(np.mean(predictions.predictions.argmax(-1) == predictions.label_ids))}


def main() -> None:
    """Train, evaluate, and write the accuracy to RESULT."""
    name, path, epochs, result, dtype = sys.argv[1:]
    make, batch_size = SETS[name]
    T.set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        parts = make(Path(path), Path(folder))
        arguments = T.TrainingArguments(
            output_dir=folder,
            num_train_epochs=int(epochs),
            per_device_train_batch_size=batch_size,
            per_device_eval_batch_size=64,
            learning_rate=1e-3,
            warmup_steps=0.1,
            lr_scheduler_type="cosine",
            weight_decay=0.01,
            bf16=dtype == str(torch.bfloat16),
            use_cpu=not torch.cuda.is_available(),
            eval_strategy="epoch",
            save_strategy="no",
            remove_unused_columns=False,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = T.Trainer(args=arguments, compute_metrics=accuracy, **parts)
        trainer.train()
        metrics = trainer.evaluate()
    Path(result).write_text(json.dumps({"accuracy": metrics["eval_accuracy"]}), encoding="utf-8")


if __name__ == "__main__":
    main()
