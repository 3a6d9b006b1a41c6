"""A small GPT over characters: learned positions, LayerNorm, GELU. Runs on GT and on PyTorch."""

import dataclasses

from framework import F, lib, nn


@dataclasses.dataclass
class Config:
    vocab_size: int
    context: int = 128
    width: int = 128
    layers: int = 6
    heads: int = 4
    dropout: float = 0.0


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.norm1 = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.mlp(self.norm2(x)))


class CharGPT(nn.Module):
    """Character ids of shape (batch, length) to logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*[Block(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self._start()

    def _start(self):
        """Layers that read the stream start at unit gain, those that write to it small, so that depth starts gently."""
        for name, p in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(p)
            elif name.endswith(("qkv.weight", "mlp.0.weight")):
                nn.init.normal_(p, std=self.config.width**-0.5)
            elif name.endswith(("out.weight", "mlp.2.weight")):
                nn.init.normal_(p, std=0.02 / (2 * self.config.layers) ** 0.5)
            elif not name.split(".")[-2].startswith("norm"):
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))

    def loss(self, ids, targets):
        """Mean cross entropy of the next characters."""
        return F.cross_entropy(self(ids).view(-1, self.config.vocab_size), targets.reshape(-1))

    def generate(self, ids, count, temperature=0.8):
        """Draws `count` characters after `ids`, one at a time."""
        with lib.no_grad():
            for _ in range(count):
                logits = self(ids[:, -self.config.context :])[:, -1]
                chosen = lib.multinomial((logits / temperature).softmax(-1), 1)
                ids = lib.cat([ids, chosen], 1)
                yield chosen
