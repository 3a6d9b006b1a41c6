"""Attention of several heads with weights of the caller's."""

import functools

from gt.nn import functional as F
from gt.nn.module import Module

__all__ = ["multi_head_attention_forward"]


def multi_head_attention_forward(
    query,
    key,
    value,
    embed_dim_to_check,
    num_heads,
    in_proj_weight,
    in_proj_bias,
    bias_k,
    bias_v,
    add_zero_attn,
    dropout_p,
    out_proj_weight,
    out_proj_bias,
    training=True,
    key_padding_mask=None,
    need_weights=True,
    attn_mask=None,
    use_separate_proj_weight=False,
    q_proj_weight=None,
    k_proj_weight=None,
    v_proj_weight=None,
    static_k=None,
    static_v=None,
    average_attn_weights=True,
    is_causal=False,
):
    """What `MultiheadAttention` does, the batch in the second dimension."""
    from gt.nn.transformer import MultiheadAttention

    if static_k is not None or static_v is not None:
        raise NotImplementedError("multi_head_attention_forward: static_k and static_v are not supported")
    width = query.shape[-1]
    if width != embed_dim_to_check:
        raise AssertionError(f"was expecting embedding dimension of {embed_dim_to_check}, but got {width}")
    if width % num_heads:
        raise AssertionError(f"embed_dim {width} not divisible by num_heads {num_heads}")
    layer = MultiheadAttention.__new__(MultiheadAttention)
    Module.__init__(layer)
    apart = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else (None,) * 3
    layer.__dict__.update(
        embed_dim=width,
        num_heads=num_heads,
        head_dim=width // num_heads,
        dropout=dropout_p,
        batch_first=False,
        add_zero_attn=add_zero_attn,
        training=training,
        in_proj_weight=None if use_separate_proj_weight else in_proj_weight,
        in_proj_bias=in_proj_bias,
        q_proj_weight=apart[0],
        k_proj_weight=apart[1],
        v_proj_weight=apart[2],
        bias_k=bias_k,
        bias_v=bias_v,
        out_proj=functools.partial(F.linear, weight=out_proj_weight, bias=out_proj_bias),
    )
    return layer(query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
