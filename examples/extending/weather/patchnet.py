from dxn.weights import Architecture, Family
from dxn.weights.conversions import blocks, copied, linears, patch_matrix, patch_positions

# Names within a dxn block, and within a layer of the checkpoint.
BLOCK = {
    "attn_norm": "norm1",
    "attn.proj": "self_attn.out_proj",
    "mlp_norm": "norm2",
    "mlp.up": "linear1",
    "mlp.down": "linear2",
}


def matches(checkpoint):
    return "patch.weight" in checkpoint and "layers.0.self_attn.in_proj_weight" in checkpoint


def architecture(checkpoint):
    dim, channels, patch_size, _ = checkpoint.tensors["patch.weight"].shape
    side = round(checkpoint.tensors["position"].shape[1] ** 0.5)
    image = {
        "image_size": side * patch_size,
        "patch_size": patch_size,
        "in_channels": channels,
        "resize": {"mode": "stretch"},
        "normalize": {"mean": [0.5], "std": [0.5]},
    }
    backbone = {
        "depth": checkpoint.num_layers("layers.{i}.norm1.weight"),
        "num_heads": 2,  # no tensor depends on it
        "block": {"hidden_dim": checkpoint.num_rows("layers.0.linear1.weight")},
    }
    return Architecture(dim, {"image": image}, backbone, labels=["clear", "cloudy"])


def tensor_map(checkpoint, architecture):
    image = architecture.adapters["image"]
    size, channels = image["patch_size"], image["in_channels"]
    grid = (image["image_size"] // size,) * 2
    depth = architecture.backbone["depth"]
    result = {
        "adapters.image.proj.weight": patch_matrix(
            "patch.weight", channels=channels, height=size, width=size
        ),
        "adapters.image.proj.bias": copied("patch.bias"),
        "adapters.image.pos_embed.weight": patch_positions("position", grid),
        **blocks(BLOCK, prefix="layers.{i}", depth=depth),
        **linears({"backbone.norm": "norm", "head.out": "classifier"}),
    }
    for i in range(depth):  # torch names these without a dot before weight and bias
        for kind in ("weight", "bias"):
            name = f"layers.{i}.self_attn.in_proj_{kind}"
            result[f"backbone.blocks.{i}.attn.qkv.{kind}"] = copied(name)
    return result


PATCHNET = Family("PatchNet", matches, architecture, tensor_map)
