"""A fine-tuned language model is saved as a folder that transformers loads."""

import json

import pytest
import torch
from helpers.checkpoints import byte_gpt2
from helpers.runs import refused, train
from helpers.saving import load_complete
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel

import dxn
from dxn.cli import main
from dxn.core.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
FAST = ["trainer.precision=float32", "trainer.device=cpu", "trainer.epochs=1", "batch_size=7"]
FAST += ["head=language", "report=false", "optimizer.lr=0.05"]
LORA = ["finetune.freeze=all", "finetune.lora_rank=2", "finetune.lora_targets=[all-linear]"]
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def table(tmp_path):
    """Questions with their answers."""
    rows = [{"prompt": f"{i} and one?", "response": f"{i + 1}"} for i in range(40)]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def saved(tmp_path, *options, **saving):
    """The trained model, and the folder in which it was saved for transformers."""
    train(tmp_path / "run", *options, *FAST, f"weights={tmp_path / 'public'}", *LORA)
    model = dxn.load(tmp_path / "run")
    model.save_public(tmp_path / "saved", str(tmp_path / "public"), **saving)
    return model, tmp_path / "saved"


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["new template", "own template"])
@pytest.mark.parametrize("base", ["null", "nf4"])
def test_a_trained_chat_model_answers_in_transformers_as_in_dxn(base, template, tmp_path, table):
    byte_gpt2(tmp_path / "public", template)
    model, folder = saved(tmp_path, table, f"finetune.base={base}")
    peer = load_complete(GPT2LMHeadModel, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    num_new = 2 if template is None else 0  # <|im_start|> and <|im_end|>
    assert len(tokenizer) == peer.config.vocab_size == 257 + num_new
    for question in ("7 and one?", "What?"):
        messages = [{"role": "user", "content": question}]
        batch = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 256}
        written = peer.generate(**batch, **options)[0, batch["input_ids"].shape[1] :]
        answer = model.write(prompt=[question], max_new=20)[0]
        assert tokenizer.decode(written, skip_special_tokens=True) == answer
    if template is None:
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        assert end in peer.generation_config.eos_token_id
    again = dxn.from_public(str(folder))
    assert again.write(prompt=["7 and one?"], max_new=20) == model.write(
        prompt=["7 and one?"], max_new=20
    )


def test_the_command_line_writes_the_same_files(tmp_path, table, capsys):
    byte_gpt2(tmp_path / "public", TEMPLATE)
    _, folder = saved(tmp_path, table)
    command = ["export", f"run={tmp_path / 'run'}", "format=public"]
    assert main([*command, f"output={tmp_path / 'written'}"]) == 0
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "written").iterdir())
    for name in names:
        assert (tmp_path / "written" / name).read_bytes() == (folder / name).read_bytes()
    model = ["export", f"run={tmp_path / 'run' / 'model'}", "format=public"]
    (line,) = refused(capsys, [*model, f"output={tmp_path / 'other'}"])
    assert "is unknown; set weights=MODEL" in line
    (line,) = refused(capsys, [*model, f"weights={tmp_path / 'run'}", f"output={tmp_path / 'o'}"])
    assert "is a model trained by dxn" in line
    (line,) = refused(capsys, ["export", f"run={tmp_path / 'run'}", "dtype=bf16"])
    assert "dtype: has an effect only with format=public" in line


def test_the_weights_can_be_saved_in_bf16(tmp_path, table):
    public = byte_gpt2(tmp_path / "public", TEMPLATE)
    config = json.loads((public / "config.json").read_text())
    (public / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    model, folder = saved(tmp_path, table, dtype="bf16")
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    peer = AutoModelForCausalLM.from_pretrained(folder)
    weight = peer.transformer.h[0].mlp.c_fc.weight
    expected = model.model.state_dict()["backbone.blocks.0.mlp.up.weight"]
    assert torch.equal(weight, expected.T.bfloat16())
    with pytest.raises(UserError, match="dtype: must be float32 or bf16, got 'int8'"):
        model.save_public(tmp_path / "other", str(public), dtype="int8")


def test_a_language_model_of_other_options_is_refused(tmp_path, table):
    byte_gpt2(tmp_path / "public", TEMPLATE)
    train(
        tmp_path / "run", table, *FAST, "backbone.causal=true", "dim=16", "backbone.depth=1",
        "backbone.num_heads=2", "adapters.text.vocab_size=300", "backbone.norm.kind=rms",
    )  # fmt: skip
    model = dxn.load(tmp_path / "run")
    with pytest.raises(UserError, match="GPT-2 cannot represent this model, because its options"):
        model.save_public(tmp_path / "saved", str(tmp_path / "public"))
    assert not (tmp_path / "saved").exists()
