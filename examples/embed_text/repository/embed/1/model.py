"""The encoder of all-MiniLM-L6-v2 in plain torch: BERT with 6 layers, mean pooling, vectors of length 1.

The names of the modules are those in model.safetensors, so the weights load without a mapping.
"""

import torch
from torch import Tensor, nn

VOCABULARY, POSITIONS, WIDTH, INNER, HEADS, LAYERS = 30522, 512, 384, 1536, 12, 6
EPSILON = 1e-12


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.position_embeddings = nn.Embedding(POSITIONS, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=EPSILON)
        self.register_buffer("position_ids", torch.zeros(1, POSITIONS, dtype=torch.int64))

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = self.position_embeddings.weight[: input_ids.shape[1]]
        return self.LayerNorm(self.word_embeddings(input_ids) + positions + self.token_type_embeddings.weight[0])


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


class AddAndNorm(nn.Module):
    """Projects, adds the residual and normalises: the end of each half of a layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=EPSILON)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": SelfAttention(), "output": AddAndNorm(WIDTH)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(WIDTH, INNER)})
        self.output = AddAndNorm(INNER)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention["output"](self.attention["self"](x, mask), x)
        return self.output(nn.functional.gelu(self.intermediate["dense"](x)), x)


class SentenceEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer() for _ in range(LAYERS))})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(WIDTH, WIDTH)})  # in the file, but sentences are mean-pooled

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """INT64 [batch, tokens] twice → embedding FP32 [batch, 384]."""
        x = self.embeddings(input_ids)
        # A row that attends to nothing would give NaN; the first token ([CLS]) is always there.
        attend = attention_mask.bool() | (torch.arange(x.shape[1], device=x.device) == 0)
        for layer in self.encoder["layer"]:
            x = layer(x, attend[:, None, None, :])
        weights = attend[:, :, None].to(x.dtype)
        return nn.functional.normalize((x * weights).sum(1) / weights.sum(1), dim=1)


def build() -> nn.Module:
    return SentenceEncoder()
