"""Attention with several heads, and the layers of the first transformers."""

import copy

from gt._gt import bool as bool_
from gt._gt import cat, empty, ones, scaled_dot_product_attention, zeros
from gt.nn import functional as F
from gt.nn import init
from gt.nn.containers import ModuleList
from gt.nn.layers import Dropout, LayerNorm, Linear
from gt.nn.module import Module
from gt.nn.parameter import Parameter


def _additive(mask, dtype):
    """A mask to be added to scores: of truth values, those that are True are left out."""
    if mask is None or mask.dtype != bool_:
        return mask
    return zeros(mask.shape, dtype=dtype).masked_fill(mask, float("-inf"))


class MultiheadAttention(Module):
    """Attention of several heads, with products before and after."""

    def __init__(
        self,
        embed_dim,
        num_heads,
        dropout=0.0,
        bias=True,
        add_bias_kv=False,
        add_zero_attn=False,
        kdim=None,
        vdim=None,
        batch_first=False,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if embed_dim % num_heads:
            raise AssertionError("embed_dim must be divisible by num_heads")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        options = {"device": device, "dtype": dtype}
        joined = (3 * embed_dim, embed_dim) if self._qkv_same_embed_dim else None
        apart = {"q": embed_dim, "k": self.kdim, "v": self.vdim}
        for name, width in apart.items():
            made = None if joined else Parameter(empty(embed_dim, width, **options))
            self.register_parameter(f"{name}_proj_weight", made)
        self.register_parameter("in_proj_weight", Parameter(empty(joined, **options)) if joined else None)
        self.register_parameter("in_proj_bias", Parameter(empty(3 * embed_dim, **options)) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, **options)
        for name in ("bias_k", "bias_v"):
            self.register_parameter(name, Parameter(empty(1, 1, embed_dim, **options)) if add_bias_kv else None)
        self.reset_parameters()

    def reset_parameters(self):
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if getattr(self, name) is not None:
                init.xavier_uniform_(getattr(self, name))
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for p in (self.bias_k, self.bias_v):
            if p is not None:
                init.xavier_normal_(p)

    def _projected(self, query, key, value):
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        if self.in_proj_weight is not None:
            if query is key and key is value:
                return F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        return tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))

    def _heads(self, x):
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _mask(self, attn_mask, key_padding_mask, shape, more, dtype):
        """All masks as one that is added to the scores of (batch, heads, queries, keys)."""
        batch, queries, keys = shape
        mask = _additive(attn_mask, dtype)
        if mask is not None and mask.dim() == 3:
            mask = mask.view(batch, -1, queries, keys)
        padding = _additive(key_padding_mask, dtype)
        if padding is not None:
            padding = padding.view(batch, 1, 1, keys)
            mask = padding if mask is None else mask + padding
        if mask is not None and more:
            mask = cat([mask, zeros(*mask.shape[:-1], more, dtype=mask.dtype)], -1)
        return mask

    def forward(
        self,
        query,
        key,
        value,
        key_padding_mask=None,
        need_weights=True,
        attn_mask=None,
        average_attn_weights=True,
        is_causal=False,
    ):
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        alone, same = query.dim() == 2, query is key and key is value
        if alone:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        if same:
            key = value = query
        q, k, v = self._projected(query, key, value)
        shape, more = (q.shape[0], q.shape[1], k.shape[1]), 0
        if self.bias_k is not None:
            k, v = (cat([x, b.expand(x.shape[0], 1, -1)], 1) for x, b in ((k, self.bias_k), (v, self.bias_v)))
            more += 1
        if self.add_zero_attn:
            k, v = (cat([x, x.new_zeros(x.shape[0], 1, self.embed_dim)], 1) for x in (k, v))
            more += 1
        mask = self._mask(attn_mask, key_padding_mask, shape, more, q.dtype)
        q, k, v = (self._heads(x) for x in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q * self.head_dim**-0.5 @ k.transpose(-1, -2)
            scores = scores if mask is None else scores + mask
            weights = F.dropout(scores.softmax(-1), dropout, dropout > 0)
            out = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            out = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if alone:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights


def _activation(activation):
    if not isinstance(activation, str):
        return activation
    if activation not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {activation}")
    return getattr(F, activation)


class _Layer(Module):
    """What the layers of encoder and decoder share."""

    def __init__(self, d_model, nhead, dim_feedforward, dropout, activation, eps, batch_first, first, bias, options):
        super().__init__()
        self._options = {"dropout": dropout, "batch_first": batch_first, "bias": bias, **options}
        self.self_attn = MultiheadAttention(d_model, nhead, **self._options)
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **options)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **options)
        self.norm_first, self.activation = first, _activation(activation)
        self._norm = lambda: LayerNorm(d_model, eps=eps, bias=bias, **options)

    def _add_norms(self, count, dropout):
        for i in range(1, count + 1):
            setattr(self, f"norm{i}", self._norm())
        for i in range(1, count + 1):
            setattr(self, f"dropout{i}", Dropout(dropout))
        del self._norm

    def _feed(self, x, dropout):
        return dropout(self.linear2(self.dropout(self.activation(self.linear1(x)))))

    def _attend(self, x, memory, attention, mask, padding, dropout, causal):
        hint = causal and mask is not None
        out = attention(x, memory, memory, padding, need_weights=False, attn_mask=mask, is_causal=hint)
        return dropout(out[0])

    def _joined(self, x, norm, block):
        return x + block(norm(x)) if self.norm_first else norm(x + block(x))


class TransformerEncoderLayer(_Layer):
    """Attention of a sequence to itself, and two products, each added to what came in."""

    def __init__(
        self,
        d_model,
        nhead,
        dim_feedforward=2048,
        dropout=0.1,
        activation="relu",
        layer_norm_eps=1e-5,
        batch_first=False,
        norm_first=False,
        bias=True,
        device=None,
        dtype=None,
    ):
        options = {"device": device, "dtype": dtype}
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
            options,
        )
        self._add_norms(2, dropout)

    def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
        def attend(x):
            return self._attend(x, x, self.self_attn, src_mask, src_key_padding_mask, self.dropout1, is_causal)

        x = self._joined(src, self.norm1, attend)
        return self._joined(x, self.norm2, lambda x: self._feed(x, self.dropout2))


class TransformerDecoderLayer(_Layer):
    """Attention of a sequence to itself and to a memory, and two products."""

    def __init__(
        self,
        d_model,
        nhead,
        dim_feedforward=2048,
        dropout=0.1,
        activation="relu",
        layer_norm_eps=1e-5,
        batch_first=False,
        norm_first=False,
        bias=True,
        device=None,
        dtype=None,
    ):
        options = {"device": device, "dtype": dtype}
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
            options,
        )
        # In PyTorch's order of parameters.
        rest = {name: self._modules.pop(name) for name in ("linear1", "dropout", "linear2")}
        self.multihead_attn = MultiheadAttention(d_model, nhead, **self._options)
        for name, module in rest.items():
            setattr(self, name, module)
        self._add_norms(3, dropout)

    def forward(
        self,
        tgt,
        memory,
        tgt_mask=None,
        memory_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        tgt_is_causal=False,
        memory_is_causal=False,
    ):
        def own(x):
            return self._attend(x, x, self.self_attn, tgt_mask, tgt_key_padding_mask, self.dropout1, tgt_is_causal)

        def other(x):
            masks = memory_mask, memory_key_padding_mask
            return self._attend(x, memory, self.multihead_attn, *masks, self.dropout2, memory_is_causal)

        x = self._joined(tgt, self.norm1, own)
        x = self._joined(x, self.norm2, other)
        return self._joined(x, self.norm3, lambda x: self._feed(x, self.dropout3))


class _Stack(Module):
    """Copies of a layer, one after the other."""

    def __init__(self, layer, num_layers, norm=None):
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def _through(self, x, *args, **masks):
        for layer in self.layers:
            x = layer(x, *args, **masks)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """A stack of encoder layers."""

    def __init__(self, encoder_layer, num_layers, norm=None, enable_nested_tensor=True, mask_check=True):
        super().__init__(encoder_layer, num_layers, norm)

    def forward(self, src, mask=None, src_key_padding_mask=None, is_causal=None):
        return self._through(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))


class TransformerDecoder(_Stack):
    """A stack of decoder layers."""

    def __init__(self, decoder_layer, num_layers, norm=None):
        super().__init__(decoder_layer, num_layers, norm)

    def forward(self, tgt, memory, **masks):
        return self._through(tgt, memory, **masks)


class Transformer(Module):
    """An encoder and a decoder."""

    def __init__(
        self,
        d_model=512,
        nhead=8,
        num_encoder_layers=6,
        num_decoder_layers=6,
        dim_feedforward=2048,
        dropout=0.1,
        activation="relu",
        custom_encoder=None,
        custom_decoder=None,
        layer_norm_eps=1e-5,
        batch_first=False,
        norm_first=False,
        bias=True,
        device=None,
        dtype=None,
    ):
        super().__init__()
        options = {"device": device, "dtype": dtype}
        args = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)

        def norm():
            return LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **options)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*args, **options), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*args, **options), num_decoder_layers, norm()
        )
        for p in self.parameters():
            if p.dim() > 1:
                init.xavier_uniform_(p)
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    @staticmethod
    def generate_square_subsequent_mask(sz, device=None, dtype=None):
        """Minus infinity where a query would see a later key."""
        later = ones(sz, sz, dtype=bool_).triu(1)
        return zeros(sz, sz, device=device, dtype=dtype).masked_fill(later, float("-inf"))

    def forward(
        self,
        src,
        tgt,
        src_mask=None,
        tgt_mask=None,
        memory_mask=None,
        src_key_padding_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        src_is_causal=None,
        tgt_is_causal=None,
        memory_is_causal=False,
    ):
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=bool(tgt_is_causal),
            memory_is_causal=memory_is_causal,
        )
