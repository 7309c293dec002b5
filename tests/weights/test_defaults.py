"""The default values of config.json are those of transformers, and files without them load."""

import json

import pytest
import torch
from helpers.peers import cases

from dxn.weights import Checkpoint, public, read_public

T = cases.T
CONFIG_MAPPING = T.models.auto.configuration_auto.CONFIG_MAPPING
pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
# Class of a model for each type, by which transformers names its config.
CLASSES = {
    "bert": T.BertModel,
    "roberta": T.RobertaModel,
    "xlm-roberta": T.XLMRobertaModel,
    "distilbert": T.DistilBertModel,
    "modernbert": T.ModernBertModel,
    "gpt2": T.GPT2LMHeadModel,
    "llama": T.LlamaForCausalLM,
    "mistral": T.MistralForCausalLM,
    "qwen2": T.Qwen2ForCausalLM,
    "qwen3": T.Qwen3ForCausalLM,
    "smollm3": T.SmolLM3ForCausalLM,
    "olmo2": T.Olmo2ForCausalLM,
    "gemma": T.GemmaForCausalLM,
    "gemma2": T.Gemma2ForCausalLM,
    "gemma3_text": T.Gemma3ForCausalLM,
    "t5": T.T5ForConditionalGeneration,
    "mt5": T.MT5ForConditionalGeneration,
    "bart": T.BartForConditionalGeneration,
    "mbart": T.MBartForConditionalGeneration,
    "marian": T.MarianMTModel,
    "m2m_100": T.M2M100ForConditionalGeneration,
    "whisper": T.WhisperForConditionalGeneration,
    "wav2vec2": T.Wav2Vec2Model,
    "hubert": T.HubertModel,
    "audio-spectrogram-transformer": T.ASTModel,
    "clip": T.CLIPModel,
    "clip_text_model": T.CLIPTextModel,
    "clip_vision_model": T.CLIPVisionModel,
    "siglip": T.SiglipModel,
    "siglip_text_model": T.SiglipTextModel,
    "siglip_vision_model": T.SiglipVisionModel,
    "vit": T.ViTModel,
    "deit": T.DeiTModel,
    "dinov2": T.Dinov2Model,
    "dinov2_with_registers": T.Dinov2WithRegistersModel,
    "videomae": T.VideoMAEModel,
}


BIAS = "final_logits_bias"
TWO_TOWERS = ("clip", "siglip")


def tensors_of(kind):
    """The tensors of a model of the default size, without values."""
    with torch.device("meta"):
        model = CLASSES[kind](CONFIG_MAPPING[kind]())
    tied = {*getattr(model, "all_tied_weights_keys", ())}
    tensors = {name: each for name, each in model.state_dict().items() if name not in tied}
    if BIAS in tensors:
        tensors[BIAS] = torch.zeros(1, 1)  # its values are read
    return tensors


@pytest.mark.parametrize("kind", CLASSES)
def test_a_file_without_default_values_describes_the_same_model(kind, tmp_path, monkeypatch):
    whole = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    towers = {f"{name}_config": {} for name in ("text", "vision") if kind in TWO_TOWERS}
    tensors = tensors_of(kind)
    (tmp_path / "tokenizer.json").touch()  # without it, Whisper is only an encoder
    for part in ("image", "text") if towers else (None,):
        found = []
        for config in (whole, {"model_type": kind, **towers}):
            checkpoint = Checkpoint(kind, tensors, config=config, folder=tmp_path)
            monkeypatch.setattr(public, "read_checkpoint", lambda *_, of=checkpoint, **__: of)
            found.append(read_public(kind, part=part))
        assert found[0].architecture == found[1].architecture
        assert found[0].task_state() == found[1].task_state()
