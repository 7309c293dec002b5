"""Embeddings of the tokens of a decoder, which are also the weights of its output layer."""

from __future__ import annotations

from torch import Tensor, nn


def make_token_embedding(vocab_size: int, dim: int) -> nn.Embedding:
    """Create the embedding of a decoder, which is also its output layer."""
    embedding = nn.Embedding(vocab_size, dim)
    # With this standard deviation, the initial logits have a standard deviation of about 1. The
    # input is multiplied by sqrt(dim) to compensate (arXiv:1706.03762, section 3.4).
    nn.init.normal_(embedding.weight, std=dim**-0.5)
    return embedding


class VectorEmbedding(nn.Module):
    """A table plus a linear function of vectors that are known, such as those of codes.

    What is learned about a code also changes the codes with similar vectors, so that it needs fewer
    examples than a table alone.

    Args:
        table: Embedding (V, D).
        vectors: (V, d). Zeros for tokens without a vector.
    """

    vectors: Tensor

    def __init__(self, table: nn.Embedding, vectors: Tensor):
        super().__init__()
        self.table = table
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim
        self.project = nn.Linear(vectors.shape[1], table.embedding_dim, bias=False)
        nn.init.normal_(self.project.weight, std=table.embedding_dim**-0.5)
        # They are those of the codec, which is saved with the model.
        self.register_buffer("vectors", vectors, persistent=False)

    @property
    def weight(self) -> Tensor:
        """The embedding (V, D) of all tokens."""
        return self.table.weight + self.project(self.vectors)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the embeddings (..., D) of token ids (...)."""
        return self.table(ids) + self.project(self.vectors[ids])


TokenEmbedding = nn.Embedding | VectorEmbedding
