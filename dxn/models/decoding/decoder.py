"""The transformer decoder, and what it keeps between the steps of a generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.core.dropout import Dropout, Keys, Rate, keep_mask
from dxn.core.schema import checked
from dxn.core.tokens import Tokens, can_read, sinusoidal
from dxn.models.attention import Group
from dxn.models.backbone import Backbone
from dxn.models.decoding.output_layer import (
    OutputLayer,
    OutputOptions,
    TokenEmbedding,
    VectorEmbedding,
    make_token_embedding,
    set_unregistered,
)
from dxn.models.positions import last_index

DecoderPosition = Literal["learned", "sinusoidal", "none"]


@dataclass(frozen=True, slots=True)
class Memory:
    """The sequence to which cross-attention attends, such as the output of an encoder.

    Args:
        x: (B, M, D). Vectors of the tokens.
        attn_mask: (B, 1, 1, M) bool. True at real tokens. None: all tokens are real.
        mask: (B, M) bool. True at real tokens. Required if num_real is not None.
        num_real: Number of real tokens of all samples, see `Tokens`. None: unknown.
        sizes: Number of tokens of each input, with padding. Empty: unknown.
    """

    x: Tensor
    attn_mask: Tensor | None
    mask: Tensor | None = None
    num_real: int | None = None
    sizes: tuple[int, ...] = ()

    @classmethod
    def from_tokens(cls, tokens: Tokens) -> Memory:
        """Convert encoded Tokens to a memory.

        A sample without real tokens attends to its padding, because a softmax over no keys is NaN.
        """
        # Without a mask, torch can choose its fastest kernel.
        # Not len, which would make a size of a traced graph a constant.
        sizes = tuple(span.stop - span.start for span in tokens.spans)
        if tokens.has_no_padding:
            return cls(tokens.x, None, tokens.mask, tokens.num_real, sizes)
        readable = tokens.mask | ~tokens.mask.any(1, keepdim=True)
        attn_mask = rearrange(readable, "b m -> b 1 1 m")
        return cls(tokens.x, attn_mask, tokens.mask, tokens.num_real, sizes)

    def select(self, samples: Tensor) -> Memory:
        """Return the memory of these samples (b,) of the batch."""
        mask = None if self.attn_mask is None else self.attn_mask[samples]
        return Memory(self.x[samples], mask)


class KVCache:
    """Keys and values of one block, for the previous tokens and for the memory.

    In generation, each step computes only the new tokens and reads all others from the cache. The
    tensors have room for further tokens, so that a step writes only the new ones. They are used as
    a whole, because the CPU kernels for bf16 copy parts of tensors. The column of a token is its
    index in the sequence. Beams of a sample are rows of their own, but share the keys and values of
    the memory.
    """

    def __init__(self):
        self.memory: tuple[Tensor, Tensor] | None = None
        self._tokens: tuple[Tensor, Tensor] | None = None  # (R, H, C, d) each

    @property
    def is_empty(self) -> bool:
        """Whether there are no previous tokens."""
        return self._tokens is None

    def extend(self, key: Tensor, value: Tensor, group: Group) -> tuple[Tensor, Tensor]:
        """Write the keys and values (R, H, n, d) of new tokens, and return all (R, H, C, d).

        There are as many columns C as in the mask of the group, which hides those without a token.
        """
        if self._tokens is None:
            self._tokens = key, value
            return self._tokens
        assert group.mask is not None and group.cells is not None
        room = group.mask.shape[1] - self._tokens[0].shape[2]
        if room:
            key_room, value_room = (F.pad(part, (0, 0, 0, room)) for part in self._tokens)
            self._tokens = key_room, value_room
        rows, columns = group.cells
        for part, new in zip(self._tokens, (key, value), strict=True):
            if isinstance(columns, slice):
                part[:, :, columns] = new
            else:
                part.transpose(1, 2)[rows, columns] = new.transpose(1, 2)
        return self._tokens

    def select(self, rows: Tensor, samples: Tensor | None = None) -> None:
        """Keep these rows (r,), which can be repeated, and the memory of these samples (b,).

        Args:
            rows: Indices of the rows of the previous tokens.
            samples: Indices of the samples of the memory. Default: all of them.
        """
        if self._tokens is not None:
            # On a CPU, index_select is several times as fast as indexing.
            selected = [part.index_select(0, rows) for part in self._tokens]
            keeps_shape = len(rows) == len(self._tokens[0])
            if keeps_shape and not can_read(rows):
                # In place, so that a step can be captured as a graph. It takes longer on a CPU.
                for part, new in zip(self._tokens, selected, strict=True):
                    part.copy_(new)
            else:
                self._tokens = selected[0], selected[1]
        if self.memory is not None and samples is not None:
            self.memory = self.memory[0][samples], self.memory[1][samples]

    def join(self, other: KVCache) -> None:
        """Add the rows of another cache after these. Neither of them has a memory."""
        assert self.memory is None and other.memory is None
        assert self._tokens is not None and other._tokens is not None
        key, value = (
            stacked(*parts, dim=2) for parts in zip(self._tokens, other._tokens, strict=True)
        )
        self._tokens = key, value

    def clear(self) -> None:
        """Forget the tokens, but not the memory."""
        self._tokens = None


class StepDecoder(nn.Module):
    """Base class of models that predict the next token, for `generate` and `beam_search`.

    There can be several rows for each sample of the memory: row i belongs to sample i // K if there
    are K times as many rows as samples.

    Args:
        embedding: Embedding (V, D) of the tokens.
        max_len: Maximum number of tokens of a sequence, including the begin token.
        output: Layer from output vectors (..., D) to logits (..., V). Default: its weights are
            those of the embedding.

    Attributes:
        static_steps: Whether a step of a generation only changes tensors, in place, once the caches
            have all of their columns. Then it can be captured as a CUDA graph.
        joint_rows: Whether the caches have one row for all rows of a sample.
    """

    static_steps = False
    joint_rows = False

    embedding: TokenEmbedding

    def __init__(
        self, embedding: TokenEmbedding, max_len: int, *, output: OutputLayer | None = None
    ):
        super().__init__()
        self.max_len = max_len
        self.embedding = embedding
        self.output = OutputLayer(embedding) if output is None else output

    def tie(self, embedding: TokenEmbedding) -> None:
        """Replace the embedding by that of another module, which alone owns it.

        It is not a parameter of the decoder, so it is trained and saved only once.
        """
        del self.embedding
        set_unregistered(self, "embedding", embedding)
        self.output.tie(embedding)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor,
        memory: Memory | None = None,
        caches: Sequence[Any] | None = None,
    ) -> Tensor:
        """Compute the logits of the token after each of `ids`.

        Args:
            ids: (B, n). Token ids. With caches, only the new tokens; otherwise n = N.
            mask: (B, N) bool. True at the real tokens of the whole sequence. With caches that have
                tokens, N can be larger than necessary: the new tokens are the last n real ones.
            memory: Sequence to which the decoder attends.
            caches: Caches of the previous tokens, created by `caches`. The new ones are appended.

        Returns:
            (B, n, V).

        Raises:
            ValueError: If the sequence is longer than max_len.
        """
        return self.output(self.states(ids, mask, memory, caches))

    def states(
        self,
        ids: Tensor,
        mask: Tensor,
        memory: Memory | None = None,
        caches: Sequence[Any] | None = None,
        *,
        num_real: int | None = None,
    ) -> Tensor:
        """Compute the output vectors (B, n, D), of which `output` computes the logits.

        The other arguments are those of `forward`.

        Args:
            num_real: Number of real tokens of all samples, see `Tokens`. None: unknown.
        """
        raise NotImplementedError

    def next_states(
        self, ids: Tensor, mask: Tensor, memory: Memory | None, caches: Sequence[Any]
    ) -> Tensor:
        """Compute the output vectors (R, D) after the last real token of each row."""
        return at_last(self.states(ids, mask, memory, caches), mask)

    def caches(self) -> Sequence[Any]:
        """Create empty caches for the previous tokens and for the memory.

        The method `select(rows, samples=None)` of a cache keeps these rows (r,), and what belongs
        to these samples (b,) of the memory. The caches of a `LanguageModel` have the method
        `join(other)`, which adds the rows of another cache.
        """
        raise NotImplementedError

    def output_layer(self) -> nn.Module:
        """Return the layer from output vectors (..., D) to logits (..., V) for a generation."""
        return self.output.packed()

    def _check_length(self, length: int) -> None:
        if length > self.max_len:
            raise ValueError(
                f"a sequence of {length} tokens is longer than max_len={self.max_len}: raise "
                "max_len"
            )


class Decoder(StepDecoder):
    """Predicts the next token from the previous tokens and, optionally, from a memory.

    Args:
        backbone: Causal backbone. With cross=true it attends to a memory; otherwise the decoder is
            a language model.
        vocab_size: Vocabulary size V.
        max_len: Maximum number of tokens of a sequence, including the begin token.
        pos_embed: Position embedding of the tokens: learned, sinusoidal or none (if the backbone
            has rotary or ALiBi positions).
        dropout: Dropout probability of the embedded tokens.
        token_dropout: Probability that the embedding of an input token is set to zero in training,
            so that the decoder relies more on the memory (arXiv:1511.06349, section 3.1).
        scale_embedding: Multiply the embeddings of the tokens by sqrt(D).
        norm_embedding: Apply a layer norm to the sum of the embeddings and the positions.
        output: Options of the output layer.
        parallel: Attend in both directions, to predict masked tokens at their own positions.
            head=any sets it.
        vectors: Known vectors (V, d) of the tokens, see `VectorEmbedding`. head=any sets it.
        row: Number of tokens of a row of a picture. Half of a sinusoidal position is then that of
            its row and column, so that a token is near to the one above it. head=any sets it.
    """

    static_steps = True
    pos_embed: Tensor

    @checked
    def __init__(
        self,
        backbone: Backbone,
        *,
        vocab_size: int,
        max_len: int = 256,
        pos_embed: DecoderPosition = "sinusoidal",
        dropout: Rate = 0.0,
        token_dropout: Rate = 0.0,
        scale_embedding: bool = True,
        norm_embedding: bool = False,
        output: OutputOptions = OutputOptions(),
        parallel: bool = False,
        vectors: Tensor | None = None,
        row: int = 0,
    ):
        embedding = make_token_embedding(vocab_size, backbone.dim)
        if vectors is not None:
            embedding = VectorEmbedding(embedding, vectors)
        super().__init__(embedding, max_len, output=OutputLayer(embedding, output))
        if parallel and backbone.causal:
            raise ValueError(
                "the backbone of a parallel decoder must attend in both directions, got "
                "causal=true: set causal=false"
            )
        if not (parallel or backbone.causal):
            raise ValueError(
                "the backbone of a decoder must be causal, otherwise it would see the tokens that "
                "it predicts, got causal=false: set causal=true"
            )
        self.backbone = backbone
        self.parallel = parallel
        self.scale = backbone.dim**0.5 if scale_embedding else 1.0
        self.norm = nn.LayerNorm(backbone.dim) if norm_embedding else nn.Identity()
        if pos_embed == "learned":
            weight = torch.empty(max_len, backbone.dim)
            self.pos_embed = nn.Parameter(nn.init.trunc_normal_(weight, std=0.02))
        else:
            weight = torch.zeros(max_len, backbone.dim)
            if pos_embed == "sinusoidal":
                weight = sinusoidal(torch.arange(max_len), backbone.dim)
                if row:
                    weight = _positions_in_rows(max_len, backbone.dim, row)
            # Not persistent, because it can be computed from max_len and dim.
            self.register_buffer("pos_embed", weight, persistent=False)
        self.dropout = Dropout(dropout)
        self.token_dropout = token_dropout

    def states(
        self,
        ids: Tensor,
        mask: Tensor,
        memory: Memory | None = None,
        caches: Sequence[KVCache] | None = None,
        *,
        num_real: int | None = None,
    ) -> Tensor:
        """See `StepDecoder.states`.

        The ids can be (B, n, R), where R tokens have the same position. Their embeddings are added.
        Negative ids are no tokens.
        """
        self._check_length(mask.shape[1])
        if ids.ndim == 3:
            x = (self.embedding(ids.clamp(min=0)) * (ids >= 0)[..., None]).sum(2)
        else:
            x = self.embedding(ids)
        x = x * self.scale
        # Before the positions are added, so that the decoder still knows where it is.
        if self.training and self.token_dropout:
            keys = Keys.of(ids.shape[:2], ids.device)
            draws = keys.step.draw(keys.tokens, self.dropout.layer)
            x = x * keep_mask(draws, self.token_dropout)
        if not caches or caches[0].is_empty:
            pos_embed = self.pos_embed[: ids.shape[1]]
        else:
            pos_embed = self.pos_embed[last_index(mask, ids.shape[1])]
        x = self.dropout(self.norm(x + pos_embed))
        x = self.backbone.run(x, mask, num_real=num_real, memory=memory, caches=caches)
        return self.backbone.norm(x)

    def next_states(
        self, ids: Tensor, mask: Tensor, memory: Memory | None, caches: Sequence[KVCache]
    ) -> Tensor:
        """See `StepDecoder.next_states`.

        If `parallel`, the rows (B N, 1) are all tokens of the samples of the memory.
        """
        if not self.parallel:
            return super().next_states(ids, mask, memory, caches)
        assert memory is not None
        ids = ids.view(len(memory.x), -1)
        for cache in caches:
            cache.clear()  # each step can change every token, but not the memory
        real = torch.ones_like(ids, dtype=torch.bool)
        return self.states(ids, real, memory, caches, num_real=ids.numel()).flatten(0, 1)

    def cross_attention_weights(self, ids: Tensor, mask: Tensor, memory: Memory) -> Tensor:
        """Compute the cross-attention weights of all blocks and heads.

        The weights at a token belong to the prediction of the next token. Each row sums to 1.

        Args:
            ids: (B, n). Token ids.
            mask: (B, n) bool. True at real tokens.
            memory: Sequence to which the cross-attention of the backbone attends.

        Returns:
            (B, L, H, n, M) for L blocks and H heads.

        Raises:
            ValueError: If the backbone has no cross-attention.
        """
        modules: list[Any] = [block.cross for block in self.backbone.blocks]
        if None in modules or not modules:
            raise ValueError("this decoder has no cross-attention, so there are no weights to show")
        weights: list[Tensor] = []

        def record(module: Any, args: tuple[Any, ...]) -> None:
            x, groups, *rest = args
            weights.append(module.weights(x, groups[0], *rest))

        # A hook receives the arguments of the attention, so they need not be computed again here.
        hooks = [module.register_forward_pre_hook(record) for module in modules]
        try:
            # One group with all samples, so that the weights have the columns of the batch.
            with self.backbone.unpacked():
                self.states(ids, mask, memory)
        finally:
            # Even after an error, because a remaining hook would record all later calls.
            for hook in hooks:
                hook.remove()
        return torch.stack(weights, 1)

    def caches(self) -> list[KVCache]:
        """Create an empty cache for each block."""
        return [KVCache() for _ in self.backbone.blocks]


def stacked(first: Tensor, second: Tensor, *, dim: int) -> Tensor:
    """Return the rows of two tensors (R, ...) as one, with zeros after the one shorter in `dim`."""
    size = max(first.shape[dim], second.shape[dim])
    others = [0] * (2 * (first.ndim - dim) - 1)  # the last dimension comes first
    return torch.cat([F.pad(x, (*others, size - x.shape[dim])) for x in (first, second)])


def at_last(x: Tensor, mask: Tensor) -> Tensor:
    """Return the vectors (R, D) of the last real token of each row.

    Args:
        x: (R, n, D). Vectors of the last n tokens.
        mask: (R, N) bool. True at the real tokens. Rows without real tokens have any vector. If n
            is less than N, all of the n tokens are real, in any columns.
    """
    n = x.shape[1]
    if n == 1 or n < mask.shape[1]:
        return x[:, -1]
    index = n - 1 - mask[:, -n:].flip(1).int().argmax(1)  # argmax returns the first maximum
    return x[torch.arange(x.shape[0], device=x.device), index]


def _positions_in_rows(length: int, dim: int, row: int) -> Tensor:
    """Return positions (n, D): a half of the index, and quarters of the row and the column."""
    index = torch.arange(length)
    quarter = dim // 8 * 2  # even, because it consists of sines and cosines
    rows, columns = (sinusoidal(numbers, quarter) for numbers in (index // row, index % row))
    return torch.cat([sinusoidal(index, dim - 2 * quarter), rows, columns], 1)
