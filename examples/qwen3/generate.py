"""Generates tokens with a key-value cache, on GT or PyTorch.

    python examples/qwen3/generate.py --model DIR --prompt "Hello" [--pytorch]

DIR holds Hugging Face's config.json, *.safetensors and tokenizer.json (the `tokenizers` package reads the last one).
Without it a randomly initialised model of `--model-size` continues random ids.
"""

import argparse
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import framework  # noqa: E402


def pick(logits, temperature=0.0, top_k=0, top_p=1.0):
    """One token per row of `logits` (batch, vocabulary): the likeliest one at temperature 0, else drawn among the
    `top_k` likeliest and those that together reach the probability `top_p`."""
    lib = framework.lib
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits = logits.float() / temperature
    if top_k:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if top_p < 1:
        sorted, order = logits.sort(-1, descending=True)
        probs = sorted.softmax(-1)
        # A token stays if those before it do not reach top_p yet; the first always stays.
        sorted = sorted.masked_fill(probs.cumsum(-1) - probs >= top_p, float("-inf"))
        logits = lib.zeros_like(logits).scatter(-1, order, sorted)
    return lib.multinomial(logits.softmax(-1), 1)


def generate(model, ids, count, temperature=0.0, top_k=0, top_p=1.0, stop=()):
    """Yields up to `count` new token ids of a prompt `ids` of shape (1, length), each as a number."""
    with framework.lib.no_grad():
        cache = model.new_cache(ids.shape[0], ids.shape[1] + count)
        for _ in range(count):
            ids = pick(model(ids, cache, last=True)[:, -1], temperature, top_k, top_p)
            token = ids.item()
            yield token
            if token in stop:
                return


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pytorch", action="store_true", help="run on PyTorch instead of GT")
    parser.add_argument("--model", type=framework.model_folder, help="a folder with config.json and *.safetensors")
    parser.add_argument(
        "--model-size", default="tiny", choices=["tiny", "small", "0.6B", "1.7B"], help="used without --model"
    )
    parser.add_argument("--dtype", choices=framework.DTYPES, help="that of the weights, or float32, if absent")
    parser.add_argument("--prompt", default="Hello")
    parser.add_argument("--tokens", type=framework.positive, default=100)
    parser.add_argument("--temperature", type=framework.amount, default=0.0)
    parser.add_argument("--top-k", type=framework.count, default=0)
    parser.add_argument("--top-p", type=framework.share_above_zero, default=1.0)
    parser.add_argument("--seed", type=framework.count, default=0)
    args = parser.parse_args(argv)
    framework.choose(args.pytorch)
    framework.use_gpu()
    import weights

    lib = framework.lib
    lib.manual_seed(args.seed)
    model = weights.load(args.model, args.dtype) if args.model else weights.fresh(args.model_size, args.dtype)
    text = weights.Text(args.model, model.config)
    prompt = text.encode(args.prompt)
    if not prompt:
        parser.error("--prompt: expected a token at least")
    ids = lib.tensor([prompt])
    reader = weights.Reader(text)
    start, count = time.perf_counter(), 0
    for token in generate(model.eval(), ids, args.tokens, args.temperature, args.top_k, args.top_p, text.stop):
        count += 1
        print(reader.add(token), end="", flush=True)
    took = time.perf_counter() - start
    print(f"{reader.rest()}\n\n{count} tokens in {took:.2f} s, {count / took:.1f} tokens/s")


if __name__ == "__main__":
    main()
