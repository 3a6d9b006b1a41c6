"""The shape of a Qwen3 model, by name or from a Hugging Face `config.json`."""

import dataclasses
import json


@dataclasses.dataclass
class Config:
    """Sizes and switches under Hugging Face's names and with its values where a `config.json` says nothing."""

    vocab_size: int = 151936
    hidden_size: int = 4096
    intermediate_size: int = 22016
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    head_dim: int = 128
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    initializer_range: float = 0.02
    torch_dtype: str = "float32"
    bos_token_id: int | None = None
    eos_token_id: int | list | None = None

    @classmethod
    def from_json(cls, path):
        """Reads a `config.json` of Hugging Face; refuses what this model does not do."""
        with open(path) as file:
            data = json.load(file)
        if data.get("model_type", "qwen3") != "qwen3":
            raise ValueError(f"config: expected the model type 'qwen3', got {data['model_type']!r}")
        rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "scaled" if "factor" in rope else "default"))
        if kind != "default":
            raise ValueError(f"config: expected the default rotary embedding, got {rope}")
        if _slides(data):
            raise ValueError("config: sliding windows are not supported")
        if data.get("hidden_act", "silu") not in ("silu", "swish"):
            raise ValueError(f"config: expected the activation 'silu', got {data['hidden_act']!r}")
        if "num_key_value_heads" in data and data["num_key_value_heads"] is None:
            data["num_key_value_heads"] = data.get("num_attention_heads", cls.num_attention_heads)
        data["torch_dtype"] = data.get("dtype") or data.get("torch_dtype")
        data["rope_theta"] = rope.get("rope_theta") or data.get("rope_theta")
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in names and value is not None})

    def to_json(self, path):
        """Writes a `config.json` that Hugging Face reads."""
        data = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu"}
        with open(path, "w") as file:
            json.dump({**data, **dataclasses.asdict(self)}, file, indent=2)


def _slides(data):
    """Whether a layer sees a window only."""
    if not data.get("use_sliding_window") or data.get("sliding_window", 4096) is None:
        return False
    if data.get("layer_types") is not None:
        return "sliding_attention" in data["layer_types"]
    return data.get("max_window_layers", 28) < data.get("num_hidden_layers", Config.num_hidden_layers)


# What the models of this family share.
QWEN3 = Config(
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    max_position_embeddings=40960,
    rope_theta=1_000_000.0,
    tie_word_embeddings=True,
)
SIZES = {
    "tiny": dataclasses.replace(
        QWEN3,
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
    ),
    "small": dataclasses.replace(
        QWEN3,
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
    ),
    "0.6B": QWEN3,
    "1.7B": dataclasses.replace(QWEN3, hidden_size=2048, intermediate_size=6144),
}
