"""Read checkpoints from disk or from the Hugging Face Hub, without executing code in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.files import CARD, CONFIG, MODEL
from dxn.core.schema import Strict, validated
from dxn.core.tensors import TensorFiles
from dxn.core.untrusted import load_json, read_text, shortened
from dxn.weights.defaults import TOWERS, check_settings, with_defaults
from dxn.weights.sentence_files import SentenceModel, read_modules

# Names of weight files in a folder, in the order of preference. Safetensors files come first,
# because a .bin file is a pickle.
WEIGHT_FILES = (
    "model.safetensors",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "model.bin",
)
TENSOR_SUFFIXES = (".safetensors", ".bin", ".pth", ".pt")
# Files to download from the hub, also in subfolders. *.bin is added only if a repository has no
# safetensors file; the layers of sentence-transformers are small.
HUB_PATTERNS = (
    *("*.json", "*.txt", "*.spm", "chat_template.jinja", "*.safetensors", CARD),
    "*_Dense/pytorch_model.bin",
)
# Keys of processor_config.json with the settings of one modality.
PROCESSORS = ("image_processor", "video_processor", "feature_extractor")
MAX_SHARDS = 10_000
MAX_CARD_BYTES = 10_000_000
LICENSE = re.compile(r"^license: *([\w.+-]{1,100})", re.MULTILINE)
HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")

Ids = Annotated[list[Annotated[int, Field(ge=0, le=100_000_000)]], Field(max_length=10_000)]
Id = Annotated[int, Field(ge=-1, le=100_000_000)]  # some files have -1 for none
Pair = Annotated[list[Id | None], Field(min_length=2, max_length=2)]
Count = Annotated[int, Field(ge=0, le=100_000_000)]


# Options of transformers that change generated texts and that dxn does not have, and their values
# without effect besides null and false.
FOREIGN = {
    "constraints": (),
    "diversity_penalty": (0.0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "guidance_scale": (1.0,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0.0,),
    "sequence_bias": (),
    "stop_strings": (),
    "token_healing": (),
    "watermarking_config": (),
}
# Those that change sampled texts only.
FOREIGN_SAMPLING = {
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "min_p": (0.0,),
    "top_h": (),
    "typical_p": (1.0,),
}
USUAL_TOP_K = 50  # of a sampled text, if no file has another number
FILE = "generation_config.json"
# Some families have other settings of these names in config.json.
ONLY_THERE = ("language", "task")


class GenerationConfig(Strict):
    """How the original library generates, from generation_config.json and config.json.

    Args:
        bos_token_id: Id of the token before a text.
        eos_token_id: Ids of the tokens that end a text.
        pad_token_id: Id of the padding.
        decoder_start_token_id: Id of the first token of a decoder with cross-attention.
        forced_bos_token_id: Id of the first token that such a decoder generates.
        suppress_tokens: Ids of the tokens that are never generated.
        bad_words_ids: Lists of ids that are never generated one after the other.
        begin_suppress_tokens: Ids of the tokens that are not the first one generated.
        forced_eos_token_id: Id of the last token of a text of the maximum length, or ids.
        min_length: Minimum number of tokens, including those before a text.
        min_new_tokens: Minimum number of tokens, without the first one before a text.
        max_length: Maximum number of tokens, including those before a text.
        max_new_tokens: Maximum number of tokens, without the first one before a text.
        no_repeat_ngram_size: Length of token sequences that do not occur twice in a text.
        repetition_penalty: Factor that makes tokens less probable that a text already contains.
        num_beams: Beam width.
        length_penalty: Exponent of the length by which a score is divided.
        lang_to_id: Id of the token of each language, of Whisper.
        no_timestamps_token_id: Id of the token for texts without times, of Whisper.
        language: Language of all texts, of Whisper: a token of it, or its code.
        task: What is written, of Whisper: transcribe or translate.
        forced_decoder_ids: Position and id of the first tokens, in old files of Whisper.
        do_sample: Whether tokens are sampled. Otherwise, the most probable text is generated.
        temperature: Divisor of the logits, if tokens are sampled.
        top_k: Number of most probable tokens to sample from; 0: all.
        top_p: Total probability of the tokens to sample from.
        foreign: Values of `FOREIGN` and `FOREIGN_SAMPLING` that have an effect.
    """

    bos_token_id: Id | None = None
    eos_token_id: Ids = Field(default_factory=list)
    pad_token_id: Id | None = None
    decoder_start_token_id: Id | None = None
    forced_bos_token_id: Id | None = None
    suppress_tokens: Ids | None = None
    bad_words_ids: Annotated[list[Ids], Field(max_length=10_000)] | None = None
    begin_suppress_tokens: Ids | None = None
    forced_eos_token_id: Id | Ids | None = None
    min_length: Count | None = None
    min_new_tokens: Count | None = None
    max_length: Count | None = None
    max_new_tokens: Count | None = None
    no_repeat_ngram_size: Count | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    num_beams: Annotated[int, Field(ge=1, le=1000)] | None = None
    length_penalty: float | None = None
    lang_to_id: dict[str, Id] | None = None
    no_timestamps_token_id: Id | None = None
    language: str | None = None
    task: str | None = None
    forced_decoder_ids: Annotated[list[Pair], Field(max_length=100)] | None = None
    do_sample: bool | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: Count | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    foreign: dict[str, Any] = Field(default_factory=dict)

    @property
    def sampling(self) -> dict[str, float]:
        """The usual temperature, top_k and top_p. {}: the files do not say whether to sample."""
        if self.do_sample is None:
            return {}
        if not self.do_sample:
            return {"temperature": 0.0}
        result = {"temperature": 1.0 if self.temperature is None else self.temperature}
        if top_k := USUAL_TOP_K if self.top_k is None else self.top_k:
            result["top_k"] = top_k
        if self.top_p:
            result["top_p"] = self.top_p
        return result

    @property
    def not_of_language_models(self) -> list[str]:
        """The options that a language model of dxn does not have, with their values."""
        neutral = {"num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
        neutral |= {"min_length": 0, "min_new_tokens": 0}
        lists = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids")
        forced = ("forced_bos_token_id", "forced_eos_token_id")
        used = {name: getattr(self, name) for name in (*neutral, *lists, *forced)}
        others = {n: v for n, v in used.items() if v not in (None, []) and v != neutral.get(n)}
        return [option_of(name, value) for name, value in {**others, **self.foreign}.items()]


def option_of(name: str, value: Any) -> str:
    """Return an option of a generation for a message."""
    return f"{name}={shortened(value)} in {FILE}"


class Settings(Mapping[str, Any]):
    """Settings of config.json that remember which of them were read.

    Args:
        values: The settings.
        read: The keys that were read, to which others are added.
    """

    def __init__(self, values: Mapping[str, Any], read: set[str]):
        self.values_by_key = dict(values)
        self.read = read

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.values_by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_key)

    def __len__(self) -> int:
        return len(self.values_by_key)

    def changed(self, **values: Any) -> Settings:
        """Return the settings with other values of some keys. What is read there counts here."""
        return Settings({**self.values_by_key, **values}, self.read)


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint and its metadata files.

    Args:
        source: File, folder or hub id that the user passed.
        tensors: Tensors by name, in the dtype of the file. Those of a file are read when they are
            needed, see `dxn.core.tensors.TensorFiles`.
        config: Content of config.json; empty if there is no such file.
        preprocessor: Content of preprocessor_config.json; empty if there is no such file.
        folder: Folder of the files; None for a checkpoint that exists only in memory.
        trust: Top-level packages, in addition to dxn, whose classes config.yaml may refer to.
        sentence: What modules.json of sentence-transformers says; None if there is no such file.
        group: Key of config.json from which `config` comes. "": it is the whole file.
        read: The keys that were read from `settings`, by group.
        files: Files of the tensors.
        license: Licence that README.md names; None if it names none.
    """

    source: str
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(default_factory=dict)
    preprocessor: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    trust: tuple[str, ...] = ()
    sentence: SentenceModel | None = None
    group: str = ""
    read: dict[str, set[str]] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    license: str | None = None

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    @cached_property
    def settings(self) -> Settings:
        """Content of config.json, with the default values of the original library."""
        values = with_defaults(self.config)
        for key in (f"{tower}_config" for tower in TOWERS):
            if isinstance(values.get(key), Mapping):
                values[key] = Settings(values[key], self.read.setdefault(key, set()))
        return Settings(values, self.read.setdefault(self.group, set()))

    @property
    def tokenizer_max_len(self) -> int | None:
        """Maximum number of tokens in tokenizer_config.json; None if there is no limit."""
        config = {} if self.folder is None else read_json(self.folder / "tokenizer_config.json")
        limit = config.get("model_max_length")
        # Without a limit, transformers writes a huge number.
        return limit if isinstance(limit, int) and 0 < limit < 2**31 else None

    @cached_property
    def generation(self) -> GenerationConfig:
        """How the original library generates.

        Raises:
            UserError: If a value is invalid.
        """
        path = Path(self.source) if self.folder is None else self.folder / FILE
        content = read_json(path) if self.folder is not None else {}
        # Older checkpoints have these values in config.json, models with two towers in a group. The
        # library uses the default values only without generation_config.json.
        config = self.config if content else self.settings
        text = config.get("text_config") or {}
        values: dict[str, Any] = {}
        for name in GenerationConfig.model_fields:
            places = (content,) if name in ONLY_THERE else (content, config, text)
            candidates = (settings.get(name) for settings in places)
            values[name] = next((value for value in candidates if value is not None), None)
        foreign = {**FOREIGN, **(FOREIGN_SAMPLING if values["do_sample"] else {})}
        values["foreign"] = {
            name: content[name]
            for name, neutral in foreign.items()
            if content.get(name) not in (None, False, *neutral)
        }
        ends = values["eos_token_id"]
        values["eos_token_id"] = ends if isinstance(ends, list) else [] if ends is None else [ends]
        return validated(GenerationConfig, values, f"weights: {path}")

    def prefix(self, tensor: str, *modules: str) -> str:
        """Return the prefix of the tensors of the bare model, such as "bert.".

        It is "" if the checkpoint has only the bare model, without a head.

        Args:
            tensor: Name of any tensor of the bare model.
            modules: Names that the bare model can have in a model with a head.
        """
        prefixes = (f"{module}." for module in modules)
        return next((prefix for prefix in prefixes if f"{prefix}{tensor}" in self), "")

    def num_layers(self, pattern: str) -> int:
        """Return the number of layers: the distinct indices at {i} in names that match `pattern`.

        Args:
            pattern: Tensor name with the placeholder {i}, such as "blocks.{i}.norm1.weight".
        """
        index = re.compile(re.escape(pattern).replace(r"\{i\}", r"(\d+)"))
        return len({match[1] for name in self.tensors if (match := index.fullmatch(name))})

    def num_rows(self, name: str) -> int:
        """Return the size of a tensor's first dimension, or 0 if there is no such tensor."""
        return len(self.tensors[name]) if name in self.tensors else 0

    def part(self, config: str, prefixes: Mapping[str, str]) -> Checkpoint:
        """Return one model of a checkpoint with several, as if it were alone.

        Args:
            config: Key of its settings in config.json.
            prefixes: What replaces each prefix of the names of its tensors. The first one that a
                name has is used.
        """
        names: dict[str, str] = {}
        for name in self.tensors:
            prefix = next(filter(name.startswith, prefixes), None)
            if prefix is not None:
                names[prefixes[prefix] + name.removeprefix(prefix)] = name
        settings = self.config.get(config) or {}
        tensors = RenamedTensors(self.tensors, names)
        return replace(self, tensors=tensors, config=settings, group=config)

    def original(self, name: str) -> str:
        """Return the name of a tensor in the checkpoint of which this is a part."""
        names = self.tensors.names if isinstance(self.tensors, RenamedTensors) else {}
        # A missing bias would be beside its weight.
        weight = f"{name.removesuffix('bias')}weight"
        if name not in names and weight in names:
            return f"{names[weight].removesuffix('weight')}bias"
        return names.get(name, name)


class RenamedTensors(Mapping[str, Tensor]):
    """Some tensors of a checkpoint by other names.

    Args:
        tensors: All tensors.
        names: Their names there, by their new names.
    """

    def __init__(self, tensors: Mapping[str, Tensor], names: Mapping[str, str]):
        self.tensors = tensors
        self.names = names

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.names[name]]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def read_checkpoint(
    source: str, *, revision: str | None = None, trust: tuple[str, ...] = ()
) -> Checkpoint:
    """Read a checkpoint from a file, a folder or a repository on the hub.

    Args:
        source: Path, or hub id OWNER/NAME.
        revision: Branch, tag or commit on the hub. Default: the main branch.
        trust: Top-level packages, in addition to dxn, whose classes config.yaml may refer to.

    Raises:
        UserError: If the source does not exist or cannot be read.
    """
    path = Path(source).expanduser()
    if not path.exists():
        # Do not send a misspelled path to the hub as the name of a repository.
        if HUB_ID.fullmatch(source) is None or path.suffix in TENSOR_SUFFIXES:
            raise UserError(
                f"weights: {source}: not found; pass a file, a folder or a hub id OWNER/NAME"
            )
        path = _download(source, revision)
    # A run folder of dxn contains its model in a subfolder.
    if (path / MODEL / CONFIG).exists():
        path = path / MODEL
    folder = path if path.is_dir() else path.parent
    license = _read_license(folder / CARD)
    sentence = read_modules(folder)
    if sentence is not None and path == folder:
        path = folder = sentence.modules[0]
    config = read_json(folder / "config.json")
    # Before the weights are read, because this is fast.
    check_settings(config, f"weights: {folder / 'config.json'}")
    files = _weight_files(path)
    return Checkpoint(
        source=source,
        tensors=TensorFiles(files),
        config=config,
        preprocessor=_read_preprocessor(folder),
        folder=folder,
        trust=trust,
        sentence=sentence,
        files=tuple(files),
        license=license,
    )


def _read_license(card: Path) -> str | None:
    """Return the licence in the YAML header of a model card; None if there is none."""
    if not card.is_file():
        return None
    try:
        text = read_text(card, max_bytes=MAX_CARD_BYTES, allow_links=True)
    except UserError:  # nothing else depends on a card
        return None
    header = text.split("\n---", 1)[0] if text.startswith("---") else ""
    found = LICENSE.search(header)
    return None if found is None else found[1]


def _weight_files(path: Path) -> list[Path]:
    """Return the file itself, or the preferred weight files of a folder."""
    if path.is_file():  # a file that the user passes may have any name
        return [path]
    for name in WEIGHT_FILES:
        if (path / name).exists():
            return [path / name]
        if (path / f"{name}.index.json").exists():
            return _shards(path / f"{name}.index.json")
    if (path / "adapter_config.json").exists():
        base = read_json(path / "adapter_config.json").get("base_model_name_or_path")
        raise UserError(
            f"weights: {path}: contains only an adapter (PEFT) of the model {base}; merge both "
            "with merge_and_unload of peft, and save the result"
        )
    if (path / ".hydra").exists():  # a run folder of dxn, where Hydra saves the configuration
        raise UserError(
            f"weights: {path}: this run has not saved a model yet; wait for its first epoch, or "
            "use another run"
        )
    raise UserError(
        f"weights: {path}: no weights in this folder; it must contain one of "
        f"{', '.join(WEIGHT_FILES)}"
    )


def _shards(index: Path) -> list[Path]:
    """Return the files (shards) that an index lists.

    Raises:
        UserError: If the index is not valid, or names a file of another folder.
    """
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(f, str) for f in files.values()):
        raise UserError(
            f"weights: {index}: weight_map must be a mapping from names of tensors to names of "
            f"files, got {shortened(files)}"
        )
    names = sorted(set(files.values()))
    if len(names) > MAX_SHARDS:
        raise UserError(
            f"weights: {index}: must list at most {MAX_SHARDS:,} files, got {len(names):,}"
        )
    for name in names:
        # An untrusted checkpoint must not make dxn read files outside of its folder.
        if Path(name).name != name:
            raise UserError(
                f"weights: {index}: must contain names of files in the same folder, got {name!r}"
            )
    return [index.parent / name for name in names]


def _download(name: str, revision: str | None) -> Path:
    """Return the local copy of a repository on the hub, and download it if it is not cached."""
    # The library is slow to import, and most runs do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    patterns: list[str] = [*HUB_PATTERNS]
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
        # Many repositories contain the same weights as safetensors and as a pickle, so download the
        # pickle only if there is no safetensors file.
        if not any(folder.glob("*.safetensors")):
            patterns.append("*.bin")
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except RevisionNotFoundError as error:
        raise UserError(
            f"weights: {name}: the hub has no revision {revision!r} of this repository; check "
            "weights.revision"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"weights: {name}: neither a local file or folder nor a public repository on the hub; "
            "check the spelling"
        ) from error
    # The type of connection errors depends on the HTTP library of huggingface_hub.
    except Exception as error:
        raise UserError(
            f"weights: {name}: the hub cannot be reached, and the model is not in the local cache; "
            "check the network connection, or download the model first"
        ) from error
    return folder


def _read_preprocessor(folder: Path) -> dict[str, Any]:
    """Return the content of preprocessor_config.json, or the same settings in another file.

    For a model with several modalities, transformers writes them to processor_config.json.
    """
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        if settings := read_json(folder / name):
            return settings
    processor = read_json(folder / "processor_config.json")
    nested = (processor.get(key) for key in PROCESSORS)
    return next(filter(None, nested), {})


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or {} if the file does not exist or has no object.

    Raises:
        UserError: If the file is not valid JSON, or not a regular file.
    """
    if not path.exists():
        return {}
    try:
        # Local copies of public checkpoints often contain links to a cache.
        content = load_json(path, allow_nan=True, allow_links=True)
    except UserError as error:
        raise UserError(f"weights: {error}; download it again") from error
    return content if isinstance(content, dict) else {}
