"""Checkpoints as they lie on disk or on the hub, tokenizers from vocabulary files, and everything that is refused."""

import json
import pickle
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from peers import parity
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from dxn.errors import UserError
from dxn.weights import read_public
from dxn.weights.checkpoint import Checkpoint, byte_bpe, read_checkpoint, wordpiece
from dxn.weights.public import FAMILIES, fitted
from dxn.weights.vit import VIT

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")


timm, transformers = parity.timm, parity.transformers
CASES = {case.name: case for case in parity.CASES}
SIZES = parity.Sizes(dim=12, depth=2, heads=2, batch=2, side=40, length=11)


def tensors():
    return {"a.weight": torch.randn(3, 5), "b.bias": torch.randn(7)}


def same(found, expected):
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def saved(name, folder, **config):
    """A peer of this name, as its library saves it; config: what is changed in its config.json, towers too."""
    case = CASES[name]
    parity.save(case, case.make(SIZES), folder, heads=SIZES.heads)
    found = json.loads((folder / "config.json").read_text())
    for key, value in config.items():
        found[key] = {**found[key], **value} if isinstance(value, dict) and key in found else value
        if value is None:
            del found[key]
    (folder / "config.json").write_text(json.dumps(found))
    return folder


def change(folder, **edit):
    """Rewrite the safetensors file: a tensor a name, None where it is left out."""
    state = {**load_file(folder / "model.safetensors"), **edit}
    save_file({k: t for k, t in state.items() if t is not None}, folder / "model.safetensors", {"format": "pt"})


# Reading


def test_a_safetensors_file_is_read_by_its_path(tmp_path):
    given = tensors()
    save_file(given, tmp_path / "any name.safetensors")
    found = read_checkpoint(str(tmp_path / "any name.safetensors"))
    same(found.tensors, given)
    assert found.config == found.preprocessor == {}


@pytest.mark.parametrize("name", ["model.safetensors", "open_clip_model.safetensors"])
def test_a_folder_is_read_with_what_lies_beside_the_weights(name, tmp_path):
    given = tensors()
    save_file(given, tmp_path / name)
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    (tmp_path / "preprocessor_config.json").write_text('{"size": 5}')
    for source in (tmp_path, tmp_path / name):
        found = read_checkpoint(str(source))
        same(found.tensors, given)
        assert (found.config, found.preprocessor) == ({"model_type": "x"}, {"size": 5})


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_sharded_folder_is_put_together(name, tmp_path):
    given, write = tensors(), save_file if name.endswith("safetensors") else torch.save
    shards = {key: f"part-{i}-{name}" for i, key in enumerate(given)}
    for key, file in shards.items():
        write({key: given[key]}, tmp_path / file)
    (tmp_path / f"{name}.index.json").write_text(json.dumps({"weight_map": shards}))
    same(read_checkpoint(str(tmp_path)).tensors, given)


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: {"model": t, "epoch": 3}, lambda t: {"state_dict": t}])
@pytest.mark.parametrize("name", ["w.pth", "w.pt", "pytorch_model.bin"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_torch_state_dict_is_read_plain_and_nested(wrap, name, zipped, tmp_path):
    given = tensors()
    torch.save(wrap(given), tmp_path / name, _use_new_zipfile_serialization=zipped)
    same(read_checkpoint(str(tmp_path / name)).tensors, given)


def test_safetensors_go_before_a_pickle_in_the_same_folder(tmp_path):
    given = tensors()
    save_file(given, tmp_path / "model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    same(read_checkpoint(str(tmp_path)).tensors, given)


def test_half_precision_is_made_single_and_the_rest_is_kept(tmp_path):
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64)
    save_file({str(i): torch.arange(5).to(kind) for i, kind in enumerate(kinds)}, tmp_path / "w.safetensors")
    found = read_checkpoint(str(tmp_path / "w.safetensors")).tensors
    single = torch.float32
    assert [found[str(i)].dtype for i in range(5)] == [single, single, single, torch.float64, torch.int64]
    assert all(t.tolist() == [0, 1, 2, 3, 4] for t in found.values())


# What cannot be read


def refused(source, message, **known):
    """The message of the refusal, which begins with `weights: ` and this."""
    with pytest.raises(UserError) as caught:
        read_public(str(source), **known)
    assert str(caught.value).startswith(f"weights: {message}"), caught.value
    return str(caught.value)


@pytest.mark.parametrize("name", ["nowhere.safetensors", "owner/nowhere.pth", "./nowhere", "a/b/c"])
def test_what_is_neither_a_path_nor_a_hub_id_is_said_to_be_neither(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    refused(name, f"{name}: no such file or folder; a hub id is OWNER/NAME")


def test_a_folder_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, f"{tmp_path}: none of model.safetensors, open_clip_model.safetensors, pytorch_model.bin")


@pytest.mark.parametrize("kept", [0, 5, 40, -4])
def test_a_truncated_safetensors_file_is_refused(kept, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(tensors(), path)
    path.write_bytes(path.read_bytes()[:kept])
    for source in (path, tmp_path):
        refused(source, f"{path}: damaged or truncated safetensors file (")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kept", [0, 3, 30, 100, 0.5, -4])
def test_a_truncated_torch_file_is_refused(kept, zipped, tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(tensors(), path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept) if kept == 0.5 else kept])
    refused(path, f"{path}: damaged or truncated torch file, or none at all (")


@pytest.mark.parametrize(
    "content", [b"<html>404</html>", b"version https://git-lfs.github.com/spec/v1\n", b"0", b"\x80"]
)
def test_what_is_no_torch_file_at_all_is_not_said_to_hold_code(content, tmp_path):
    (tmp_path / "w.bin").write_bytes(content)
    refused(tmp_path / "w.bin", f"{tmp_path / 'w.bin'}: damaged or truncated torch file, or none at all (")


class Trap:
    """Whose unpickling makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "write",
    [
        lambda what, path: torch.save({"a": torch.zeros(3), "b": what}, path),
        lambda what, path: torch.save({"a": what}, path, _use_new_zipfile_serialization=False),
        lambda what, path: path.write_bytes(pickle.dumps(what, protocol=2)),
    ],
    ids=["zip", "old", "bare pickle"],
)
def test_code_in_a_pickle_is_refused_and_never_run(write, tmp_path):
    trap, path = tmp_path / "sprung", tmp_path / "pytorch_model.bin"
    pickle.loads(pickle.dumps(Trap(trap)))  # it would work
    assert trap.exists()
    trap.unlink()
    write(Trap(trap), path)
    for source in (path, tmp_path):
        refused(source, f"{path}: holds code, not only tensors; it was not run. Ask for a safetensors file")
        assert not trap.exists()


@pytest.mark.parametrize(
    "what", [[torch.zeros(3)], torch.zeros(3), {"a": torch.zeros(3), "step": 5}, {"model": {"a": 1}}]
)
def test_a_torch_file_of_other_things_is_refused(what, tmp_path):
    torch.save(what, tmp_path / "w.pth")
    refused(tmp_path / "w.pth", f"{tmp_path / 'w.pth'}: must hold tensors by name, a state dict, and nothing else")


def test_a_missing_shard_is_named(tmp_path):
    index = {"weight_map": {"a.weight": "one.safetensors", "b.bias": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"a.weight": torch.zeros(3)}, tmp_path / "one.safetensors")
    refused(tmp_path, f"{tmp_path / 'two.safetensors'}: no such file, though the index lists it")


@pytest.mark.parametrize("content", ["{}", "[]", '{"weight_map": ["a"]}'])
def test_an_index_that_lists_nothing_is_refused(content, tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    refused(tmp_path, f"{path}: it has no weight_map")


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe{"])
def test_broken_json_beside_the_weights_is_named(name, content, tmp_path):
    save_file(tensors(), tmp_path / "model.safetensors")
    (tmp_path / name).write_bytes(content)
    refused(tmp_path, f"{tmp_path / name}: not JSON (")


def test_a_file_of_no_known_family_lists_the_families_and_its_own_tensors(tmp_path):
    save_file({f"layer{i}.weight": torch.zeros(3) for i in range(11)}, tmp_path / "model.safetensors")
    message = refused(tmp_path, f"{tmp_path}: of no family that dxn knows (ViT of timm, ")
    assert all(family.name in message for family in FAMILIES)
    assert "its tensors are layer0.weight, layer1.weight, layer10.weight, layer2.weight" in message
    assert message.endswith(" and 3 more")


@pytest.mark.parametrize(
    "name", ["beit_base_patch16_224", "vit_relpos_small_patch16_224", "swin_tiny_patch4_window7_224"]
)
def test_timms_models_of_other_kinds_are_not_taken_for_a_vit(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    found = Checkpoint(name, model.state_dict(), {"architecture": name})
    assert not any(family.knows(found) for family in FAMILIES)


# What is missing, and what is too much


def model_of(public):
    nodes = public.nodes()
    adapters = {name: parity.construct(node) for name, node in nodes["adapters"].items()}
    public.prepare(adapters)
    rest = {name: parity.construct(nodes[name]) for name in ("fusion", "backbone", "head")}
    return parity.Model(adapters, **rest)


def test_missing_and_unexpected_tensors_are_listed_unless_strict_is_false(tmp_path):
    saved("ViT (timm)", tmp_path)
    change(tmp_path, **{"blocks.1.mlp.fc2.bias": None, "blocks.0.extra": torch.zeros(2)})
    public = read_public(str(tmp_path))
    with pytest.raises(UserError) as caught:
        public.fill(model_of(public))
    assert str(caught.value) == (
        f"weights: {tmp_path}: 1 of the tensors that ViT of timm has are missing: blocks.1.mlp.fc2.bias; "
        "1 are none of ViT of timm's: blocks.0.extra; weights.strict=false goes on without them"
    )
    model = model_of(public)
    kept = model.backbone.blocks[1].mlp.down.bias.clone()
    filled = public.fill(model, strict=False)
    assert (filled.missing, filled.unexpected) == (["backbone.blocks.1.mlp.down.bias"], ["blocks.0.extra"])
    assert torch.equal(model.backbone.blocks[1].mlp.down.bias, kept)
    assert torch.equal(model.backbone.blocks[1].mlp.up.bias, public.checkpoint.tensors["blocks.1.mlp.fc1.bias"])


def test_many_missing_tensors_are_counted_and_the_first_eight_named(tmp_path):
    saved("BERT", tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    change(tmp_path, **{name: None for name in state if "encoder.layer.1." in name})
    public = read_public(str(tmp_path))
    with pytest.raises(UserError, match=r"12 of the tensors that BERT has are missing: .+ and 4 more; weights\.strict"):
        public.fill(model_of(public))


@pytest.mark.parametrize("name", ["ViT, layer scale, qk norm, no qkv bias (timm)", "ViT, no class token, mean (timm)"])
def test_biases_that_a_family_may_lack_are_zero(name, tmp_path):
    public = read_public(str(saved(name, tmp_path)))
    model = model_of(public)
    torch.nn.init.ones_(model.backbone.blocks[0].attn.qkv.bias)
    found = public.fill(model)
    assert not found.missing and not found.unexpected and not found.replaced
    given = public.checkpoint.tensors.get("blocks.0.attn.qkv.bias", torch.zeros(36))
    assert torch.equal(model.backbone.blocks[0].attn.qkv.bias, given)


def test_a_tensor_of_another_shape_is_refused_with_both_shapes(tmp_path):
    saved("ViT (timm)", tmp_path)
    change(tmp_path, **{"blocks.1.attn.proj.bias": torch.zeros(13)})
    public = read_public(str(tmp_path))
    for strict in (True, False):
        with pytest.raises(UserError) as caught:
            public.fill(model_of(public), strict=strict)
        assert str(caught.value) == (
            f"weights: {tmp_path}: blocks.1.attn.proj.bias makes (13,), but backbone.blocks.1.attn.proj.bias is (12,)"
        )


def test_a_head_of_other_classes_keeps_its_own_weights_and_is_named(tmp_path):
    public = read_public(str(saved("ViT (timm)", tmp_path)))
    model = model_of(public)
    model.head = parity.construct({"_target_": "dxn.models.Classify", "dim": 12, "num_classes": 5})
    before = model.head.out.weight.clone()
    assert public.fill(model).replaced == ["head.out.bias", "head.out.weight"]
    assert torch.equal(model.head.out.weight, before)


def test_only_the_parts_that_are_asked_for_are_filled(tmp_path):
    public = read_public(str(saved("ViT (timm)", tmp_path)))
    model = model_of(public)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    public.fill(model, only=("backbone.",))
    changed = {name.split(".")[0] for name, t in model.state_dict().items() if not torch.equal(t, before[name])}
    assert changed == {"backbone"}


@pytest.mark.parametrize("gone", ["patch_embed.proj.bias", "cls_token"])
def test_a_vit_without_one_of_its_own_tensors_is_no_other_kind_of_vit_by_accident(gone, tmp_path):
    saved("ViT (timm)", tmp_path)
    change(tmp_path, **{gone: None})
    with pytest.raises(UserError, match=r"^weights: .*(missing: |none of ViT of timm's: |not a square)"):
        public = read_public(str(tmp_path))
        public.fill(model_of(public))


def test_clip_without_part_names_both_towers(tmp_path):
    saved("CLIP, image", tmp_path)
    for part in (None, "tower", "audio"):
        refused(
            tmp_path,
            f"{tmp_path}: it holds the image tower of CLIP and the text tower of CLIP; say weights.part=text or image",
            part=part,
        )
    assert read_public(str(tmp_path), part="text").parts.adapters.keys() == {"text"}
    assert read_public(str(tmp_path), part="image").parts.adapters.keys() == {"image"}


def test_text_weights_without_a_tokenizer_are_refused(tmp_path):
    public = read_public(str(saved("BERT", tmp_path)))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text("{}")  # of no use without its merges
    with pytest.raises(UserError) as caught:
        model_of(public)
    assert str(caught.value) == (
        f"weights: {tmp_path}: no tokenizer.json, vocab.txt, or vocab.json with merges.txt beside the weights; "
        "without it nobody knows which row is whose"
    )


def test_a_broken_tokenizer_json_is_named(tmp_path):
    public = read_public(str(saved("BERT", tmp_path)))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer\.json that can be read"):
        model_of(public)


# The hub


def http(kind):
    error = kind.__new__(kind)  # past a constructor that wants a response of whichever client
    Exception.__init__(error, "the client's own words")
    return error


NOBODY = "owner/name: neither a file or folder here nor a repository on the hub that can be read"
OFFLINE = "owner/name: the hub cannot be reached, and it is not in the local cache"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (http(errors.RepositoryNotFoundError), NOBODY),
        (http(errors.GatedRepoError), NOBODY),
        (http(errors.RevisionNotFoundError), "owner/name: the hub has no revision v5 of it"),
        (errors.LocalEntryNotFoundError("no network, nothing cached"), OFFLINE),
        (http(errors.HfHubHTTPError), OFFLINE),
        (errors.OfflineModeIsEnabled("offline"), OFFLINE),
        (OSError("no route"), OFFLINE),
        (RuntimeError("a proxy's error, of another library"), OFFLINE),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_the_hub_cannot_give_is_one_sentence(error, message, monkeypatch):
    def download(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    refused("owner/name", message, revision="v5")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_hub_id_is_downloaded_at_its_revision_and_pickles_only_where_nothing_else_is(name, tmp_path, monkeypatch):
    given, asked = tensors(), []
    (save_file if name.endswith("safetensors") else torch.save)(given, tmp_path / name)

    def download(repo, *, revision, allow_patterns):
        asked.append((repo, revision, "*.bin" in allow_patterns))
        assert {"*.json", "*.txt", "*.safetensors"} <= set(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    found = read_checkpoint("owner/na.me-5", revision="abc")
    same(found.tensors, given)
    assert (found.source, found.folder) == ("owner/na.me-5", tmp_path)
    first = ("owner/na.me-5", "abc", False)
    assert asked == ([first] if name.endswith("safetensors") else [first, (*first[:2], True)])


# Tokenizers

HARD = [
    "Hello, world!",
    "  two  spaces\tand\na newline ",
    "café naïve Ångström ÉCOLE",
    "e\u0301 decomposed",
    "東京は日本の首都",
    "👩‍👩‍👧 emoji",
    "don't [MASK] stop <mask> at </s> all",
    "x" * 120,
    "1,234.56 €",
    "a\u2028b\u00a0c\u200bd",
    "[CLS] in the text [SEP]",
]


def wordpiece_files(folder):
    """A tiny vocab.txt, with a letter in it that is a line of its own to str.splitlines."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2028", "a\x85b"]
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([*HARD, *(text.lower() for text in HARD), "cafe naive ecole"], trainer)
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece, _ in pieces), encoding="utf-8")
    return dict(pieces)


@pytest.mark.parametrize("strip", [None, False, True])
@pytest.mark.parametrize("lowercase", [True, False])
def test_a_vocab_txt_cuts_texts_as_berts_tokenizer_does(lowercase, strip, tmp_path):
    pieces = wordpiece_files(tmp_path)
    settings = {"do_lower_case": lowercase, "strip_accents": strip}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    ours = Checkpoint("x", {}, folder=tmp_path).tokenizer()
    assert ours is not None and ours.get_vocab() == pieces
    theirs = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"), do_lower_case=lowercase, strip_accents=strip)
    for text in HARD:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
        assert ours.encode(text).tokens[0] == "[CLS]" and ours.encode(text).tokens[-1] == "[SEP]"


def test_a_vocab_txt_without_a_tokenizer_config_is_of_lower_case(tmp_path):
    wordpiece_files(tmp_path)
    ours = Checkpoint("x", {}, folder=tmp_path).tokenizer()
    assert ours is not None and ours.encode("HELLO").ids == ours.encode("hello").ids


def test_a_vocab_txt_without_its_special_tokens_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\na\n")
    with pytest.raises(UserError, match=r"^weights: .+vocab\.txt: \[CLS\], \[SEP\] not among its 3 pieces$"):
        wordpiece(tmp_path / "vocab.txt", lowercase=True)


def bpe_files(folder, *special):
    """A tiny vocab.json and merges.txt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=310,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(HARD * 2, trainer)
    tokenizer.model.save(str(folder))
    return str(folder / "vocab.json"), str(folder / "merges.txt")


def test_vocab_json_and_merges_cut_texts_as_gpt2s_tokenizer_does(tmp_path):
    files = bpe_files(tmp_path, "<|endoftext|>")
    ours = Checkpoint("x", {}, folder=tmp_path).tokenizer()
    theirs = transformers.GPT2TokenizerFast(*files)
    assert ours is not None
    for text in [*HARD, "one<|endoftext|>two"]:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)


def test_vocab_json_and_merges_cut_texts_as_robertas_tokenizer_does(tmp_path):
    files = bpe_files(tmp_path, "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    ours = Checkpoint("x", {}, folder=tmp_path).tokenizer()
    # As in the published tokenizer.json: the mask is a word, with the space before it.
    theirs = transformers.RobertaTokenizerFast(*files, mask_token=AddedToken("<mask>", lstrip=True))
    assert ours is not None
    for text in HARD:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
        assert ours.encode(text).tokens[0] == "<s>" and ours.encode(text).tokens[-1] == "</s>"


def test_clips_vocabulary_without_a_tokenizer_json_is_refused(tmp_path):
    files = bpe_files(tmp_path, "<|startoftext|>", "<|endoftext|>")
    with pytest.raises(UserError, match=r"^weights: .+vocab\.json: CLIP's vocabulary, which only a tokenizer\.json"):
        byte_bpe(*map(Path, files))


def test_a_tokenizer_json_goes_before_vocabulary_files(tmp_path):
    wordpiece_files(tmp_path)
    Tokenizer(models.WordLevel({"w0": 0}, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    found = Checkpoint("x", {}, folder=tmp_path).tokenizer()
    assert found is not None and found.get_vocab() == {"w0": 0}
    assert Checkpoint("x", {}).tokenizer() is None


# Shapes that do not fit by themselves


@pytest.mark.parametrize(
    ("name", "shape", "asked", "made"),
    [
        ("adapters.image.position.table", (5, 5, 2), (5, 5, 2), (5, 5, 2)),
        ("adapters.image.position.table", (5, 5, 2), (3, 7, 2), (3, 7, 2)),
        ("adapters.image.position.table", (5, 5, 2), (3, 7, 3), (3, 7, 2)),  # of another width: for fill to refuse
        ("adapters.text.position.table", (11, 2), (7, 2), (7, 2)),
        ("adapters.text.position.table", (7, 2), (11, 2), (7, 2)),  # too few rows, likewise
        ("adapters.text.table.weight", (11, 2), (7, 2), (7, 2)),
        ("adapters.text.table.weight", (7, 2), (11, 2), (7, 2)),
        ("backbone.blocks.0.mlp.up.weight", (11, 2), (7, 2), (11, 2)),
        ("head.out.weight", (11, 2), (7, 2), (11, 2)),
    ],
)
def test_only_places_and_tables_are_made_to_fit(name, shape, asked, made):
    given = torch.randn(shape, dtype=torch.float64)
    found = fitted(name, given, asked)
    assert found.shape == made
    if len(shape) == 2:
        assert torch.equal(found, given[: made[0]])


def test_a_constant_grid_stays_constant_whatever_its_size_and_smoothing_shows_only_when_asked():
    constant = torch.full((5, 7, 2), 3.0, dtype=torch.float64)
    torch.testing.assert_close(fitted("position.table", constant, (3, 11, 2)), constant[:1, :1].expand(3, 11, 2))
    drawn = torch.randn(12, 12, 2, dtype=torch.float64)
    made = [fitted("position.table", drawn, (4, 4, 2), antialias=smooth) for smooth in (True, False)]
    assert made[0].std() < made[1].std()  # the mean over what a cell covers, against its middle alone


# What families refuse

NO = "which dxn does not have"
RELU = f"its activation is 'relu', {NO}"
REFUSED = [
    ("ViT (transformers)", {"hidden_act": "relu"}, RELU),
    ("DINOv2", {"hidden_act": "relu"}, RELU),
    ("BERT", {"hidden_act": "relu"}, RELU),
    ("BERT", {"is_decoder": True}, f"a decoder, or one with relative positions, {NO}"),
    ("BERT", {"position_embedding_type": "relative_key"}, f"a decoder, or one with relative positions, {NO}"),
    ("RoBERTa", {"hidden_act": "relu"}, RELU),
    ("RoBERTa", {"is_decoder": True}, f"a decoder, or one with relative positions, {NO}"),
    ("DistilBERT", {"activation": "relu"}, RELU),
    ("ModernBERT", {"classifier_activation": "relu"}, RELU),
    ("ModernBERT", {"hidden_activation": "relu"}, RELU),
    ("ModernBERT", {"hidden_activation": "gelu_new"}, f"a gate other than GELU, {NO}"),
    ("ModernBERT", {"attention_bias": True}, f"a ModernBERT with biases, {NO}"),
    ("ModernBERT", {"mlp_bias": True}, f"a ModernBERT with biases, {NO}"),
    ("ModernBERT", {"norm_bias": True}, f"a ModernBERT with biases, {NO}"),
    (
        "ModernBERT",
        {"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]},
        "blocks that see all at irregular distances: full_attention, sliding_attention, full_attention, full_attention",
    ),
    ("GPT-2", {"activation_function": "relu"}, RELU),
    ("GPT-2", {"scale_attn_by_inverse_layer_idx": True}, "scores that are scaled by the block's number, or not at all"),
    ("GPT-2", {"scale_attn_weights": False}, "scores that are scaled by the block's number, or not at all"),
    ("AST", {"hidden_act": "relu"}, RELU),
    ("Whisper, encoder", {"activation_function": "relu"}, RELU),
    ("CLIP, image", {"vision_config": {"hidden_act": "relu"}}, RELU),
    ("CLIP, text", {"text_config": {"hidden_act": "relu"}}, RELU),
    ("BERT", {"num_hidden_layers": None}, "neither its tensors nor its config.json has 'num_hidden_layers'"),
    ("ViT (timm)", {"global_pool": "map"}, "pools by 'map', which dxn cannot"),
]


@pytest.mark.parametrize(("name", "config", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else None)
def test_what_our_parts_cannot_do_is_refused_and_not_left_out(name, config, message, tmp_path):
    saved(name, tmp_path, **config)
    refused(tmp_path, f"{tmp_path}: {message}", part=CASES[name].part)


@pytest.mark.parametrize("name", ["ViT (transformers)", "DINOv2", "CLIP, image"])
def test_a_filter_of_pictures_that_we_do_not_have_is_refused(name, tmp_path):
    saved(name, tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"resample": 1}')
    message = f"{tmp_path}: pictures are resized by PIL's filter 1, which dxn cannot"
    refused(tmp_path, message, part=CASES[name].part)


def test_an_interpolation_of_timm_that_we_do_not_have_is_refused(tmp_path):
    saved("ViT (timm)", tmp_path, pretrained_cfg={"interpolation": "lanczos"})
    refused(tmp_path, "pictures are resized by lanczos, which dxn cannot; only bilinear and bicubic")


def vit_state(**options):
    size = {"img_size": 40, "patch_size": 8, "embed_dim": 12, "depth": 1, "num_heads": 2}
    return timm.models.VisionTransformer(**{**size, **options}).state_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_size": (8, 4)}, "patches of 8 by 4 pixels; only square ones can be taken"),
        ({"img_size": (24, 32)}, "13 places, 1 of them for leading tokens or none,"),
        (
            {"img_size": 24, "reg_tokens": 4, "no_embed_class": True},  # 3 by 3, or 2 by 2 and 5 leading ones
            "9 places, 5 of them for leading tokens or none, may be a square of patches either way",
        ),
    ],
)
def test_a_vit_whose_patches_are_no_square_is_refused(options, message, tmp_path):
    save_file(vit_state(**options), tmp_path / "model.safetensors")
    refused(tmp_path, f"{tmp_path}: {message}")


@pytest.mark.parametrize("kind", ["ViT", "Dinov2"])
def test_pictures_of_transformers_that_are_no_square_are_refused(kind, tmp_path):
    config = getattr(transformers, f"{kind}Config")(**SIZES.hf, image_size=(24, 40), patch_size=8)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"15 patches that are no square, which dxn does not have"):
        read_public(str(tmp_path))


# What no tensor of timm's shows


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224",
        "deit3_huge_patch14_224",
        "vit_huge_patch14_224",
        "vit_giant_patch14_224",
        "vit_giant_patch14_dinov2",
        "vit_gigantic_patch14_224",
        "vit_base_patch16_gap_224",
        "vit_so400m_patch14_siglip_gap_224",
        "vit_so400m_patch16_siglip_gap_256",
        "vit_base_patch32_siglip_gap_256",
        "vit_giantopt_patch16_siglip_gap_256",
        "vit_large_patch16_siglip_gap_256",
        "vit_large_patch16_siglip_gap_512",
        "test_vit",
        "test_vit2",
    ],
)
def test_heads_and_activation_are_those_that_timm_builds(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    state = {key: torch.ones(t.shape) if "gamma" in key else t for key, t in model.state_dict().items()}
    backbone = VIT.parts(Checkpoint(name, state, {"architecture": name})).backbone
    first = model.blocks[0]
    kinds = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "SiLU": "swiglu"}
    assert backbone["num_heads"] == first.attn.num_heads
    assert backbone["mlp"] == kinds[type(first.mlp.act).__name__]
    assert backbone["norm_eps"] == first.norm1.eps and backbone["depth"] == len(model.blocks)


def test_what_a_config_json_leaves_out_is_as_transformers_has_it(tmp_path):
    saved("GPT-2", tmp_path, activation_function=None)
    assert read_public(str(tmp_path)).parts.backbone["mlp"] == "gelu_tanh"
    state = {"text_model.embeddings.token_embedding.weight": torch.zeros(5, 512)}
    state["text_model.embeddings.position_embedding.weight"] = torch.zeros(7, 512)
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "clip", "text_config": {"num_hidden_layers": 3}}')
    public, theirs = read_public(str(tmp_path)), transformers.CLIPTextConfig()
    backbone = public.parts.backbone
    assert (public.parts.dim, backbone["depth"], backbone["num_heads"]) == (theirs.hidden_size, 3, 8)
    assert backbone["num_heads"] == theirs.num_attention_heads
    assert backbone["mlp_ratio"] == theirs.intermediate_size / theirs.hidden_size
    assert backbone["mlp"] == theirs.hidden_act and backbone["norm_eps"] == theirs.layer_norm_eps


@pytest.mark.parametrize(
    ("tower", "part"), [("CLIPVisionModelWithProjection", "image"), ("CLIPTextModelWithProjection", "text")]
)
def test_a_tower_of_clip_by_itself_needs_no_part(tower, part, tmp_path):
    config = getattr(parity._clip(SIZES), "vision_config" if part == "image" else "text_config")
    theirs = parity.lively(getattr(transformers, tower)(config))
    theirs.save_pretrained(tmp_path)
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(parity.VOCAB)}, unk_token="w3")).save(
        str(tmp_path / "tokenizer.json")
    )
    public = read_public(str(tmp_path))
    model = model_of(public).eval()
    filled = public.fill(model)
    assert list(public.parts.adapters) == [part] and not (filled.missing or filled.unexpected)
    case = parity.hf_case("tower", tower, lambda s: config, "", part)
    mine, given = parity.inputs(parity.Pair(case, theirs, model, public), SIZES, torch.float32)
    with torch.inference_mode():
        out = theirs(pixel_values=given["pixels"]) if part == "image" else theirs(given["ids"], given["mask"].long())
        expected = out.image_embeds if part == "image" else out.text_embeds
        torch.testing.assert_close(model(mine), expected, atol=1e-5, rtol=0)


def test_places_of_a_longer_sound_lie_between_those_there_are():
    """Moment k of twice as many (less one) is moment k / 2."""
    table = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    longer = fitted("adapters.audio.position.table", table, (13, 3))
    torch.testing.assert_close(longer[::2], table)
    torch.testing.assert_close(longer[1::2], (table[1:] + table[:-1]) / 2)
    assert fitted("adapters.text.position.table", table, (13, 3)).shape == (7, 3)  # a text's order is not a line
