"""Qwen3 models from Hugging Face folders and back, and their text."""

import json
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


def files_of(folder):
    """The files with the weights: the one, those of the index, or all there are."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.exists():
        return [whole]
    if index.exists():
        names = json.loads(index.read_text())["weight_map"].values()
        return [folder / name for name in sorted(set(names))]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no *.safetensors")
    return files


def load(folder, dtype=None):
    """The model in a folder with `config.json` and `*.safetensors`, in its own type or another."""
    folder = pathlib.Path(folder)
    config = Config.from_json(folder / "config.json")
    state = {}
    for file in files_of(folder):
        # Older files keep the angles of positions.
        state.update((name, t) for name, t in read(file).items() if not name.endswith("rotary_emb.inv_freq"))
    if "embed_tokens.weight" in state:
        # The decoder alone, without the head.
        state = {name if name.startswith("lm_head.") else f"model.{name}": t for name, t in state.items()}
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

    def decode(self, ids):
        """The text of ids; an id itself where it has none."""
        if self.tokenizer:
            return self.tokenizer.decode(ids)
        return "".join(chr(i) if 32 <= i < 127 or i == 10 else f"<{i}>" for i in ids)


class Reader:
    """Text of ids that come one by one: a character of several ids comes with the last of them."""

    def __init__(self, text):
        self.text, self.ids, self.said = text, [], 0

    def add(self, token):
        """What is new in the text."""
        # Those that were said last stay: what an id reads like may depend on the one before.
        self.ids.append(token)
        before, now = self.text.decode(self.ids[: self.said]), self.text.decode(self.ids)
        if now.endswith("\ufffd"):
            return ""
        self.ids, self.said = self.ids[self.said :], len(self.ids) - self.said
        return now[len(before) :]

    def rest(self):
        """What has not become a whole character."""
        return self.text.decode(self.ids)[len(self.text.decode(self.ids[: self.said])) :]
