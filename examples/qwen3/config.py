"""The shape of a Qwen3 model, by name or from a Hugging Face `config.json`."""

import dataclasses
import json


@dataclasses.dataclass
class Config:
    """Sizes and switches under Hugging Face's names."""

    vocab_size: int = 151936
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = 28
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 40960
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    tie_word_embeddings: bool = True
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
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise ValueError(f"config: expected the default rotary embedding, got {rope}")
        if data.get("use_sliding_window"):
            raise ValueError("config: sliding windows are not supported")
        if data.get("hidden_act", "silu") != "silu":
            raise ValueError(f"config: expected the activation 'silu', got {data['hidden_act']!r}")
        data.setdefault("head_dim", data["hidden_size"] // data["num_attention_heads"])
        data.setdefault("torch_dtype", data.get("dtype", "float32"))
        if "rope_theta" in rope:
            data["rope_theta"] = rope["rope_theta"]
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in names})

    def to_json(self, path):
        """Writes a `config.json` that Hugging Face reads."""
        data = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu"}
        with open(path, "w") as file:
            json.dump({**data, **dataclasses.asdict(self)}, file, indent=2)


SIZES = {
    "tiny": Config(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
    ),
    "small": Config(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
    ),
    "0.6B": Config(),
    "1.7B": Config(hidden_size=2048, intermediate_size=6144),
}
