"""The Qwen3 example: the same numbers as PyTorch and Hugging Face, a cache that changes nothing, weights by name."""

import dataclasses
import importlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from helpers import check, needs_torch, torch

import gt

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
MODULES = ("framework", "config", "model", "weights", "generate", "train")
needs_transformers = pytest.mark.skipif(
    torch is None or not importlib.util.find_spec("transformers"), reason="transformers is not installed"
)


class Example:
    """The modules of the example, on one framework."""

    def __init__(self, pytorch=False):
        path, environment = list(sys.path), dict(os.environ)
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "qwen3")]
        try:
            self.framework = importlib.import_module("framework")
            self.framework.choose(pytorch)
            for name in MODULES[1:]:
                setattr(self, name, importlib.import_module(name))
        finally:
            sys.path[:] = path
            os.environ.clear()
            os.environ.update(environment)
            for name in MODULES:
                sys.modules.pop(name, None)

    def tiny(self, **changes):
        config = dataclasses.replace(self.config.SIZES["tiny"], vocab_size=97, **changes)
        return self.model.Qwen3(config)


@pytest.fixture(scope="module")
def qwen3():
    return Example()


def ids_of(shape, vocab=97, seed=0):
    return np.random.default_rng(seed).integers(0, vocab, shape)


def copy_into(model, tensors):
    """Copies the tensors of a PyTorch model into one of GT, by name."""
    model.load_state_dict({name: gt.from_numpy(t.detach().numpy().copy()) for name, t in tensors.items()})
    return model


def test_names_are_hugging_faces(qwen3):
    names = list(qwen3.tiny(tie_word_embeddings=False).state_dict())
    layer = [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "self_attn.q_norm",
        "self_attn.k_norm",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "input_layernorm",
        "post_attention_layernorm",
    ]
    right = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    right += [f"model.layers.{i}.{part}.weight" for i in range(2) for part in layer]
    assert sorted(names) == sorted(right)
    tied = qwen3.tiny()
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert len(list(tied.parameters())) == len(right) - 1


@needs_torch
@pytest.mark.parametrize("tied", [True, False])
def test_same_file_on_pytorch(qwen3, tied):
    other = Example(pytorch=True)
    theirs = other.tiny(tie_word_embeddings=tied)
    mine = copy_into(qwen3.tiny(tie_word_embeddings=tied), theirs.state_dict())
    ids, targets = ids_of((2, 33)), ids_of((2, 33), seed=1)
    loss = mine.loss(gt.from_numpy(ids), gt.from_numpy(targets))
    right = theirs.loss(torch.from_numpy(ids), torch.from_numpy(targets))
    assert loss.item() == pytest.approx(right.item(), rel=1e-5)
    loss.backward()
    right.backward()
    for (name, p), (other_name, q) in zip(mine.named_parameters(), theirs.named_parameters()):
        assert name == other_name
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-3, atol=1e-5, err_msg=name)


@needs_transformers
@pytest.mark.parametrize("tied", [True, False])
def test_agrees_with_transformers(qwen3, tied, tmp_path):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        rope_theta=50_000.0,
        initializer_range=0.2,
    )
    theirs = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            if "norm" in name:
                p.uniform_(0.5, 1.5)
    theirs.save_pretrained(tmp_path)
    mine = qwen3.weights.load(tmp_path)
    ids = ids_of((2, 40))
    logits, right = mine(gt.from_numpy(ids)), theirs(torch.from_numpy(ids)).logits
    np.testing.assert_allclose(logits.detach().numpy(), right.detach().numpy(), atol=1e-4, rtol=1e-4)
    weight = np.random.default_rng(3).normal(size=logits.shape).astype("f4") / 100
    (logits * gt.from_numpy(weight)).sum().backward()
    (right * torch.from_numpy(weight)).sum().backward()
    grads = {name: p.grad.numpy() for name, p in mine.named_parameters()}
    seen = 0
    for name, p in theirs.named_parameters():
        np.testing.assert_allclose(grads[name], p.grad.numpy(), atol=1e-4, rtol=1e-4, err_msg=name)
        seen += np.abs(grads[name]).max() > 1e-3
    assert seen == len(grads)
    # And back: transformers reads what GT wrote.
    qwen3.weights.save(mine, tmp_path / "saved")
    again = Qwen3ForCausalLM.from_pretrained(tmp_path / "saved").eval()
    np.testing.assert_array_equal(again(torch.from_numpy(ids)).logits.detach().numpy(), right.detach().numpy())


def test_cache_changes_nothing(qwen3):
    model = qwen3.tiny().eval()
    ids = ids_of((2, 21))
    with gt.no_grad():
        whole = model(gt.from_numpy(ids)).numpy()
        cache = model.new_cache(2, 30)
        parts = [
            model(gt.from_numpy(np.ascontiguousarray(ids[:, a:b])), cache)
            for a, b in [(0, 9), (9, 10), (10, 11), (11, 16), (16, 17), (17, 21)]
        ]
        np.testing.assert_allclose(gt.cat(parts, 1).numpy(), whole, atol=2e-5)
        last = model(gt.from_numpy(ids), last=True).numpy()
        np.testing.assert_allclose(last, whole[:, -1:], atol=1e-6)


def test_greedy_generation_is_argmax(qwen3):
    model = qwen3.tiny(tie_word_embeddings=False, initializer_range=0.4).eval()
    ids = ids_of((1, 5))
    tokens = list(qwen3.generate.generate(model, gt.from_numpy(ids), 8))
    for token in tokens:
        with gt.no_grad():
            right = model(gt.from_numpy(ids))[0, -1].numpy().argmax()
        assert token == right
        ids = np.concatenate([ids, [[token]]], 1)
    assert len(set(tokens)) > 4
    stop = tokens[3]
    stopped = list(qwen3.generate.generate(model, gt.from_numpy(ids_of((1, 5))), 8, stop=[stop]))
    assert stopped == tokens[: tokens.index(stop) + 1]


def test_sampling_stays_within_top_k_and_top_p(qwen3):
    pick = qwen3.generate.pick
    probs = np.array([0.4, 0.05, 0.3, 0.05, 0.2])
    logits = gt.tensor(np.tile(np.log(probs), (4000, 1)), dtype="float32")

    def shares(**options):
        return np.bincount(pick(logits, 1.0, **options).numpy().ravel(), minlength=5) / 4000

    np.testing.assert_allclose(shares(), probs, atol=0.04)
    np.testing.assert_allclose(shares(top_k=2), [4 / 7, 0, 3 / 7, 0, 0], atol=0.04)
    np.testing.assert_allclose(shares(top_p=0.65), [4 / 7, 0, 3 / 7, 0, 0], atol=0.04)
    np.testing.assert_allclose(shares(top_p=0.75), [4 / 9, 0, 3 / 9, 0, 2 / 9], atol=0.04)
    assert shares(top_p=0.01).tolist() == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_and_loaded(qwen3, dtype, tmp_path):
    model = qwen3.tiny().to(getattr(gt, dtype))
    qwen3.weights.save(model, tmp_path)
    again = qwen3.weights.load(tmp_path)
    assert again.config == model.config
    assert again.lm_head.weight.dtype is getattr(gt, dtype)
    for (name, p), (_, q) in zip(model.named_parameters(), again.named_parameters()):
        np.testing.assert_array_equal(p.detach().float().numpy(), q.detach().float().numpy(), err_msg=name)
    assert qwen3.weights.load(tmp_path, "float16").lm_head.weight.dtype is gt.float16


def test_config_refuses_what_it_cannot_do(qwen3, tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="llama"):
        qwen3.config.Config.from_json(path)
    path.write_text('{"hidden_size": 8, "num_attention_heads": 2, "rope_scaling": {"rope_type": "yarn"}}')
    with pytest.raises(ValueError, match="yarn"):
        qwen3.config.Config.from_json(path)
    path.write_text('{"rope_scaling": {"factor": 2.0}}')
    with pytest.raises(ValueError, match="factor"):
        qwen3.config.Config.from_json(path)
    path.write_text('{"use_sliding_window": true, "num_hidden_layers": 29}')
    with pytest.raises(ValueError, match="sliding windows"):
        qwen3.config.Config.from_json(path)
    path.write_text('{"hidden_size": 8, "num_attention_heads": 2, "rope_parameters": {"rope_theta": 7.0}}')
    config = qwen3.config.Config.from_json(path)
    assert config.head_dim == 128 and config.rope_theta == 7.0


@needs_transformers
@pytest.mark.parametrize("text", ["{}", '{"num_attention_heads": 16, "num_key_value_heads": null}'])
def test_config_has_hugging_faces_defaults(qwen3, text, tmp_path):
    from transformers import Qwen3Config

    (tmp_path / "config.json").write_text(text)
    mine, right = qwen3.config.Config.from_json(tmp_path / "config.json"), Qwen3Config.from_pretrained(tmp_path)
    theirs = {**right.to_dict(), "torch_dtype": "float32"}
    theirs["rope_theta"] = right.rope_parameters["rope_theta"]
    assert dataclasses.asdict(mine) == {name: theirs[name] for name in dataclasses.asdict(mine)}


def test_config_reads_what_says_nothing(qwen3, tmp_path):
    path = tmp_path / "config.json"
    for said in (
        {"dtype": None, "torch_dtype": None},
        {"num_key_value_heads": None, "rope_scaling": None, "rope_theta": None},
        {"use_sliding_window": True, "max_window_layers": 32},
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1},
        {"use_sliding_window": True, "max_window_layers": 1, "layer_types": ["full_attention"] * 32},
        {"hidden_act": "swish"},
    ):
        path.write_text(json.dumps(said))
        assert qwen3.config.Config.from_json(path) == qwen3.config.Config()
    path.write_text('{"dtype": "bfloat16", "torch_dtype": "float16"}')
    assert qwen3.config.Config.from_json(path).torch_dtype == "bfloat16"


def test_weights_come_from_the_right_files(qwen3, tmp_path):
    model = qwen3.tiny(num_hidden_layers=1)
    qwen3.weights.save(model, tmp_path)
    state = gt.load(tmp_path / "model.safetensors")
    gt.save({name: t * 0 for name, t in state.items()}, tmp_path / "zzz_old.safetensors")

    def same(folder):
        for (name, p), q in zip(qwen3.weights.load(folder).named_parameters(), model.parameters()):
            np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy(), err_msg=name)

    same(tmp_path)
    # In parts that the index names, with angles that older files keep.
    (tmp_path / "model.safetensors").unlink()
    names, half = list(state), len(state) // 2
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = gt.ones(8)
    parts = {"a.safetensors": names[:half], "b.safetensors": [*names[half:], list(state)[-1]]}
    for file, inside in parts.items():
        gt.save({name: state[name] for name in inside}, tmp_path / file)
    places = {name: file for file, inside in parts.items() for name in inside}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    same(tmp_path)
    # The decoder alone.
    bare = {name.removeprefix("model."): state[name] for name in names}
    gt.save(bare, tmp_path / "model.safetensors")
    same(tmp_path)


@needs_torch
def test_goes_on_after_the_positions_it_was_made_for(qwen3):
    short, long = qwen3.tiny(max_position_embeddings=10).eval(), qwen3.tiny(max_position_embeddings=64).eval()
    long.load_state_dict(short.state_dict())
    ids = gt.from_numpy(ids_of((1, 5)))
    assert list(qwen3.generate.generate(short, ids, 30)) == list(qwen3.generate.generate(long, ids, 30))
    assert short.model.rotary.cos.shape[0] == 40
    short.bfloat16()
    whole = gt.from_numpy(ids_of((1, 90)))
    assert short(whole).dtype is gt.bfloat16 and short.model.rotary.cos.dtype is gt.bfloat16
    # The same file on PyTorch.
    theirs = Example(pytorch=True).tiny(max_position_embeddings=10)
    mine = copy_into(qwen3.tiny(max_position_embeddings=10), theirs.state_dict())
    right = theirs(torch.from_numpy(ids_of((1, 30))))
    check(mine(gt.from_numpy(ids_of((1, 30)))), right, (1e-3, 1e-5))


class Bytes:
    """Text of which a character may take several ids, as tokenizers of bytes have it."""

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


def test_characters_of_several_tokens_come_whole(qwen3):
    reader = qwen3.weights.Reader(Bytes())
    pieces = [reader.add(i) for i in "aé中z".encode() + "€".encode()[:2]]
    assert pieces == ["a", "", "é", "", "", "中", "z", "", ""]
    assert reader.rest() == "\ufffd"


WRONG = [
    ("train", "--steps", "-1"),
    ("train", "--lr", "-1"),
    ("train", "--lr", "nan"),
    ("train", "--seed", "-1"),
    ("train", "--data", "/no/such/file"),
    ("train", "--model", "/no/such/folder"),
    ("train", "--save", "/dev/null/folder"),
    ("generate", "--temperature", "-1"),
    ("generate", "--temperature", "x"),
    ("generate", "--top-p", "nan"),
    ("generate", "--top-p", "0"),
    ("generate", "--top-p", "-1"),
    ("generate", "--top-k", "-1"),
    ("generate", "--tokens", "-30"),
    ("generate", "--seed", "-1"),
    ("generate", "--model", "/no/such/folder"),
]


@pytest.mark.parametrize("script,option,value", WRONG)
def test_wrong_arguments_are_told_of_before_anything_runs(qwen3, script, option, value, capsys):
    with pytest.raises(SystemExit, match="2"):
        getattr(qwen3, script).main([option, value])
    assert option in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.local_only
def test_trains_from_the_command_line(tmp_path):
    script = EXAMPLES / "qwen3" / "train.py"
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(gt.__file__))}
    command = [sys.executable, str(script), "--steps", "40", "--save", str(tmp_path), "--every", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.split("loss ")[-1].split(",")[0].split(" -> ")
    assert float(last) < float(first) - 0.4
    script = EXAMPLES / "qwen3" / "generate.py"
    command = [sys.executable, str(script), "--model", str(tmp_path), "--tokens", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0 and "5 tokens in" in done.stdout, done.stderr
