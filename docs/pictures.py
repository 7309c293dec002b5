"""Draws the pictures of docs/attention.md into docs/images: python docs/pictures.py"""

from pathlib import Path

import torch
from torch import Tensor

from dxn.explain.plots import BLUE, GREY, ORANGE, new_figure, save
from dxn.models.attention import attend, attention_weights

IMAGES = Path(__file__).with_name("images")
X = torch.tensor([[1.0, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
W_KEY = torch.tensor([[0.0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]])
W_QUERY = torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]])
W_VALUE = torch.tensor([[0.0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]])


def worked_example() -> None:
    """Keys, values, and, for each query, its weights and its output: numbers in their cells."""
    keys, values, queries = X @ W_KEY, X @ W_VALUE, X @ W_QUERY
    weights = attention_weights(queries, keys, score="dot")
    outputs = attend(queries, keys, values, score="dot")
    figure = new_figure(9.6, 2.5)
    panels = figure.subplots(1, 5, width_ratios=(3, 3, 3, 3, 3))
    shown = ((queries, "queries", "q"), (keys, "keys", "k"), (weights, "weights", "q"), (values, "values", "v"))
    for axes, (matrix, title, letter) in zip(panels, (*shown, (outputs, "outputs", "o")), strict=True):
        _cells(axes, matrix, title, letter, wide=title in ("weights", "outputs"))
        if title == "weights":
            axes.set_xticks(range(3), ["k1", "k2", "k3"])
    save(figure, IMAGES / "worked_example.png")


def soft_database() -> None:
    """What a database of four numbers answers to queries between its keys, softer and sharper."""
    key = torch.tensor([-2.0, -1.0, 1.0, 2.5])
    value = torch.tensor([[1.0], [3.0], [2.0], [4.0]])
    query = torch.linspace(-3.2, 3.7, 300)
    figure = new_figure(6.4, 3.2)
    axes = figure.subplots()
    for sharpness, colour in ((1, GREY), (4, BLUE), (40, ORANGE)):
        # Minus the squared distance, as a dot product: what depends on the query alone drops out of the softmax.
        left = torch.stack([query, torch.ones_like(query)], 1) * sharpness
        right = torch.stack([2 * key, -(key**2)], 1)
        axes.plot(query, attend(left, right, value, score="dot")[:, 0], color=colour, label=f"sharpness {sharpness}")
    axes.scatter(key, value[:, 0], color="black", zorder=3, label="keys and their values")
    axes.set(xlabel="query", ylabel="answer")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    save(figure, IMAGES / "soft_database.png")


def _cells(axes, matrix: Tensor, title: str, letter: str, *, wide: bool) -> None:
    top = float(matrix.max())
    axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1.4 * top, aspect="auto")
    for i, row in enumerate(matrix.tolist()):
        for j, cell in enumerate(row):
            dark = cell > 0.9 * top
            text = f"{cell:.2f}" if wide else f"{cell:g}"
            axes.text(j, i, text, ha="center", va="center", fontsize=10, color="white" if dark else "black")
    axes.set_yticks(range(len(matrix)), [f"{letter}{i + 1}" for i in range(len(matrix))])
    axes.set_xticks([])
    axes.set_title(title, fontsize=11)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    worked_example()
    soft_database()
    print(f"drawn into {IMAGES.name}/")
