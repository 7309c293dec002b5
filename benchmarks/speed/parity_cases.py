"""The reference models of parity.py, with random weights.

There is one `Case` per family and variant. It describes how timm or transformers builds the model,
which modules are its blocks, and how the model is called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from torch import Tensor, nn

# Different primes where the model allows it, so that swapped dimensions raise an error.
VOCAB = 101
NUM_CLASSES = 7
PATCH_SIZE = 8
PROJECTION_DIM = 11
# By modality: the key of our batch, and the name of the argument of transformers.
INPUT_NAMES = {
    "image": ("pixels", "pixel_values"),
    "video": ("pixels", "pixel_values"),
    "audio": ("features", "input_values"),
}
NUM_FRAMES = 6
SPECIAL = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
# Any: type checkers know only some of the arguments of the configurations.
T: Any = transformers

Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model and of its input.

    Args:
        dim: Embedding dimension.
        depth: Number of blocks.
        heads: Number of attention heads.
        batch: Number of samples.
        side: Height and width of an image in pixels.
        length: Length of the longest text in tokens.
    """

    dim: int = 64
    depth: int = 3
    heads: int = 2
    batch: int = 3
    side: int = 48
    length: int = 37

    @property
    def hf(self) -> dict[str, Any]:
        """Arguments that most configurations of transformers have."""
        return {
            "hidden_size": self.dim,
            "num_hidden_layers": self.depth,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.dim,
        }


@dataclass(frozen=True)
class Case:
    """A reference model.

    Args:
        name: Name in the table.
        make: Builds the model.
        blocks: Returns the blocks of the model.
        modality: Modality of its input.
        answer: Calls the model with a batch, and returns the output that dxn's model also has.
        part: Value of the option weights.part, which selects a tower of CLIP.
        config: Content of config.json for a model of timm, which does not write this file itself.
        float64: Whether the model computes in float64. ModernBERT computes its rotary embeddings in
            float32.
    """

    name: str
    make: Callable[[Sizes], nn.Module]
    blocks: Callable[[nn.Module], Sequence[nn.Module]]
    modality: str
    answer: Callable[[nn.Module, Batch], Tensor]
    part: str | None = None
    config: Mapping[str, Any] | None = None
    float64: bool = True


def randomize(model: nn.Module) -> nn.Module:
    """Draw all weights at random, and return the model in evaluation mode.

    With the default initialization, biases are 0 and norms are 1, so an error in their use would
    not change the output.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                # 1 / sqrt(fan_in) keeps the activations at the order of 1.
                nn.init.normal_(parameter, std=(parameter.numel() / len(parameter)) ** -0.5)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def save(case: Case, model: nn.Module, folder: Path, *, heads: int) -> None:
    """Save a model in the format in which its library publishes models."""
    if case.config is not None:
        config = {**case.config, "model_args": {"num_heads": heads}}
        (folder / "config.json").write_text(json.dumps(config))
        save_file(model.state_dict(), folder / "model.safetensors")
    else:
        model.save_pretrained(folder)  # pyright: ignore[reportCallIssue]
    if case.modality == "text":
        save_tokenizer(folder)


def save_tokenizer(folder: Path, *, vocab_size: int = VOCAB) -> None:
    """Write a tokenizer.json with the words w0, w1, ... The id of a word is its number."""
    # The benchmark needs no real words, because its batches consist of ids.
    words = {f"w{i}": i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w3"))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"pad_token": "w0"}')


def timm_case(name: str, **options: Any) -> Case:
    """Describe a vision transformer of timm.

    Args:
        name: Name in the table.
        options: Arguments of the class. `cls` is the class itself; default: VisionTransformer.
    """

    def make(sizes: Sizes) -> nn.Module:
        cls = options.get("cls", timm.models.vision_transformer.VisionTransformer)
        return cls(
            img_size=sizes.side,
            patch_size=PATCH_SIZE,
            embed_dim=sizes.dim,
            depth=sizes.depth,
            num_heads=sizes.heads,
            num_classes=NUM_CLASSES,
            **{key: value for key, value in options.items() if key != "cls"},
        )

    return Case(
        name,
        make,
        lambda model: list(model.get_submodule("blocks").children()),
        "image",
        lambda model, batch: model(batch["pixels"]),
        config={"global_pool": options.get("global_pool", "token")},
    )


def hf_case(
    name: str,
    cls: str,
    config: Callable[[Sizes], Any],
    blocks: str,
    modality: str,
    **options: Any,
) -> Case:
    """Describe a model of transformers.

    Args:
        name: Name in the table.
        cls: Name of the class of the model.
        config: Returns the configuration of the model.
        blocks: Name of the ModuleList of its blocks.
        modality: Modality of its input.
        options: Further arguments of `Case`.
    """

    def make(sizes: Sizes) -> nn.Module:
        settings = config(sizes)
        # The eager implementation computes the softmax in float32, even in a float64 model.
        settings._attn_implementation = "sdpa"
        return getattr(transformers, cls)(settings)

    return Case(
        name,
        make,
        lambda model: list(model.get_submodule(blocks).children()),
        modality,
        options.pop("answer", hf_answer(modality)),
        **options,
    )


def hf_answer(modality: str, attribute: str = "logits") -> Callable[[nn.Module, Batch], Tensor]:
    """Create a function that calls a model, and returns this attribute of its output."""

    def answer(model: nn.Module, batch: Batch) -> Tensor:
        if modality == "text":
            output = model(input_ids=batch["ids"], attention_mask=batch["mask"].long())
        else:
            name, argument = INPUT_NAMES[modality]
            output = model(**{argument: batch[name]})
        return getattr(output, attribute)

    return answer


def _gpt2(model: nn.Module, batch: Batch) -> Tensor:
    """Return the hidden state (B, D) of the last real token."""
    hidden = hf_answer("text", "last_hidden_state")(model, batch)
    # GPT-2 is causal: only the last token has seen the whole text.
    return hidden[torch.arange(len(hidden)), batch["mask"].sum(1) - 1]


def _whisper(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean (B, D) of the hidden states of the encoder."""
    encoder: Any = model.get_submodule("encoder")
    # Whisper takes (B, n_mels, T), dxn has (B, T, n_mels).
    return encoder(batch["features"].transpose(1, 2)).last_hidden_state.mean(1)


def _waveform(model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits for waveforms, which are (B, T) in transformers and (B, T, 1) in dxn."""
    return hf_answer("audio")(model, {"features": batch["features"][..., 0]})


def _clip_text(model: Any, batch: Batch) -> Tensor:
    mask = batch["mask"].long()
    return _clip_features(model.get_text_features(input_ids=batch["ids"], attention_mask=mask))


def _clip_image(model: Any, batch: Batch) -> Tensor:
    return _clip_features(model.get_image_features(pixel_values=batch["pixels"]))


def _clip_features(output: Any) -> Tensor:
    # transformers 5 returns an output object, and earlier versions a tensor.
    return output if isinstance(output, Tensor) else output.pooler_output


def clip_config(sizes: Sizes) -> Any:
    """Return a configuration of CLIP with towers of equal size and the end-of-text id 3."""
    image = {
        **sizes.hf,
        "image_size": sizes.side,
        "patch_size": PATCH_SIZE,
        "projection_dim": PROJECTION_DIM,
    }
    text = {
        **sizes.hf,
        "vocab_size": VOCAB,
        "projection_dim": PROJECTION_DIM,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 3,
    }
    return T.CLIPConfig(text_config=text, vision_config=image, projection_dim=PROJECTION_DIM)


def siglip_config(sizes: Sizes) -> Any:
    """Return a configuration of SigLIP with towers of equal size."""
    image = {**sizes.hf, "image_size": sizes.side, "patch_size": PATCH_SIZE}
    text = {**sizes.hf, "vocab_size": VOCAB, "projection_size": PROJECTION_DIM}
    return T.SiglipConfig(text_config=text, vision_config=image)


def _siglip_text(model: Any, batch: Batch) -> Tensor:
    # Padding is a part of the text.
    return _clip_features(model.get_text_features(input_ids=batch["ids"]))


def _image_config(name: str, **options: Any) -> Callable[[Sizes], Any]:
    def config(sizes: Sizes) -> Any:
        return getattr(transformers, name)(
            **sizes.hf, image_size=sizes.side, patch_size=PATCH_SIZE, **options
        )

    return config


def _bert_config(name: str, **options: Any) -> Callable[[Sizes], Any]:
    def config(sizes: Sizes) -> Any:
        settings = {"vocab_size": VOCAB, "num_labels": NUM_CLASSES, **options}
        return getattr(transformers, name)(**sizes.hf, **settings)

    return config


def _distilbert_config(sizes: Sizes) -> Any:
    return T.DistilBertConfig(
        dim=sizes.dim,
        n_layers=sizes.depth,
        n_heads=sizes.heads,
        hidden_dim=4 * sizes.dim,
        vocab_size=VOCAB,
        num_labels=NUM_CLASSES,
    )


def _modernbert_config(sizes: Sizes) -> Any:
    # Every third block has full attention, the first one included. Two more blocks than usual, so
    # that there is a second one.
    size = {**sizes.hf, "num_hidden_layers": sizes.depth + 2}
    return T.ModernBertConfig(
        **size, vocab_size=VOCAB, local_attention=8, num_labels=NUM_CLASSES, **SPECIAL
    )


def _gpt2_config(sizes: Sizes) -> Any:
    return T.GPT2Config(
        n_embd=sizes.dim,
        n_layer=sizes.depth,
        n_head=sizes.heads,
        vocab_size=VOCAB,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
    )


def _ast_config(sizes: Sizes) -> Any:
    # 131 frames and 43 mel bins are primes, so the patches do not fit exactly.
    return T.ASTConfig(**sizes.hf, max_length=131, num_mel_bins=43, num_labels=NUM_CLASSES)


def _whisper_config(sizes: Sizes) -> Any:
    return T.WhisperConfig(
        d_model=sizes.dim,
        encoder_layers=sizes.depth,
        decoder_layers=1,  # the decoder is not compared
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        encoder_ffn_dim=4 * sizes.dim,
        decoder_ffn_dim=4 * sizes.dim,
        vocab_size=VOCAB,
        max_source_positions=61,
        num_mel_bins=23,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[],
        **{key: SPECIAL[key] for key in ("pad_token_id", "bos_token_id", "eos_token_id")},
    )


def _speech_config(name: str, **options: Any) -> Callable[[Sizes], Any]:
    def config(sizes: Sizes) -> Any:
        return getattr(transformers, name)(
            **sizes.hf,
            conv_dim=[23, 19, 29, 31, 37, 41, 43],
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            classifier_proj_size=13,
            num_labels=NUM_CLASSES,
            **options,
        )

    return config


CASES = (
    timm_case("ViT (timm)"),
    timm_case("ViT, no class token, mean (timm)", class_token=False, global_pool="avg"),
    timm_case(
        "ViT, registers, mean, fc norm (timm)",
        reg_tokens=4,
        no_embed_class=True,
        global_pool="avg",
        fc_norm=True,
    ),
    timm_case(
        "ViT, layer scale, qk norm, no qkv bias (timm)",
        init_values=0.1,
        qk_norm=True,
        qkv_bias=False,
    ),
    timm_case(
        "ViT, pooling by attention (timm)", class_token=False, global_pool="map", fc_norm=False
    ),
    timm_case("DeiT, distilled (timm)", cls=timm.models.deit.VisionTransformerDistilled),
    timm_case(
        "DINOv2, SwiGLU (timm)",
        init_values=1.0,
        mlp_layer=timm.layers.mlp.SwiGLUPacked,
        act_layer=nn.SiLU,
        mlp_ratio=5.5,
    ),
    hf_case(
        "ViT (transformers)",
        "ViTForImageClassification",
        _image_config("ViTConfig", num_labels=NUM_CLASSES),
        "vit.layers",
        "image",
    ),
    hf_case(
        "DeiT, distilled (transformers)",
        "DeiTForImageClassificationWithTeacher",
        _image_config("DeiTConfig", num_labels=NUM_CLASSES),
        "deit.layers",
        "image",
    ),
    hf_case(
        "DINOv2",
        "Dinov2ForImageClassification",
        _image_config("Dinov2Config", num_labels=NUM_CLASSES),
        "dinov2.encoder.layer",
        "image",
    ),
    hf_case(
        "DINOv2 with registers, SwiGLU",
        "Dinov2WithRegistersModel",
        _image_config("Dinov2WithRegistersConfig", use_swiglu_ffn=True),
        "encoder.layer",
        "image",
        answer=hf_answer("image", "pooler_output"),
    ),
    hf_case(
        "BERT",
        "BertForSequenceClassification",
        _bert_config("BertConfig", max_position_embeddings=64),
        "bert.encoder.layer",
        "text",
    ),
    hf_case(
        "RoBERTa",
        "RobertaForSequenceClassification",
        _bert_config("RobertaConfig", max_position_embeddings=66, pad_token_id=1),
        "roberta.encoder.layer",
        "text",
    ),
    hf_case(
        "DistilBERT",
        "DistilBertForSequenceClassification",
        _distilbert_config,
        "distilbert.transformer.layer",
        "text",
    ),
    hf_case(
        "ModernBERT",
        "ModernBertForSequenceClassification",
        _modernbert_config,
        "model.layers",
        "text",
        float64=False,
    ),
    hf_case("GPT-2", "GPT2Model", _gpt2_config, "h", "text", answer=_gpt2),
    hf_case(
        "AST",
        "ASTForAudioClassification",
        _ast_config,
        "audio_spectrogram_transformer.layers",
        "audio",
    ),
    hf_case(
        "Whisper, encoder",
        "WhisperModel",
        _whisper_config,
        "encoder.layers",
        "audio",
        answer=_whisper,
    ),
    hf_case(
        "wav2vec 2.0, group norm, post-norm",
        "Wav2Vec2ForSequenceClassification",
        _speech_config("Wav2Vec2Config"),
        "wav2vec2.encoder.layers",
        "audio",
        answer=_waveform,
    ),
    hf_case(
        "HuBERT, layer norm, pre-norm",
        "HubertForSequenceClassification",
        _speech_config(
            "HubertConfig", feat_extract_norm="layer", conv_bias=True, do_stable_layer_norm=True
        ),
        "hubert.encoder.layers",
        "audio",
        answer=_waveform,
    ),
    hf_case(
        "CLIP, image",
        "CLIPModel",
        clip_config,
        "vision_model.encoder.layers",
        "image",
        part="image",
        answer=_clip_image,
    ),
    hf_case(
        "CLIP, text",
        "CLIPModel",
        clip_config,
        "text_model.encoder.layers",
        "text",
        part="text",
        answer=_clip_text,
    ),
    hf_case(
        "SigLIP, image",
        "SiglipModel",
        siglip_config,
        "vision_model.encoder.layers",
        "image",
        part="image",
        answer=_clip_image,
    ),
    hf_case(
        "SigLIP, text",
        "SiglipModel",
        siglip_config,
        "text_model.encoder.layers",
        "text",
        part="text",
        answer=_siglip_text,
    ),
    hf_case(
        "VideoMAE",
        "VideoMAEForVideoClassification",
        _image_config("VideoMAEConfig", num_frames=NUM_FRAMES, num_labels=NUM_CLASSES),
        "videomae.encoder.layer",
        "video",
    ),
)
