"""LLaVA: a picture in the middle of a text, with logits, texts and losses of transformers."""

import base64
import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from helpers.exhaustive import exhaustive_except
from helpers.reference import lively_writer
from helpers.runs import train
from helpers.serving import client_of
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.models import beam_search, generate
from dxn.models.decoding.language_model import LanguageModel, prefix_of
from dxn.tokenize.image.normalization import normalized_pixels
from dxn.tokenize.text.chat import ChatTemplate, check_messages
from dxn.weights import read_public

pytestmark = pytest.mark.filterwarnings("ignore:::transformers", "ignore:::torchvision")
VOCAB, IMAGE, NEW = 101, 100, 64
TOWER = {
    "hidden_size": 20,
    "intermediate_size": 28,
    "num_hidden_layers": 4,
    "num_attention_heads": 5,
    "image_size": 28,
    "patch_size": 7,
}
LANGUAGE = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 44,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Encoder, language model and settings.
KINDS = {
    "CLIP and Llama": ("CLIPVision", "Llama", {}),
    "CLIP with its class token and Mistral": (
        "CLIPVision",
        "Mistral",
        {"vision_feature_select_strategy": "full", "vision_feature_layer": 1},
    ),
    "SigLIP and Qwen 2": (
        "SiglipVision",
        "Qwen2",
        {"vision_feature_select_strategy": "full", "multimodal_projector_bias": False},
    ),
}
# The picture in the middle, at the start, at the end, and no picture.
PROMPTS = ["w5 w7 <image> w11 w13", "<image> w3", "w90 w80 w70 w60 w50 <image>", "w13 w17 w19"]


def save_words(folder):
    words = {f"w{i}": i for i in range(VOCAB - 1)} | {"<image>": IMAGE}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<image>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def save(folder, kind, **options):
    """A model with random weights in the public format, and the model of transformers."""
    torch.manual_seed(0)
    tower, language, settings = KINDS[kind]
    config = transformers.LlavaConfig(
        vision_config=getattr(transformers, f"{tower}Config")(**TOWER),
        text_config=getattr(transformers, f"{language}Config")(**LANGUAGE),
        image_token_id=IMAGE,
        **settings,
        **options,
    )
    peer = lively_writer(transformers.LlavaForConditionalGeneration(config)).eval()
    peer.save_pretrained(folder)
    side = {"height": 28, "width": 28}
    processor = (
        transformers.CLIPImageProcessor
        if tower == "CLIPVision"
        else transformers.SiglipImageProcessor
    )
    processor(
        size={"shortest_edge": 28} if tower == "CLIPVision" else side, crop_size=side
    ).save_pretrained(folder)
    save_words(folder)
    return peer


def photo(folder, number, size=(37, 31)):
    path = folder / f"{number}.png"
    rand = torch.Generator().manual_seed(number)
    pixels = torch.randint(256, (*size, 3), generator=rand, dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(path)
    return path


@pytest.fixture(scope="module", params=KINDS)
def models_of(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llava")
    peer = save(folder, request.param)
    return folder, peer, dxn.from_public(str(folder), dtype="float32")


def theirs(prompts, num_tokens, side="left"):
    """The inputs of the library: the token of the picture is repeated."""
    rows = []
    for prompt in prompts:
        row = []
        for word in prompt.split():
            row += [IMAGE] * num_tokens if word == "<image>" else [int(word[1:])]
        rows.append(row)
    longest = max(map(len, rows))
    gaps = [longest - len(row) for row in rows]
    left = side == "left"
    ids = [
        [0] * gap * left + row + [0] * gap * (not left) for row, gap in zip(rows, gaps, strict=True)
    ]
    mask = [
        [0] * gap * left + [1] * len(row) + [0] * gap * (not left)
        for row, gap in zip(rows, gaps, strict=True)
    ]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def batch_of(model, paths, prompts):
    """The batch of dxn, with the pictures of the prompts that have one."""
    samples = model.samples(
        [{"image": str(p)} for p, t in zip(paths, prompts, strict=True) if "<image>" in t]
    )
    batch = samples.collate([samples[0, i] for i in range(len(samples))])
    rows = [i for i, prompt in enumerate(prompts) if "<image>" in prompt]
    batch["image"]["rows"] = torch.tensor(rows)
    ids = [[IMAGE if w == "<image>" else int(w[1:]) for w in prompt.split()] for prompt in prompts]
    longest = max(map(len, ids))
    mask = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in ids])
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    return {**batch, "#size": len(prompts)}, ids, mask


def pixels_of(model, batch):
    """The normalized pixels of the pictures, which are those of the library's processor."""
    adapter = model.model.adapter("image").adapter
    return normalized_pixels(adapter, batch["image"]["pixels"])


def test_logits_of_texts_with_pictures_are_those_of_transformers(models_of, tmp_path):
    folder, peer, model = models_of
    paths = [photo(tmp_path, i) for i in range(len(PROMPTS))]
    batch, ids, mask = batch_of(model, paths, PROMPTS)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    pictures = [Image.open(path) for path in paths[:3]]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(pixels_of(model, batch), pixels, rtol=0, atol=1e-4)
    with torch.inference_mode():
        memory = prefix_of(model.model, batch)
        logits = LanguageModel(model.model)(ids, mask, memory)
        inputs = theirs(PROMPTS, memory.x.shape[1], "right")
        expected = peer(pixel_values=pixels_of(model, batch), **inputs).logits
    for row, prompt in enumerate(PROMPTS):
        place = -1
        for i, word in enumerate(prompt.split()):
            place += memory.x.shape[1] if word == "<image>" else 1
            torch.testing.assert_close(logits[row, i], expected[row, place], rtol=0, atol=1e-4)


@pytest.mark.parametrize("beams", exhaustive_except([1, 3], 1))
def test_texts_after_pictures_are_those_of_transformers(models_of, tmp_path, beams):
    _, peer, model = models_of
    paths = [photo(tmp_path, i) for i in range(len(PROMPTS))]
    batch, ids, mask = batch_of(model, paths, PROMPTS)
    memory = prefix_of(model.model, batch)
    language = LanguageModel(model.model)
    options = {"prompt": ids, "mask": mask, "end": None, "max_new": NEW}
    inputs = theirs(PROMPTS, memory.x.shape[1])
    expected = peer.generate(
        pixel_values=pixels_of(model, batch),
        **inputs,
        max_new_tokens=NEW,
        do_sample=False,
        num_beams=beams,
        eos_token_id=None,
    )
    if beams == 1:
        found = generate(language, memory, **options)
    else:
        found = beam_search(language, memory, beams=beams, **options)
    new = expected[:, inputs["input_ids"].shape[1] :].tolist()
    assert [hypothesis.ids for hypothesis in found] == new
    assert sum(len(set(row)) for row in new) > 40


# The form of the published template: the pictures of a message are before its text.
TEMPLATE = (
    "{% for message in messages %}{{ 'w1 ' if message['role'] == 'user' else 'w2 ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image> ' }}{% endfor %}"
    "{% if message['role'] == 'assistant' %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ part['text'] + ' w3 ' }}{% endgeneration %}{% endfor %}"
    "{% else %}{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ part['text'] + ' ' }}{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'w2 ' }}{% endif %}"
)


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """A folder with a chat template, and the model of transformers."""
    folder = tmp_path_factory.mktemp("public")
    peer = save(folder, "CLIP and Llama")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder, peer


def chat_of(number, folder, key="path"):
    """A conversation about a picture, whose file is a part of the first message."""
    picture = {"type": "image", key: photo(folder, number).name}
    return [
        {"role": "user", "content": [picture, {"type": "text", "text": f"w{number + 10} w5"}]},
        {"role": "assistant", "content": [{"type": "text", "text": f"w{number + 20} w21"}]},
        {"role": "user", "content": "w8"},
        {"role": "assistant", "content": f"w{number + 30}"},
    ]


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chats")
    rows = [json.dumps({"messages": chat_of(number, folder)}) for number in range(12)]
    (folder / "chats.jsonl").write_text("\n".join(rows))
    return folder


FAST = ["trainer.device=cpu", "trainer.precision=float32", "report=false", "trainer.patience=0"]

FROZEN = "finetune.freeze=[image.adapter,image.fusion,image.backbone]"


def labels_of(numbers):
    """The inputs of the library for conversations, and their labels: the tokens of the answers."""
    texts, targets = [], []
    for n in numbers:
        asked, answer = f"w1 <image> w{n + 10} w5 w2", f"w{n + 20} w21 w3"
        texts.append(f"{asked} {answer} w1 w8 w2 w{n + 30} w3")
        targets.append([0] * (len(asked.split()) + 15) + [1] * 3 + [0] * 3 + [1] * 2)
    inputs = theirs(texts, 16)
    return inputs, inputs["input_ids"].where(torch.tensor(targets) > 0, -100)


@pytest.mark.exhaustive
def test_fine_tuning_on_conversations_with_pictures_has_the_losses_of_transformers(
    public, chats, tmp_path
):
    folder, _ = public
    peer = transformers.LlavaForConditionalGeneration.from_pretrained(folder).train()
    # Its class token and the bias of the patches are parameters of their own in dxn.
    peer.model.vision_tower.requires_grad_(False)
    path = chats / "chats.jsonl"
    train(
        tmp_path / "run",
        *("head=language", f"weights={folder}", f"data.train={path}", f"data.validation={path}"),
        *("batch_size=12", "trainer.epochs=15", "optimizer.lr=3e-4", "optimizer.weight_decay=0"),
        *("scheduler=constant", "scheduler.warmup=0", "optimizer.eps=1e-5", *FAST, FROZEN),
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ours = [json.loads(line)["train/epoch_loss"] for line in lines]
    inputs, labels = labels_of(range(12))
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    pictures = [Image.open(chats / f"{number}.png") for number in range(12)]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    options = {"lr": 3e-4, "betas": (0.9, 0.98), "eps": 1e-5, "weight_decay": 0}
    optimizer = torch.optim.AdamW(peer.parameters(), **options)
    expected = []
    for _ in range(15):
        loss = peer(pixel_values=pixels, labels=labels, **inputs).loss
        expected.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()
    assert expected[-1] < expected[0] - 0.3
    assert ours == pytest.approx(expected, abs=1e-3)


def test_low_rank_updates_of_the_language_model_only(public, chats, tmp_path, capsys):
    folder, _ = public
    options = ["head=language", f"weights={folder}", "trainer.epochs=1", "finetune.freeze=all"]
    options += ["finetune.lora_rank=2", "finetune.lora_targets=[backbone.*.attn.qkv]", *FAST]
    train(tmp_path / "run", f"data.path={chats}/chats.jsonl", *options)
    before = dxn.from_public(str(folder), dtype="float32").model.state_dict()
    after = dxn.load(tmp_path / "run", dtype="float32").model.state_dict()
    changed = [name for name, each in before.items() if not torch.equal(each, after[name])]
    assert changed == [f"backbone.blocks.{i}.attn.qkv.weight" for i in range(5)]
    (text,) = dxn.load(tmp_path / "run").write(
        prompt="w5", inputs={"image": str(chats / "3.png")}, temperature=0, max_new=5
    )
    assert text
    assert main(["train", f"data.path={chats}/chats.jsonl", *options, "finetune.freeze=[imagine]"])
    assert "no name of a weight or of a part matches 'imagine'" in capsys.readouterr().err


def answer_of(peer, folder, picture, prompt):
    """The answer of transformers as a text."""
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    pixels = processor([Image.open(picture)], return_tensors="pt")["pixel_values"]
    inputs = theirs([prompt], 16)
    found = peer.generate(pixel_values=pixels, **inputs, max_new_tokens=9, do_sample=False)
    ids = found[0, inputs["input_ids"].shape[1] :].tolist()
    # The end token, or that of the template.
    stop = next((i for i, token in enumerate(ids) if token in (2, 3)), len(ids))
    return " ".join(f"w{i}" for i in ids[:stop])


def test_the_command_answers_a_question_about_a_picture(public, chats, capsys):
    folder, peer = public
    options = [f"weights={folder}", "temperature=0", "max_new=9", "dtype=float32"]
    picture = f"input.image={chats / '3.png'}"
    assert main(["generate", *options, picture, "prompt=w10 w5"]) == 0
    expected = answer_of(peer, folder, chats / "3.png", "w1 <image> w10 w5 w2")
    assert capsys.readouterr().out.strip() == expected
    assert main(["generate", *options, picture, "prompt=w10 <image> w5", "chat=false"]) == 0
    expected = answer_of(peer, folder, chats / "3.png", "w10 <image> w5")
    assert capsys.readouterr().out.strip().endswith(expected)
    # A prompt can say where the picture is, but it needs one.
    assert main(["generate", *options, picture, "prompt=w10 <image> w5 <image>"]) == 2
    assert "has the places of 2 other inputs (<image>), but 1 of" in capsys.readouterr().err
    assert main(["generate", *options, "prompt=w10 <image>"]) == 2
    assert "but 0 of these inputs are set" in capsys.readouterr().err


def test_a_request_of_openai_with_a_picture(public, chats):
    folder, peer = public
    content = base64.b64encode((chats / "3.png").read_bytes()).decode()
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}}
    asked = [url, {"type": "text", "text": "w10 w5"}]
    body = {"messages": [{"role": "user", "content": asked}], "temperature": 0, "max_tokens": 9}
    expected = answer_of(peer, folder, chats / "3.png", "w1 <image> w10 w5 w2")
    with client_of(dxn.from_public(str(folder), dtype="float32")) as client:
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == expected
        # Two texts of one request, as a stream.
        answer = client.post("/v1/chat/completions", json={**body, "n": 2, "stream": True})
        assert answer.text.count('"finish_reason": "') + answer.text.count('"finish_reason":"') == 2
        sample = {"image": {"base64": content}, "prompt": "w10 w5"}
        answer = client.post("/generate", json={"inputs": sample, "temperature": 0, "max_new": 9})
        assert answer.json()["results"][0]["generated"] == expected
        for wrong, message in WRONG:
            parts = [{"type": "text", "text": "w10"}, *wrong]
            body = {"messages": [{"role": "user", "content": parts}]}
            answer = client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400
            assert message in answer.json()["error"]["message"]


DATA = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
WRONG = [
    (
        [{"type": "image_url", "image_url": {"url": "https://example.com/1.png"}}],
        "paths and other URLs are never opened",
    ),
    ([{"type": "image", "path": "/etc/passwd"}], "paths and other URLs are never opened"),
    ([DATA], "image"),
    ([DATA, DATA], "can have one file of the type 'image_url'"),
    ([{"type": "image"}], "has the places of 1 other inputs (<image>), but 0"),
    ([{"type": "input_audio", "input_audio": {"data": "x"}}], "one file of the type"),
    (
        [{"type": "audio", "url": "data:audio/wav;base64,AAAA"}],
        "reads 0 inputs of the type",
    ),
]


def test_a_template_writes_parts_as_transformers_does(public):
    folder, _ = public
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    tokenizer.chat_template = TEMPLATE
    template = ChatTemplate(TEMPLATE)
    chat = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "w5"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "w6"}]},
        {"role": "user", "content": [{"type": "text", "text": "w7"}]},
    ]
    expected = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert template.render(template.adapted(chat, "<image>"), prompt=True) == expected
    # Contents that are texts, in a template of parts.
    assert (
        template.render(template.adapted(check_messages(chat), "<image>"), prompt=True) == expected
    )
    # A template of texts gets the marker, if there is one.
    plain = ChatTemplate("{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}")
    assert plain.render(plain.adapted(chat, "<image>")) == "user:<image>\nw5;assistant:w6;user:w7;"
    assert plain.render(plain.adapted(chat, None)) == "user:w5;assistant:w6;user:w7;"


def test_captions_of_a_folder(public, chats, tmp_path):
    folder, peer = public
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes((chats / f"{number}.png").read_bytes())
    options = [f"weights={folder}", f"input={tmp_path}", "prompt=w10 w5", "temperature=0"]
    table = tmp_path / "texts.csv"
    assert main(["generate", *options, "max_new=9", "dtype=float32", f"output={table}"]) == 0
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["file"]).name for row in rows] == ["0.png", "1.png", "2.png"]
    for row in rows:
        expected = answer_of(peer, folder, row["file"], "w1 <image> w10 w5 w2")
        assert (row["prompt"], row["generated"]) == ("w10 w5", expected)


def test_bf16_weights_of_the_encoder_stay_bf16(tmp_path):
    peer = save(tmp_path / "float32", "CLIP and Llama").bfloat16()
    peer.save_pretrained(tmp_path)
    save_words(tmp_path)
    model = dxn.from_public(str(tmp_path), dtype="bf16")
    image = model.model.adapter("image")
    # Pixels are numbers of high precision, tokens are not.
    assert {each.dtype for each in image.backbone.parameters()} == {torch.bfloat16}
    assert {each.dtype for each in image.adapter.parameters()} == {torch.float32}
    (text,) = model.write(prompt="w5", inputs={"image": str(photo(tmp_path, 1))}, max_new=5)
    assert text


def test_an_untied_language_model_gets_a_picture_before_its_text(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**LANGUAGE, tie_word_embeddings=False)
    peer = lively_writer(transformers.LlamaForCausalLM(config)).eval()
    peer.save_pretrained(tmp_path / "public")
    save_words(tmp_path / "public")
    rows = [f"{photo(tmp_path, number).name},w{number} w5 w{number + 9}" for number in range(12)]
    (tmp_path / "table.csv").write_text("\n".join(["photo,text", *rows]))
    options = ["head=language", f"weights={tmp_path / 'public'}", "finetune.freeze=all", *FAST]
    options += [f"data.path={tmp_path / 'table.csv'}", "adapters.image.image_size=28"]
    train(tmp_path / "run", *options, "adapters=[text,image]", "trainer.epochs=1")
    model = dxn.load(tmp_path / "run", dtype="float32")
    assert model.model.fusion.input_embedding is not None
    found = model.model.state_dict()
    theirs_ = peer.state_dict()
    assert torch.equal(found["head.output.weight"], theirs_["lm_head.weight"])
    words = theirs_["model.embed_tokens.weight"]
    assert torch.equal(found["adapters.text.embedding.weight"], words)
    (text,) = model.write(prompt="w5", inputs={"photo": str(tmp_path / "3.png")}, max_new=5)
    assert text.startswith("w5")


UNSUPPORTED = [
    ({"vision_feature_layer": [-2, -3]}, r"vision_feature_layer=\[-2, -3\] of 4 blocks"),
    ({"vision_feature_layer": -1}, "vision_feature_layer=-1 of 4 blocks"),
    ({"vision_feature_select_strategy": "cls"}, "vision_feature_select_strategy='cls'"),
    ({"projector_hidden_act": "relu"}, "projector_hidden_act='relu'"),
    ({"vision_config": {"model_type": "pixtral"}}, "a LLaVA with the encoder 'pixtral'"),
    ({"text_config": {"model_type": "gemma"}}, "a LLaVA with the language model 'gemma'"),
    ({"image_token_index": 5_000}, "a tokenizer without the token 5000 of an image"),
]


@pytest.mark.parametrize(("settings", "message"), UNSUPPORTED)
def test_a_setting_without_an_equivalent_is_refused(public, settings, message, tmp_path):
    shutil.copytree(public[0], tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(UserError, match=f"dxn does not support {message}$"):
        read_public(str(tmp_path))


def test_wrong_files_in_messages_are_refused(public, chats, tmp_path, capsys):
    folder, _ = public
    options = ["head=language", f"weights={folder}", "trainer.epochs=1", *FAST]
    path = chats / "chats.jsonl"
    run = f"run={tmp_path / 'run'}"
    assert main(["train", f"data.path={path}", *options, "adapters=[text]", run]) == 2
    assert "messages have files of the type 'image', which no adapter" in capsys.readouterr().err
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    picture = rows[3]["messages"][0]["content"][0]
    rows[3]["messages"][2]["content"] = [picture, {"type": "text", "text": "w5"}]
    wrong = chats / "wrong.jsonl"
    wrong.write_text("\n".join(map(json.dumps, rows)))
    assert main(["train", f"data.path={wrong}", *options, run]) == 2
    error = capsys.readouterr().err
    assert "wrong.jsonl row 4" in error
    assert "message 1 (user): a conversation can have one file of the type 'image'" in error
    rows = [{**row, "image": "0.png"} for row in rows]
    wrong.write_text("\n".join(map(json.dumps, rows)))
    assert main(["train", f"data.path={wrong}", *options, run]) == 2
    assert "has a column image, and messages with files of this type" in capsys.readouterr().err
