"""Train one tool on a table, and print its accuracy on test rows, also with emptied columns.

    python benchmarks/studies/tools.py TOOL train.csv test.csv --target label

Run it with the Python of an environment that contains the tool. All tools get the same rows, the
same encoder of texts, and the same time. Whatever is not named here has the default of the tool,
which also holds out its own validation rows. The last line is a JSON object: the seconds of the
training, the seconds from the start of this program to the first score, and the accuracies.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

START = time.monotonic()

import pandas as pd  # noqa: E402 - the time of the imports counts

Predict = Callable[[pd.DataFrame], Any]


def dxn(train: pd.DataFrame, options: argparse.Namespace) -> Predict:
    """Train with `dxn.train`; the test rows are predicted afterwards, as with the other tools."""
    settings: dict[str, Any] = {"trainer.max_minutes": options.minutes}
    settings |= {"pretrained.text": options.encoder} if options.encoder else {}
    lines = ["data.fractions=[0.9,0.1,0]", *(f"{key}={value}" for key, value in settings.items())]
    run = import_module("dxn").train(
        train, *lines, *options.set, target=options.target, output=options.output
    )
    return lambda rows: run.model.predict(rows)["prediction"]


def autogluon(train: pd.DataFrame, options: argparse.Namespace) -> Predict:
    """Train MultiModalPredictor, with pictures from random weights of a small network of timm."""
    parts: dict[str, Any] = dict(line.split("=", 1) for line in options.set)
    if options.encoder:
        parts["model.hf_text.checkpoint_name"] = options.encoder
    predictor = import_module("autogluon.multimodal").MultiModalPredictor(
        label=options.target, eval_metric="accuracy", path=options.output
    )
    predictor.fit(train, time_limit=60 * options.minutes, hyperparameters=parts)
    return predictor.predict


def tabular(train: pd.DataFrame, options: argparse.Namespace) -> Predict:
    """Train TabularPredictor."""
    predictor = import_module("autogluon.tabular").TabularPredictor(
        label=options.target, path=options.output
    )
    predictor.fit(train, time_limit=60 * options.minutes)
    return predictor.predict


def ludwig(train: pd.DataFrame, options: argparse.Namespace) -> Predict:
    """Train LudwigModel, whose training has a number of epochs but no limit of time."""
    feature: dict[str, Any] = {"type": "number"}
    trainer: dict[str, Any] = {"epochs": options.epochs} if options.epochs else {}
    if options.encoder:
        name = options.encoder
        encoder = {"type": "auto_transformer", "pretrained_model_name_or_path": name}
        feature = {"type": "text", "encoder": {**encoder, "trainable": True}}
        # The default, 0.001, is for networks that start from random weights.
        trainer["learning_rate"] = 5e-5
    config = {
        "input_features": [{"name": name, **feature} for name in train if name != options.target],
        "output_features": [{"name": options.target, "type": "category"}],
        "trainer": trainer,
    }
    model = import_module("ludwig.api").LudwigModel(config)
    model.train(dataset=train, output_directory=options.output)
    return lambda rows: model.predict(dataset=rows)[0][f"{options.target}_predictions"]


def trainer(train: pd.DataFrame, options: argparse.Namespace) -> Predict:
    """Train the Trainer of transformers on one column of texts."""
    T = import_module("transformers")
    (column,) = [name for name in train if name != options.target]
    labels = sorted(train[options.target].unique())
    tokenizer = T.AutoTokenizer.from_pretrained(options.encoder)
    model = T.AutoModelForSequenceClassification.from_pretrained(
        options.encoder, num_labels=len(labels)
    )

    class StopInTime(T.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop |= time.monotonic() - START > 60 * options.minutes

    def encode(rows: pd.DataFrame) -> list[dict[str, Any]]:
        return [dict(tokenizer(text, truncation=True)) for text in rows[column].fillna("")]

    ids = [labels.index(label) for label in train[options.target]]
    rows = [{**row, "labels": i} for row, i in zip(encode(train), ids, strict=True)]
    fit = T.Trainer(
        model=model,
        args=T.TrainingArguments(
            options.output, num_train_epochs=options.epochs or 3, report_to="none"
        ),
        train_dataset=rows,
        data_collator=T.DataCollatorWithPadding(tokenizer),
        callbacks=[StopInTime()],
    )
    fit.train()
    return lambda rows: [labels[i] for i in fit.predict(encode(rows)).predictions.argmax(-1)]


TOOLS = {function.__name__: function for function in (dxn, autogluon, tabular, ludwig, trainer)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--encoder", help="folder of an encoder of texts in the format of the hub")
    parser.add_argument("--minutes", type=float, default=5, help="limit of time (not for ludwig)")
    parser.add_argument("--epochs", type=int, help="number of epochs (for ludwig and trainer)")
    parser.add_argument("--output", default="out", help="new folder for the model")
    parser.add_argument("--drop", nargs="*", default=[], help="inputs to empty in the test rows")
    parser.add_argument("--set", nargs="*", default=[], help="KEY=VALUE (dxn and autogluon)")
    options = parser.parse_args()
    predict = TOOLS[options.tool](pd.read_csv(options.train), options)
    results: dict[str, float] = {"train_seconds": round(time.monotonic() - START, 1)}
    test = pd.read_csv(options.test)
    answers = test.pop(options.target).astype(str).to_numpy()
    for name in ["", *options.drop]:
        rows = test.assign(**{name: None}) if name else test
        right = pd.Series(list(predict(rows))).astype(str).to_numpy() == answers
        results[f"without {name}" if name else "accuracy"] = round(float(right.mean()), 4)
        results.setdefault("first_score_seconds", round(time.monotonic() - START, 1))
    print(json.dumps({"tool": options.tool, "rows": len(answers), **results}), flush=True)


if __name__ == "__main__":
    main()
