"""Folders of sentence-transformers, whose modules.json decides how tokens become an embedding.

The modules are a Transformer, a Pooling, and optionally Dense layers and a Normalize.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from dxn.core.errors import UserError
from dxn.core.schema import Strict, validated
from dxn.core.untrusted import load_json, shortened

FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
LIBRARY = "sentence_transformers."
# dxn's pooling by the name of the library, and the keys of older files, in the order in which the
# library concatenates several.
POOLINGS = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "mean_linear",
    "lasttoken": "last",
}
OLD_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
MODULE_FILES = (FILE, PROMPTS_FILE, "config.json", "model.safetensors", "pytorch_model.bin")
OUTPUT = "sentence_embedding"  # what Dense and Normalize change
# Prompts that the library uses for the rows of an index and for queries if nothing else is set.
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
QUERY_PROMPTS = ("query",)
MAX_PROMPT = 60  # characters of a prompt in a message

Count = Annotated[int, Field(ge=1, le=100_000_000)]
Settings = TypeVar("Settings", bound=Strict)


class ModuleEntry(Strict):
    """An item of modules.json: the class of a module, and the folder of its files."""

    type: str
    path: str = ""


class TransformerSettings(Strict):
    """What sentence_bert_config.json says about the texts."""

    max_seq_length: Count | None = None
    do_lower_case: bool = False
    transformer_task: str = "feature-extraction"
    modality_config: dict[str, Any] | None = None
    processing_kwargs: dict[str, Any] | None = None


class PoolingSettings(Strict):
    """config.json of a Pooling."""

    pooling_mode: str | list[str] | None = None
    include_prompt: bool = True
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False

    @property
    def modes(self) -> list[str]:
        """Names of the poolings, whose vectors are concatenated."""
        if isinstance(self.pooling_mode, str):
            return [self.pooling_mode]
        if self.pooling_mode:
            return self.pooling_mode
        keys = self.model_dump()
        return [name for key, name in OLD_KEYS.items() if keys[key]] or ["mean"]


class OutputSettings(Strict):
    """config.json of a Normalize, and the part of that of a Dense with the same meaning."""

    module_input_name: str = OUTPUT
    module_output_name: str | None = None


class DenseSettings(OutputSettings):
    """config.json of a Dense."""

    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    use_residual: bool = False


class PromptSettings(Strict):
    """The prompts in config_sentence_transformers.json."""

    prompts: Annotated[dict[str, str | None], Field(max_length=1000)] = Field(default_factory=dict)
    default_prompt_name: str | None = None


@dataclass(frozen=True)
class SentenceModel:
    """What the files of sentence-transformers say about a checkpoint.

    Args:
        folder: Folder with modules.json.
        modules: Folder of each module. The first one has the weights and the tokenizer.
        settings: Settings of the Transformer.
        pool: Pooling of dxn, or several that are concatenated.
        includes_prompt: Whether the pooling includes the tokens of a prompt.
        dense: Folder and settings of each Dense.
        normalize: Whether the embedding has the length 1.
        prompts: Prompts by name, without those that are empty.
        chosen: Name of the prompt before each text. None: there is none.
    """

    folder: Path
    modules: Sequence[Path]
    settings: TransformerSettings
    pool: str | Sequence[str]
    includes_prompt: bool
    dense: Sequence[tuple[Path, DenseSettings]]
    normalize: bool
    prompts: Mapping[str, str]
    chosen: str | None

    def files(self) -> list[Path]:
        """Return the files beside those of the Transformer that the embeddings depend on."""
        folders = [self.folder, *self.modules[1:]]
        paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
        return [path for path in paths if path.name in MODULE_FILES]

    def choose(self, name: str | None) -> SentenceModel:
        """Return the model with this prompt. None: with its default prompt, if there is one.

        Raises:
            UserError: If the prompt is unknown, or the pooling leaves out its tokens.
        """
        chosen = self.chosen if name is None else name
        if chosen is None:
            return self
        if chosen not in self.prompts:
            names = ", ".join(self.prompts) or "none"
            raise UserError(
                f"weights.prompt: must be one of the prompts of {self.folder} ({names}), got "
                f"{shortened(chosen)}"
            )
        if self.prompts[chosen] and not self.includes_prompt:
            raise unsupported(self.folder, "a pooling without the prompt (include_prompt=false)")
        return replace(self, chosen=chosen)

    @property
    def prompt(self) -> str:
        """The text before each text, or ""."""
        return "" if self.chosen is None else self.prompts[self.chosen]

    def remark(self) -> str | None:
        """Return a line about the prompts. None: there are none."""
        texts = {name: repr(_short(text)) for name, text in self.prompts.items() if text}
        if not texts:
            return None
        if self.chosen is not None:
            text = texts.get(self.chosen, "empty")
            return f"weights: the prompt {self.chosen} ({text}) is before each text"
        listed = ", ".join(f"{name} ({text})" for name, text in texts.items())
        return f"weights: no prompt is before the texts; choose one with weights.prompt: {listed}"


def read_modules(folder: Path) -> SentenceModel | None:
    """Read modules.json and the files of its modules, but not the weights.

    Returns:
        None for a folder without this file.

    Raises:
        UserError: If a file is damaged, or dxn does not support a module or one of its options.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        content = load_json(path, allow_links=True)
        entries = TypeAdapter(list[ModuleEntry]).validate_python(content)
    except (UserError, ValidationError) as error:
        raise UserError(
            f"weights: {path}: must be a list of modules with type and path; download it again"
        ) from error
    names: list[str] = []
    folders: list[Path] = []
    for entry in entries:
        # An untrusted file must not name a folder elsewhere.
        inner = entry.path.rstrip("/")
        if inner in (".", "..") or Path(inner).name != inner:
            raise UserError(
                f"weights: {path}: path must be the name of a folder beside it, got "
                f"{shortened(entry.path)}"
            )
        folders.append(folder / inner)
        is_known = entry.type.startswith(LIBRARY)
        names.append(entry.type.rpartition(".")[2] if is_known else entry.type)
    order = re.fullmatch(r"Transformer Pooling( Dense)*( Normalize)?", " ".join(names))
    if order is None:
        raise unsupported(
            path,
            "these modules of sentence-transformers, only a Transformer, a Pooling, Dense layers "
            f"and a Normalize in this order; got {shortened(', '.join(names))}",
        )
    pooling = _settings(PoolingSettings, folders[1])
    unknown = [mode for mode in pooling.modes if mode not in POOLINGS]
    if unknown:
        raise unsupported(folders[1], f"the pooling {shortened(unknown[0])}")
    pool = [POOLINGS[mode] for mode in pooling.modes]
    dense = [
        (place, _settings(DenseSettings, place))
        for name, place in zip(names, folders, strict=True)
        if name == "Dense"
    ]
    outputs: list[tuple[Path, OutputSettings]] = [*dense]
    if names[-1] == "Normalize":
        outputs.append((folders[-1], _settings(OutputSettings, folders[-1], is_optional=True)))
    for place, settings in outputs:
        if {settings.module_input_name, settings.module_output_name or OUTPUT} != {OUTPUT}:
            raise unsupported(place, f"a module that does not change {OUTPUT}")
    prompts = _settings(PromptSettings, folder, PROMPTS_FILE, is_optional=True)
    default = prompts.default_prompt_name
    if default is not None and default not in prompts.prompts:
        raise UserError(
            f"weights: {folder / PROMPTS_FILE}: default_prompt_name must be one of the prompts, "
            f"got {shortened(default)}"
        )
    return SentenceModel(
        folder,
        folders,
        _transformer_settings(folders[0]),
        pool[0] if len(pool) == 1 else pool,
        pooling.include_prompt,
        dense,
        names[-1] == "Normalize",
        {name: text or "" for name, text in prompts.prompts.items()},
        default,
    )


def _transformer_settings(folder: Path) -> TransformerSettings:
    """Return the settings of a Transformer.

    Raises:
        UserError: If it does not read the text itself, or its output is not one vector per token.
    """
    name = "sentence_bert_config.json"
    settings = _settings(TransformerSettings, folder, name, is_optional=True)
    how = (settings.modality_config or {}).get("text", {})
    outputs = how.get("method", "forward"), how.get("method_output_name", "last_hidden_state")
    task = settings.transformer_task
    if task != "feature-extraction" or outputs != ("forward", "last_hidden_state"):
        raise unsupported(folder / name, "a Transformer with other outputs than its last layer")
    if any((settings.processing_kwargs or {}).values()):
        raise unsupported(folder / name, "processing_kwargs")
    return settings


def _settings(
    schema: type[Settings], folder: Path, name: str = "config.json", *, is_optional: bool = False
) -> Settings:
    """Read the settings of a module. An optional file that is missing has the default values."""
    path = folder / name
    if is_optional and not path.exists():
        return schema()
    return validated(schema, load_json(path, allow_nan=True, allow_links=True), f"weights: {path}")


def _short(prompt: str) -> str:
    return prompt if len(prompt) <= MAX_PROMPT else f"{prompt[:MAX_PROMPT]}..."


def unsupported(path: Path, feature: str) -> UserError:
    """Return the error for a file or folder that asks for something dxn does not compute."""
    return UserError(f"weights: {path}: dxn does not support {feature}")


def damaged(path: Path, problem: str) -> UserError:
    """Return the error for a file or folder with this problem."""
    return UserError(f"weights: {path}: {problem}; download it again")
