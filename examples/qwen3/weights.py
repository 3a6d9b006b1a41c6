"""Qwen3 models from Hugging Face folders and back, and their text."""

import pathlib

import framework
from config import SIZES, Config
from model import Qwen3

lib = framework.lib


def read(path):
    """The tensors of a safetensors file, by name."""
    if framework.PYTORCH:
        from safetensors.torch import load_file

        return load_file(path)
    return lib.load(path)


def fresh(size, dtype=None):
    """A randomly initialised model of a known size."""
    return Qwen3(SIZES[size]).to(getattr(lib, dtype or "float32"))


def load(folder, dtype=None):
    """The model in a folder with `config.json` and `*.safetensors`, in its own type or another."""
    folder = pathlib.Path(folder)
    config = Config.from_json(folder / "config.json")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no *.safetensors")
    state = {}
    for file in files:
        state.update(read(file))
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = Qwen3(config).to(getattr(lib, dtype or config.torch_dtype))
    model.load_state_dict(state)
    return model


def save(model, folder):
    """Writes `config.json` and `model.safetensors`, which Hugging Face reads."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.torch_dtype = str(model.lm_head.weight.dtype).split(".")[-1]
    model.config.to_json(folder / "config.json")
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    path = folder / "model.safetensors"
    if framework.PYTORCH:
        from safetensors.torch import save_file

        save_file({name: t.contiguous() for name, t in state.items()}, path, metadata={"format": "pt"})
    else:
        lib.save(state, path)


class Text:
    """Text to ids and back: by the folder's `tokenizer.json`, or byte by byte."""

    def __init__(self, folder, config):
        path = pathlib.Path(folder or "") / "tokenizer.json"
        self.tokenizer, self.vocab_size = None, config.vocab_size
        if folder and path.exists():
            from tokenizers import Tokenizer

            self.tokenizer = Tokenizer.from_file(str(path))
        stop = config.eos_token_id
        self.stop = tuple(stop) if isinstance(stop, list) else () if stop is None else (stop,)

    def encode(self, text):
        """Ids of a text."""
        return self.tokenizer.encode(text).ids if self.tokenizer else [b % self.vocab_size for b in text.encode()]

    def decode(self, token):
        """The text of one id; the id itself where it has none."""
        if self.tokenizer:
            return self.tokenizer.decode([token])
        return chr(token) if 32 <= token < 127 or token == 10 else f"<{token}>"
