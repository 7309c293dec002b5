"""Draw pictures of docs/attention.md in docs/images.

python docs/pictures.py
"""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor

from dxn.explain.figures import BLUE, GREY, ORANGE, new_figure, save, set_title
from dxn.models.attention import attend, attention_weights

IMAGES = Path(__file__).with_name("images")
# The numbers of the worked example of the page: three tokens (3, 4), and the projections (4, 3).
X = torch.tensor([[1.0, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
W_KEY = torch.tensor([[0.0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]])
W_QUERY = torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]])
W_VALUE = torch.tensor([[0.0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]])


def worked_example() -> None:
    """Draw the queries, keys, weights, values and outputs of self-attention as tables."""
    queries = X @ W_QUERY
    keys = X @ W_KEY
    values = X @ W_VALUE
    weights = attention_weights(queries, keys, score="dot")
    outputs = attend(queries, keys, values, score="dot")
    figure = new_figure(9.6, 2.8)
    panels = figure.subplots(1, 5)
    tables = (
        (queries, "queries", "q"),
        (keys, "keys", "k"),
        (weights, "weights", "q"),
        (values, "values", "v"),
        (outputs, "outputs", "o"),
    )
    for axes, (matrix, title, letter) in zip(panels, tables, strict=True):
        _draw_table(axes, matrix, title, letter, decimals=title in ("weights", "outputs"))
        if title == "weights":
            axes.set_xticks(range(3), ["k1", "k2", "k3"])
    set_title(figure, "Self-attention of three inputs, score: dot product")
    save(figure, IMAGES / "worked_example.png")


def soft_database() -> None:
    """Draw attention as a soft lookup in a database of four pairs of a key and a value."""
    key = torch.tensor([-2.0, -1.0, 1.0, 2.5])
    value = torch.tensor([[1.0], [3.0], [2.0], [4.0]])
    query = torch.linspace(-3.2, 3.7, 300)
    figure = new_figure(6.4, 3.5)
    axes = figure.subplots()
    for scale, color in ((1, GREY), (4, BLUE), (40, ORANGE)):
        # The score is -(query - key)^2 = 2 query key - key^2 - query^2. The last term is the same
        # for all keys, so the softmax cancels it, and a dot product of two numbers is enough.
        left = torch.stack([query, torch.ones_like(query)], 1) * scale
        right = torch.stack([2 * key, -(key**2)], 1)
        result = attend(left, right, value, score="dot")[:, 0]
        axes.plot(query, result, color=color, label=f"scale of the scores: {scale}")
    axes.scatter(key, value[:, 0], color="black", zorder=3, label="keys and their values")
    axes.set(xlabel="query", ylabel="result")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    set_title(figure, "Attention is a soft lookup: the result for each query")
    save(figure, IMAGES / "soft_database.png")


def _draw_table(axes: Axes, matrix: Tensor, title: str, letter: str, *, decimals: bool) -> None:
    """Draw a matrix with its values. Cells with larger values are darker."""
    top = float(matrix.max())
    # 1.4: the darkest blue is not used, because text on it would be hard to read.
    axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1.4 * top, aspect="auto")
    for i, row in enumerate(matrix.tolist()):
        for j, cell in enumerate(row):
            dark = cell > 0.9 * top
            text = f"{cell:.2f}" if decimals else f"{cell:g}"
            color = "white" if dark else "black"
            axes.text(j, i, text, ha="center", va="center", fontsize=10, color=color)
    axes.set_yticks(range(len(matrix)), [f"{letter}{i + 1}" for i in range(len(matrix))])
    axes.set_xticks([])
    axes.set_title(title, fontsize=11)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    worked_example()
    soft_database()
    print(f"wrote {IMAGES.name}/")
