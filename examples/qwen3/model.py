"""Qwen3, in one file that runs on GT and on PyTorch; parameters have their Hugging Face names."""

from framework import F, lib, nn


def rotate(x, cos, sin):
    """Turns each pair (x[i], x[i + half]) by the angle of its position."""
    first, second = x.chunk(2, -1)
    return x * cos + lib.cat([-second, first], -1) * sin


class Rotary(nn.Module):
    """Cosines and sines of the angles by which positions turn queries and keys."""

    def __init__(self, config):
        super().__init__()
        self.head_dim, self.theta = config.head_dim, config.rope_theta
        cos, sin = self._tables(config.max_position_embeddings)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _tables(self, count, device=None):
        exponents = lib.arange(0, self.head_dim, 2, dtype=lib.float32, device=device) / self.head_dim
        positions = lib.arange(count, dtype=lib.float32, device=device)
        angles = lib.outer(positions, 1.0 / self.theta**exponents)
        angles = lib.cat([angles, angles], -1)
        return angles.cos(), angles.sin()

    def forward(self, start, length):
        had = self.cos.shape[0]
        if start + length > had:
            # Further than the model was trained for: it may go on, as Hugging Face's does.
            tables = self._tables(max(start + length, 2 * had), self.cos.device)
            self.cos, self.sin = (table.to(self.cos.dtype) for table in tables)
        return self.cos[start : start + length], self.sin[start : start + length]


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self, config):
        super().__init__()
        self.head_dim = config.head_dim
        bias = config.attention_bias
        heads, groups = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, heads, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, groups, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, groups, bias=bias)
        self.o_proj = nn.Linear(heads, config.hidden_size, bias=bias)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def forward(self, x, rotary, cache=None):
        batch, length, _ = x.shape
        heads = (batch, length, -1, self.head_dim)
        q = rotate(self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2), *rotary)
        k = rotate(self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2), *rotary)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        mask = None
        if cache is not None:
            k, v, mask = cache.add(k, v)
        causal = mask is None and length > 1
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x, rotary, cache=None):
        x = x + self.self_attn(self.input_layernorm(x), rotary, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary = Rotary(config)

    def forward(self, ids, cache=None):
        x = self.embed_tokens(ids)
        rotary = self.rotary(cache[0].length if cache else 0, ids.shape[1])
        for i, layer in enumerate(self.layers):
            x = layer(x, rotary, cache[i] if cache else None)
        return self.norm(x)


class Qwen3(nn.Module):
    """A Qwen3 language model: token ids of shape (batch, length) to logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.apply(self._start)

    def _start(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=self.config.initializer_range)

    def forward(self, ids, cache=None, last=False):
        """Logits of every position, or with `last` of the last one only."""
        x = self.model(ids, cache)
        return self.lm_head(x[:, -1:] if last else x)

    def loss(self, ids, targets):
        """Mean cross entropy of the targets, which stand in the shape of the ids."""
        logits = self(ids)
        return F.cross_entropy(logits.float().view(-1, self.config.vocab_size), targets.reshape(-1))

    def new_cache(self, batch, length):
        """An empty key-value cache for up to `length` positions, one part per layer."""
        weight = self.model.embed_tokens.weight
        return [Cache(self.config, batch, length, weight) for _ in self.model.layers]


class Cache:
    """Keys and values of the positions seen so far, in buffers made once."""

    def __init__(self, config, batch, length, like):
        shape = (batch, config.num_key_value_heads, length, config.head_dim)
        self.keys = lib.zeros(shape, dtype=like.dtype, device=like.device)
        self.values = lib.zeros(shape, dtype=like.dtype, device=like.device)
        self.length = 0

    def add(self, k, v):
        """Takes new positions in; gives all keys, all values and the mask they need, or None."""
        start, new = self.length, k.shape[2]
        self.length = start + new
        self.keys[:, :, start : self.length] = k
        self.values[:, :, start : self.length] = v
        mask = None
        if start and new > 1:
            mask = lib.ones(new, self.length, dtype=lib.bool, device=k.device).tril(start)
        return self.keys[:, :, : self.length], self.values[:, :, : self.length], mask
