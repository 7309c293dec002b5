"""The model folder: what a trained model is on disk, and its way back."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load_file
from torch import Tensor

from dxn.data.rows import Rows
from dxn.data.samples import BatchOrder, Samples, make_loader, open_rows
from dxn.data.targets import Target
from dxn.errors import UserError
from dxn.models import LanguageModel, Model
from dxn.models.decoder import Pick, generate, greedy
from dxn.tokenize import TargetTokenizer
from dxn.tokenize.target import ENDS, token_of
from dxn.tokens import Tokens, join
from dxn.train.checkpoint import write_safely
from dxn.train.evaluate import Predictions, predict, to_device
from dxn.train.finetune import merged
from dxn.weights import read_public
from dxn.weights.own import check_sums

FILES = ("model.safetensors", "config.yaml", "labels.json")
BUILDABLE = ("dxn.tokenize", "dxn.models")  # a config.yaml from elsewhere can name nothing but these


def save(folder: Path, *, model: Model, parts: Mapping[str, Any], target: Target, card: str) -> None:
    """Write the model folder: weights, config.yaml (`parts`), tokenizer.json, labels.json, card, SHA-256 sums."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in merged(model).items()}
    write_safely(folder / "model.safetensors", tensors)
    (folder / "config.yaml").write_text(yaml.safe_dump(_without_paths(parts), sort_keys=False))
    (folder / "labels.json").write_text(json.dumps(target.to_json(), indent=1, ensure_ascii=False))
    (folder / "README.md").write_text(card)
    for adapter in model.adapters.values():
        adapter.save(folder)
    if target.writing is not None:
        target.writing.save(folder)
    sums = [f"{_sha256(path)}  {path.name}" for path in sorted(folder.iterdir()) if path.name != "SHA256SUMS"]
    (folder / "SHA256SUMS").write_text("\n".join(sums) + "\n")


def load(folder: str | Path, *, device: str = "cpu") -> Predictor:
    """A trained model from its model folder, or from the run folder around it; nothing else is needed.

    UserError where a file is missing or is not the one whose SHA-256 was written down.
    """
    folder = Path(folder)
    if (folder / "model" / "config.yaml").exists():
        folder = folder / "model"
    for name in FILES:
        if not (folder / name).exists():
            raise UserError(f"{folder}: not a model folder, it has no {name}")
    check_sums(folder)
    parts = yaml.safe_load((folder / "config.yaml").read_text())
    target = Target.from_json(json.loads((folder / "labels.json").read_text()))
    if target.kind == "text":
        writing = TargetTokenizer(max_len=parts["head"]["decoder"]["max_len"])
        target = replace(target, writing=writing.load(folder))
    adapters = {name: construct(node) for name, node in parts["adapters"].items()}
    for adapter in adapters.values():
        adapter.load(folder)
    model = Model(
        adapters,
        fusion=construct(parts["fusion"]),
        backbone=construct(parts["backbone"]),
        head=construct(parts["head"]),
    )
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return Predictor(model.to(device).eval(), target)


def from_public(
    source: str, *, revision: str | None = None, part: str | None = None, strict: bool = True, device: str = "cpu"
) -> Predictor:
    """A public checkpoint, from a file, a folder or the hub, as a model in use.

    It predicts where the checkpoint has a head; `.tokens` and `.embed` it always has. part: text or image, of one
    with a tower for each. UserError where nobody knows its family, or tensors are missing.
    """
    public = read_public(source, revision=revision, part=part)
    nodes = public.nodes()
    adapters = {name: construct(node) for name, node in nodes["adapters"].items()}
    public.prepare(adapters)
    fusion, backbone, head = (construct(nodes[part]) for part in ("fusion", "backbone", "head"))
    model = Model(adapters, fusion=fusion, backbone=backbone, head=head)
    public.fill(model, strict=strict)
    labels = public.parts.labels
    return Predictor(model.to(device).eval(), Target("class", tuple(labels)) if labels else None)


def construct(node: Mapping[str, Any]) -> Any:
    """The object that {_target_: a class of dxn.tokenize or dxn.models, argument: value ...} describes.

    Not Hydra's instantiate: that would run whatever a shared file names.
    """
    module, _, name = str(node["_target_"]).rpartition(".")
    if not any(module == allowed or module.startswith(f"{allowed}.") for allowed in BUILDABLE):
        raise UserError(f"config.yaml: {node['_target_']} is not one of dxn's own parts, it will not be run")
    try:
        cls = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError:
        cls = None
    if not isinstance(cls, type) or cls.__module__.partition(".")[0] != "dxn":
        raise UserError(f"config.yaml: dxn has no part {node['_target_']}")
    arguments = {
        key: construct(value) if isinstance(value, Mapping) and "_target_" in value else value
        for key, value in node.items()
        if key != "_target_"
    }
    return cls(**arguments)


class Predictor:
    """A trained model in use, in evaluation mode."""

    def __init__(self, model: Model, target: Target | None):
        self.model, self._target = model, target
        self.device = next(model.parameters()).device

    @property
    def target(self) -> Target:
        """What it predicts; UserError for a public checkpoint without a head."""
        if self._target is None:
            raise UserError(
                "this checkpoint has no head to predict with: train one, dxn train weights=..., or use embed"
            )
        return self._target

    @property
    def modalities(self) -> list[str]:
        """What the model takes, in order."""
        return list(self.model.adapters)

    @property
    def prepares(self) -> dict[str, Any]:
        """The adapters' prepare halves by modality."""
        return {name: adapter.prepare for name, adapter in self.model.adapters.items()}

    def predict(self, *, text=None, image=None, audio=None) -> dict[str, Any]:
        """The answer for one sample: text, image (path, bytes, PIL, array), audio (path, bytes, (array, rate)).

        prediction is a class, a list of labels, a number, a tag a word, or a text; probabilities by class come with
        the first two. UserError where a file is bad, a modality unknown or nothing given.
        """
        return self.predict_many([{"text": text, "image": image, "audio": audio}])[0]

    def predict_many(self, samples: Sequence[Mapping[str, Any]], *, batch_size: int = 64) -> list[dict[str, Any]]:
        """As `predict`, for dicts of text, image, audio; any of them may lack some."""
        if self.target.kind == "next":
            raise UserError(
                "a language model has no answer to predict: let it go on with a text, dxn generate prompt=..."
            )
        found = self.run(self.samples(samples), batch_size=batch_size)
        return [self.answer(p) for p in found.predicted]

    def run(self, samples: Samples, *, batch_size: int = 64) -> Predictions:
        """Predictions for opened samples."""
        return predict(self.model, samples, self.target, batch_size=batch_size, device=self.device)

    def answer(self, predicted) -> dict[str, Any]:
        """One prediction as plain data."""
        names = self.target.names
        if self.target.kind == "number":
            return {"prediction": float(predicted)}
        if self.target.kind == "text":
            return {"prediction": predicted}
        if self.target.kind == "tags":
            return {"prediction": list(predicted)}
        shares = {name: float(p) for name, p in zip(names, predicted.tolist(), strict=True)}
        if self.target.kind == "class":
            return {"prediction": max(shares, key=lambda n: shares[n]), "probabilities": shares}
        threshold = self.model.head.threshold
        return {"prediction": [n for n, p in shares.items() if p >= threshold], "probabilities": shares}

    @torch.inference_mode()
    def tokens(self, *, text=None, image=None, audio=None) -> Tokens:
        """One sample's Tokens as the backbone gets them; `.matrix` is (1, D, N)."""
        return self.embedded(self.samples([{"text": text, "image": image, "audio": audio}]), 0)

    @torch.inference_mode()
    def embedded(self, samples: Samples, i: int) -> Tokens:
        """The Tokens of sample i, as the backbone gets them."""
        return join(self.model.embed(self._batch(samples, i)))

    @torch.inference_mode()
    def embed(self, *, text=None, image=None, audio=None) -> Tensor:
        """One sample as one vector (E,): what the head's last linear sees."""
        return self.vectors(self.samples([{"text": text, "image": image, "audio": audio}]))[1][0]

    @torch.inference_mode()
    def vectors(self, samples: Samples, *, batch_size: int = 64) -> tuple[list[int], Tensor]:
        """Rows of the opened samples, and a vector (E,) for each."""
        rows, found = [], []
        for batch in make_loader(BatchOrder(samples, batch_size)):
            _, pooled = self.model.encode(self.model.embed(to_device(batch, self.device)))
            rows += batch["index"]
            found.append(self.model.head.neck(pooled).float().cpu())
        return rows, torch.cat(found)

    @torch.inference_mode()
    def write(
        self,
        *,
        prompt: str = "",
        given: Mapping[str, Any] | None = None,
        count: int = 1,
        max_new: int = 200,
        pick: Pick = greedy,
    ) -> list[str]:
        """Texts of at most max_new tokens: prompt and what may follow it, or what is written of a sample given.

        pick chooses each token, see `dxn.models.decoder.picking`. UserError for a model that does not write.
        """
        if self._target is not None and self._target.writing is not None:
            writing = self._target.writing
            if not given or prompt:
                raise UserError(f"this model writes of its {' and '.join(self.modalities)}: give input, and no prompt")
            samples = self.samples([given])
            batch = samples.collate([samples[0, 0]] * count)
            encoded, _ = self.model.encode(self.model.embed(to_device(batch, self.device)))
            said = self.model.head.write(encoded, begin=writing.begin, end=writing.end, max_new=max_new, pick=pick)
            return [writing.decode(one.ids) for one in said]
        try:
            language = LanguageModel(self.model)
        except ValueError as error:
            raise UserError(f"generate: {error}") from error
        if given:
            raise UserError("input: a language model goes on with a text: give it as prompt")
        prepare = self.prepares["text"]
        end = token_of(prepare.tokenizer, ENDS)
        ids = prepare.tokenizer.encode(prompt, add_special_tokens=False).ids
        if not ids and end is None:
            raise UserError("prompt: this model's tokenizer has no token to begin with; give a text to go on with")
        start = torch.tensor([ids or [end]] * count, device=self.device)
        said = generate(language, None, prompt=start, end=end, max_new=max_new, pick=pick)
        return [prepare.tokenizer.decode([*ids, *one.ids]) for one in said]

    @torch.inference_mode()
    def neighbors(self, token: str, *, count: int = 10) -> list[tuple[str, float]]:
        """The subwords nearest to one by the cosine of their vectors, and that cosine; the token itself is left out.

        UserError where the model has no text, or the token is not one piece of its vocabulary.
        """
        if "text" not in self.model.adapters:
            raise UserError(f"this model takes {', '.join(self.modalities)}: it has no subwords")
        adapter: Any = self.model.adapters["text"]
        tokenizer = adapter.prepare.tokenizer
        ids = tokenizer.encode(token, add_special_tokens=False).ids
        pieces = [tokenizer.decode([i], skip_special_tokens=False) for i in ids]
        own = tokenizer.token_to_id(token) if len(ids) != 1 else ids[0]
        if own is None or tokenizer.id_to_token(own) == getattr(tokenizer.model, "unk_token", None) != token:
            cut = f"is cut into {' | '.join(pieces)}; name one of them" if len(ids) > 1 else "is not in the vocabulary"
            raise UserError(f"token: {token!r} {cut}")
        vectors = F.normalize(adapter.table.weight.float(), dim=-1)
        likeness = (vectors @ vectors[own]).index_fill(0, torch.tensor([own]), -torch.inf)
        best = likeness.topk(min(count, len(vectors) - 1))
        names = [tokenizer.decode([i], skip_special_tokens=False) for i in best.indices.tolist()]
        return list(zip(names, best.values.tolist(), strict=True))

    def samples(self, given: Sequence[Mapping[str, Any]]) -> Samples:
        """Dicts of text, image, audio, opened and ready to be prepared; UserError for a bad file."""
        return Samples(open_rows(self._rows(given), self.prepares, need_target=False), self.prepares)

    def _batch(self, samples: Samples, i: int) -> dict[str, Any]:
        return to_device(samples.collate([samples[0, i]]), self.device)

    def _rows(self, samples: Sequence[Mapping[str, Any]]) -> Rows:
        given = {name for s in samples for name, value in s.items() if value is not None}
        if unknown := sorted(given - set(self.modalities)):
            raise UserError(f"this model takes {', '.join(self.modalities)}, got {', '.join(unknown)}")
        cells = {m: [self._cell(m, s.get(m)) for s in samples] for m in self.modalities}
        return Rows(cells=cells, origin=[f"sample {i + 1}" for i in range(len(samples))])

    def _cell(self, modality: str, value):
        if modality == "text" and self._target is not None and self._target.kind == "tags" and isinstance(value, str):
            return value.split()
        return str(value) if isinstance(value, Path) else value


def _without_paths(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The folder holds the tokenizer and the vectors themselves: their old paths mean nothing elsewhere."""
    adapters = {
        name: {k: v for k, v in node.items() if k not in ("tokenizer", "embedding", "augment")}
        for name, node in parts["adapters"].items()
    }
    return {**parts, "adapters": adapters}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
