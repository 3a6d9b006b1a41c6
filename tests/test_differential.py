"""The same random program in PyTorch and in GT: values, types, gradients and errors agree.

Runs for GT_RANDOM_SECONDS (3 unless set); GT_RANDOM_SEED replays one program alone, as its failure says.
"""

import os
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import DTYPES, FLOATS, INTS, name, torch, values

import gt

pytestmark = [
    pytest.mark.skipif(torch is None, reason="PyTorch is not installed"),
    pytest.mark.filterwarnings("ignore"),
]

STEPS = 14
# Beyond this, rounding rather than meaning would be compared: the program ends.
LARGE = {"float16": 500, "bfloat16": 60, "float32": 1e4, "float64": 1e6}
# (relative, absolute), for whole programs.
TOLERANCE = {"float16": (3e-2, 5e-2), "bfloat16": (1e-1, 2e-1), "float32": (2e-3, 2e-4), "float64": (1e-6, 1e-7)}
BINARY = ["+", "-", "*", "<", ">=", "==", "!=", "&", "|", "^", "//", "%"]
EXACT = ["neg", "abs", "sign", "relu", "square", "floor", "ceil", "round", "trunc", "logical_not", "isnan", "isfinite"]
SMOOTH = ["exp", "sin", "cos", "tanh", "sigmoid", "erf", "expm1", "softplus", "silu", "gelu", "sqrt", "log1p", "log"]
INPLACE = ["add_", "sub_", "mul_", "copy_", "fill_", "clamp_", "zero_", "neg_", "relu_", "masked_fill_", "pow_"]
DISCRETE = {"<", ">=", "==", "!=", "//", "%", "floor", "ceil", "round", "trunc", "sign"}

# Where the two differ on purpose, as (what GT raised, what PyTorch raised): a program ends there.
KNOWN = [
    # GT takes bools where PyTorch has no kernel, and the other way round.
    ("None", "not implemented for|does not support bool|derivative for"),
    ("(?i)matmul: expected an integer|not implemented for|not supported on a bool", "None"),
    # `p -= lr * p.grad` needs no `no_grad` in GT.
    ("None", "a leaf Variable that requires grad is being used"),
    # GT never writes through a view whose elements overlap.
    ("more than one element of the written-to tensor", "None"),
    # A leaf written through a view that was made before it asked for gradients: GT's writes are functional there, too.
    ("None", "leaf variable has been moved into the graph interior"),
    # A view made before its base, or a detached tensor it is a view of, asked for gradients.
    ("cannot become a leaf|requires_grad=False|doesn't require grad|does not require grad", "None"),
    # What a written-to tensor shares its memory with does not matter in GT, and numbers are cast when put by index.
    ("None", "single memory location|Index put requires the source and destination dtypes match|cannot be conv"),
    # GT keeps only what a gradient reads, as values that nothing writes to: `x * 2` keeps nothing.
    ("None", "through the graph a second time|modified by an inplace operation|A view was created in no_grad mode"),
    # The mask of a triangle is freed like any other value that a gradient reads.
    ("through the graph a second time", "None"),
    ("None", "dim must be a 2-tuple|to have non-zero size|view size is not compatible"),
    # PyTorch ignores tensors of shape [0] in `cat`.
    ("cat: ", "None"),
    # PyTorch forbids writing to what `split` and `unbind` give; GT does not.
    ("None", "is a view and its base or another view|output of a function that returns multiple views"),
]


def known(got, expected):
    return any(re.search(a, str(got)) and re.search(b, str(expected)) for a, b in KNOWN)


class Writer:
    """Writes a program line by line, looking at what PyTorch made of the lines before."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        # A program either rounds, or has steps where a rounding difference would jump.
        self.rounds = self.rng.random() < 0.5
        self.made, self.scope = 0, {}

    def pick(self, *choices):
        return self.rng.choice(choices)

    def new(self):
        self.made += 1
        return f"v{self.made}"

    def tensors(self, keep=lambda t: True):
        return [n for n, t in self.scope.items() if isinstance(t, torch.Tensor) and keep(t)]

    def any(self, keep=lambda t: True):
        found = self.tensors(keep)
        return self.rng.choice(found[-8:] if self.rng.random() < 0.7 else found) if found else None

    def shape(self, most=3):
        return tuple(self.rng.choice([1, 2, 3, 4, 4, 0][: 6 if self.rng.random() < 0.1 else 5])
                     for _ in range(self.rng.randint(0, most)))  # fmt: skip

    def literal(self, shape, dtype):
        n = int(np.prod(shape, dtype=int))
        if dtype == "bool":
            flat = [self.rng.random() < 0.5 for _ in range(n)]
        elif dtype in INTS:
            flat = [self.rng.randint(0 if dtype == "uint8" else -4, 4) for _ in range(n)]
        else:
            flat = [self.rng.randint(-8, 8) / 4 for _ in range(n)]
        return f"lib.tensor({flat}, dtype=lib.{dtype}).reshape({list(shape)})"

    def scalar(self):
        return repr(self.pick(0, 1, 2, -1, 3, 0.5, -1.5, 2.0, True))

    def dim(self, t):
        return self.rng.randint(-max(t.dim(), 1), max(t.dim(), 1) - 1) if self.rng.random() < 0.98 else t.dim() + 1

    def dims(self, t):
        chosen = self.rng.sample(range(t.dim()), self.rng.randint(1, t.dim())) if t.dim() else [0]
        return [d - t.dim() if t.dim() and self.rng.random() < 0.3 else d for d in chosen]

    def line(self):
        kinds = (
            "create create binary binary unary view view view inplace inplace get set set reduce contract join indexed"
        )
        kinds = f"{kinds} track track backward backward".split()
        if not self.scope:
            return self.create()
        return getattr(self, self.pick(*kinds))()

    def create(self):
        dtype = self.pick(*DTYPES, "float32", "float64", "float64", "float32", "float64", "int64")
        grad = dtype in FLOATS and self.rng.random() < 0.6
        out = self.new()
        source = self.literal(self.shape(), dtype)
        if self.rng.random() < 0.15:
            like = self.any()
            source = self.pick(
                f"lib.arange({self.pick(-2, 0, 1)}, {self.pick(3, 4, 6)}, {self.pick(1, 2)}, dtype=lib.{dtype})",
                f"lib.full({self.shape()}, {self.scalar()}, dtype=lib.{dtype})",
                f"lib.full({self.shape()}, {self.scalar()})",
                f"lib.eye({self.rng.randint(1, 4)}, dtype=lib.{dtype})",
                f"lib.zeros_like({like}, dtype=lib.{dtype})" if like else f"lib.ones(2, dtype=lib.{dtype})",
            )
            return f"{out} = {source}"
        return f"{out} = {source}" + (".requires_grad_()" if grad else "")

    def partner(self, a):
        """Something to combine with `a`: a number, or a tensor whose shape often fits."""
        if self.rng.random() < 0.35:
            return self.scalar()
        t = self.scope[a]
        fits = self.any(lambda o: o.dim() == 0 or o.shape == t.shape or o.shape == t.shape[-o.dim() :])
        return fits if fits and self.rng.random() < 0.9 else self.any()

    def binary(self):
        a = self.any()
        b = self.partner(a)
        op = self.pick(*BINARY)
        if self.rounds and (op in DISCRETE or self.rng.random() < 0.3):
            op = "/" if b not in ("0", "0.0") else "*"
        if op in ("//", "%"):
            b = repr(self.pick(2, 3, -2, 1.5))
        if self.rng.random() < 0.3 and op not in ("/", "//", "%"):
            a, b = b, a
        form = self.rng.random()
        if form < 0.12:
            return f"{self.new()} = lib.where({self.any()} > 0, {a}, {b})"
        if form < 0.2 and isinstance(self.scope.get(b), torch.Tensor) and a in self.scope:
            return f"{self.new()} = lib.{self.pick('maximum', 'minimum')}({a}, {b})"
        if form < 0.25 and a in self.scope:
            return f"{self.new()} = {a}.{self.pick('add', 'sub')}({b}, alpha={self.pick(2, 3, 0.5)})"
        return f"{self.new()} = {a} {op} {b}"

    def unary(self):
        a = self.any()
        if self.rng.random() < 0.2:
            ops = [
                f"to(lib.{self.pick(*FLOATS, 'bool')})",
                "clone()",
                "contiguous()",
                "pow(2)",
                "pow(3)",
                "clamp(-1.1, 1.1)",
            ]
            return f"{self.new()} = {a}.{self.pick(*ops)}"
        if self.rng.random() < 0.2 and self.scope[a].dim():
            op = self.pick("cumsum", "cumsum", *(["softmax", "log_softmax", "logsumexp"] if self.rounds else []))
            return f"{self.new()} = {a}.{op}({self.dim(self.scope[a])})"
        op = self.pick(*(SMOOTH if self.rounds and self.rng.random() < 0.7 else EXACT))
        if self.rounds and op in DISCRETE:
            op = "neg"
        inside = "lib.nn.functional." if op in ("softplus", "silu", "gelu") else "lib."
        return f"{self.new()} = {inside}{op}({a})"

    def view_of(self, t):
        d = self.dim(t)
        size = t.shape[d] if -t.dim() <= d < t.dim() else 1
        n = t.numel()
        sizes = [n] if n else [0]
        for k in (2, 3, 4):
            if n and n % k == 0:
                sizes = self.pick([k, n // k], [n // k, 1, k], [-1, k], sizes)
        rest = list(t.shape)
        if len(rest) > 1 and self.rng.random() < 0.5:
            at = self.rng.randrange(len(rest) - 1)
            sizes = rest[:at] + [rest[at] * rest[at + 1]] + rest[at + 2 :]
        start = self.rng.randint(0, max(size, 1))
        return self.pick(
            f"transpose({d}, {self.dim(t)})",
            f"view({sizes})",
            # Results of permuted tensors are permuted in PyTorch's memory, so that it copies them here; GT's are not.
            f"reshape({sizes})" if t.is_contiguous() else f"clone().reshape({sizes})",
            f"expand({list(self.shape(1)) + [s if s != 1 else self.pick(1, 2, 3) for s in t.shape]})",
            f"unsqueeze({self.rng.randint(-t.dim() - 1, t.dim())})",
            f"squeeze({self.pick('', d)})",
            f"select({d}, {self.rng.randint(-size, max(size - 1, 0))})",
            f"narrow({d}, {start}, {self.rng.randint(0, max(size - start, 0))})",
            f"permute({self.rng.sample(range(t.dim()), t.dim())})",
            f"flatten({self.rng.randint(0, max(t.dim() - 1, 0))})",
            "detach()" if self.rng.random() < 0.4 else f"view_as({self.any(lambda o: o.numel() == n)})",
            f"flip({d})",
            f"unbind({d})[0]",
            f"chunk(2, {d})[-1]",
            f"split({self.pick(1, 2)}, {d})[0]",
        )

    def view(self):
        a = self.any()
        if self.rng.random() < 0.08:
            return f"{self.new()} = {a}.data"
        if self.rng.random() < 0.35:
            return f"{self.new()} = {a}[{self.basic(self.scope[a])}]"
        return f"{self.new()} = {a}.{self.view_of(self.scope[a])}"

    def basic(self, t, advanced=False):
        parts, d = [], 0
        # After an ellipsis every dimension left is named, so that an index stays in the bounds of its own.
        while d < t.dim() and ("..." in parts or self.rng.random() < 0.8):
            size, kind = t.shape[d], self.rng.random()
            if kind < 0.12:
                parts.append("None")
                continue
            if kind < 0.2 and "..." not in parts:
                parts.append("...")
                d += self.rng.randint(0, t.dim() - d)
                continue
            if kind < 0.4 and size:
                parts.append(str(self.rng.randint(-size, size - 1)))
            elif advanced and kind < 0.6 and size:
                shape = self.pick((2,), (3,), (1,), (2, 2))
                flat = [self.rng.randint(-size, size - 1) for _ in range(int(np.prod(shape, dtype=int)))]
                parts.append(f"lib.tensor({flat}).reshape({list(shape)})")
            elif advanced and kind < 0.66 and size:
                parts.append(str([self.rng.randint(-size, size - 1) for _ in range(2)]))
            elif advanced and kind < 0.74:
                parts.append(f"lib.tensor({[self.rng.random() < 0.5 for _ in range(size)]}, dtype=lib.bool)")
            else:
                a, b = self.rng.randint(-size - 1, size), self.rng.randint(-size - 1, size + 1)
                parts.append(f"{self.pick(a, '')}:{self.pick(b, '')}:{self.pick('', '', 2, 3, 1)}")
            d += 1
        return ", ".join(parts) + ("," if len(parts) == 1 else "") if parts else "..."

    def get(self):
        a = self.any()
        if self.rng.random() < 0.15:
            return f"{self.new()} = {a}[{a} > {self.pick(0, 0.5)}]"
        return f"{self.new()} = {a}[{self.basic(self.scope[a], advanced=True)}]"

    def set(self):
        # PyTorch writes through some views whose elements overlap.
        a = self.any(lambda o: not overlaps(o))
        if a is None:
            return self.create()
        t = self.scope[a]
        if self.rng.random() < 0.15:
            return f"{a}[{a} > {self.pick(0, 0.5)}] = {self.scalar()}"
        where = self.basic(t, advanced=True)
        # One element written twice has no defined result.
        if "lib.tensor([" in where and "bool" not in where or "[" in where.replace("lib.tensor([", ""):
            return f"{a}[{where}] = {self.scalar()}"
        try:
            shape = eval(f"t[{where}]", {"t": t.detach(), "lib": torch}).shape
        except Exception:
            shape = ()
        fits = self.any(lambda o: o.shape == shape or o.dim() == 0)
        if self.rng.random() < 0.3 or not fits:
            return f"{a}[{where}] = {self.literal(shape, self.pick(*FLOATS))}"
        return f"{a}[{where}] = {fits if self.rng.random() < 0.7 else self.scalar()}"

    def inplace(self):
        a = self.any()
        t = self.scope[a]
        through = self.rng.random()
        target = a
        if through < 0.08:
            target = f"{a}.data"
        elif through < 0.14:
            target = f"{a}.detach()"
        elif through < 0.3:
            target = f"{a}.{self.view_of(t)}"
        elif through < 0.4:
            target = f"{a}[{self.basic(t)}]"
        op = self.pick(*INPLACE, *(["exp_", "div_", "sqrt_", "tanh_", "sigmoid_"] if self.rounds else ["eq_", "gt_"]))
        if through > 0.9 and op in ("add_", "sub_", "mul_"):
            return f"{a} {({'add_': '+', 'sub_': '-', 'mul_': '*'})[op]}= {self.partner(a)}"
        if op in ("add_", "sub_", "mul_", "copy_"):
            argument = (
                self.partner(a) if target == a else self.pick(self.scalar(), self.any(lambda o: o.dim() == 0) or "2")
            )
            shared = argument in self.scope and argument != a and storage(self.scope[argument]) == storage(t)
            # What PyTorch computes from what it overwrites at the same time depends on the order of its loop.
            if shared or op == "copy_" and argument not in self.scope:
                argument = self.literal(t.shape, name(t.dtype))
        else:
            argument = {
                "fill_": self.scalar(),
                # Versions of PyTorch differ in what a negative bound means for unsigned numbers.
                "clamp_": "-1.1, 1.9" if t.is_floating_point() else "1, 3" if t.dtype == torch.uint8 else "-1, 3",
                "pow_": "2",
                "div_": self.pick("2", "4.0"),
                "eq_": "1",
                "gt_": "0",
            }.get(op, "")
            if op == "masked_fill_":
                argument = f"{a} > 0, {self.scalar()}"
        call = f"{target}.{op}({argument})"
        return f"with lib.no_grad(): {call}" if self.rng.random() < 0.1 else call

    def reduce(self):
        a = self.any()
        t = self.scope[a]
        smooth = ["mean", "var", "std", "norm"] if self.rounds else []
        op = self.pick("sum", "sum", "amax", "amin", "prod", "all", "any", "argmax", "max", "min", *smooth)
        if self.rounds and op in ("argmax", "all", "any"):
            op = "sum"
        if self.rng.random() < 0.3:
            return f"{self.new()} = {a}.{op}()"
        keep = self.pick("", ", keepdim=True")
        if op in ("argmax", "max", "min", "prod"):
            return f"{self.new()} = {a}.{op}({self.dim(t)}{keep})" + ("[0]" if op in ("max", "min") else "")
        return f"{self.new()} = {a}.{op}(dim={self.pick(self.dim(t), tuple(self.dims(t)))}{keep})"

    def contract(self):
        a = self.any(lambda o: o.dim() > 0) or self.any()
        t = self.scope[a]
        if not t.dim():
            return self.binary()
        k = t.shape[-1]
        b = self.any(lambda o: o.dtype == t.dtype and o.dim() and (o.shape[-2] if o.dim() > 1 else o.shape[0]) == k)
        if not b or self.rng.random() < 0.3:
            shape = self.pick((k,), (k, 2), (2, k, 3), (1, k, 2))
            return f"{self.new()} = {a} @ {self.literal(shape, name(t.dtype))}"
        return f"{self.new()} = {a} @ {b}"

    def join(self):
        a = self.any()
        t = self.scope[a]
        parts = [a] + [self.any(lambda o: o.shape == t.shape) for _ in range(self.rng.randint(0, 2))]
        op = self.pick("cat", "stack")
        return f"{self.new()} = lib.{op}([{', '.join(parts)}], {self.dim(t)})"

    def indexed(self):
        a = self.any(lambda o: o.dim() > 0 and o.numel() > 0)
        if not a:
            return self.create()
        t = self.scope[a]
        d = self.rng.randrange(t.dim())
        size, n = t.shape[d], self.rng.randint(1, 4)
        op = self.pick("gather", "index_select", "index_add", "scatter", "scatter_add", "scatter_add_", "index_add_",
                       "take", "masked_select", "masked_fill", "repeat", "roll", "tril", "index_fill")  # fmt: skip
        rows = f"lib.tensor({[self.rng.randrange(size) for _ in range(n)]})"
        part = list(t.shape)
        part[d] = n
        if op in ("gather", "scatter", "scatter_add", "scatter_add_"):
            flat = [self.rng.randrange(size) for _ in range(int(np.prod(part)))]
            index = f"lib.tensor({flat}).reshape({part})"
            source = {"gather": "", "scatter": f", {self.scalar()}"}.get(op, f", {self.literal(part, name(t.dtype))}")
            argument = f"{d}, {index}{source}"
        elif op in ("index_add", "index_add_"):
            argument = f"{d}, {rows}, {self.literal(part, name(t.dtype))}"
        else:
            argument = {
                "index_select": f"{d}, {rows}",
                "index_fill": f"{d}, {rows}, {self.scalar()}",
                "take": f"lib.tensor({[self.rng.randrange(-t.numel(), t.numel()) for _ in range(n)]})",
                "masked_select": f"{a} > 0",
                "masked_fill": f"{a} > 0, {self.scalar()}",
                "repeat": f"{[1] * (t.dim() - 1) + [2]}",
                "roll": f"{self.pick(1, -1, 2)}, {d}",
                "tril": f"{self.pick(0, 1, -1)}",
            }[op]
        return f"{self.new()} = {a}.{op}({argument})"

    def track(self):
        a = self.any(lambda o: o.is_floating_point()) or self.any()
        tracked = self.any(lambda o: o.requires_grad) or a
        return self.pick(
            f"{a}.requires_grad_()",
            f"{tracked}.retain_grad()",
            f"{tracked}.register_hook(lambda g: g * 2)",
            f"{tracked}.register_hook(lambda g: None)",
            f"{self.new()} = {tracked}.detach()",
            f"{self.new()} = {tracked} * {tracked}",
            f"{self.new()} = {tracked} * 1",
            f"{tracked}.grad = None",
            f"{self.new()} = {tracked}.grad",
        )

    def backward(self):
        a = self.any(lambda o: o.requires_grad and not o.is_leaf) or self.any(lambda o: o.requires_grad) or self.any()
        leaf = self.any(lambda o: o.requires_grad) or a
        keep = self.pick("", "", "retain_graph=True", "create_graph=True")
        loss = self.pick(f"{a}.sum()", f"({a} * {a}).sum()", f"({a} * {a} * {a}).sum()")
        return self.pick(
            f"{loss}.backward({keep})",
            f"{a}.backward({a}.detach().clone(){', ' + keep if keep else ''})",
            f"{self.new()} = lib.autograd.grad({loss}, {leaf}{', ' + keep if keep else ''}, allow_unused=True)[0]",
            f"{a}.backward({keep})",
        )


def compare(what, mine, right, untracked):
    if not isinstance(right, torch.Tensor):
        # PyTorch loses the gradient of a leaf that has a view when either is written behind autograd's back.
        assert untracked or not isinstance(mine, gt.Tensor), f"{what}: {mine} where PyTorch has {right}"
        return
    assert mine is not None, f"{what}: None where PyTorch has {right}"
    assert name(mine.dtype) == name(right.dtype), f"{what}: {mine.dtype}, expected {right.dtype}"
    assert tuple(mine.shape) == tuple(right.shape), f"{what}: {tuple(mine.shape)}, expected {tuple(right.shape)}"
    # A tensor reached through `.data` never becomes part of a graph in GT.
    plain = untracked or what.endswith("grad") or not right.is_floating_point()
    for fact in () if plain else ("requires_grad", "is_leaf"):
        a, b = getattr(mine, fact), getattr(right, fact)
        assert a == b, f"{what}.{fact}: {a}, expected {b}"
    rtol, atol = TOLERANCE.get(name(right.dtype), (0, 0))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(values(mine), values(right), rtol=rtol, atol=atol, err_msg=what)


def overlaps(t):
    return any(stride == 0 and size > 1 for stride, size in zip(t.stride(), t.shape))


def storage(t):
    return t.untyped_storage().data_ptr()


def step(line, scope):
    """Runs a line; gives the error, if one was raised."""
    try:
        exec(line, scope)
    except Exception as error:
        return error
    return None


def large(t):
    t = t.detach()
    return t.is_floating_point() and t.numel() and not bool((t.abs() <= LARGE[name(t.dtype)]).all())


def run(seed):
    """One random program, in both."""
    writer, lines = Writer(seed), []
    right, mine, untracked = {"lib": torch}, {"lib": gt}, False
    try:
        for _ in range(writer.rng.randint(4, STEPS)):
            line = writer.line()
            # PyTorch does not notice what is written through `.data`, and takes the gradient at the new values; GT
            # takes it at those that the function had.
            if "grad(" in line or "backward(" in line:
                if any(".data" in before for before in lines):
                    return
            lines.append(line)
            expected, got = step(line, right), step(line, mine)
            if (expected is None) != (got is None):
                if known(got, expected):
                    return
                raise AssertionError(f"raised {got!r}, expected {expected!r}, at {line}")
            untracked = untracked or any(word in line for word in ("detach()", ".data", "no_grad", "create_graph"))
            untracked = untracked or line.startswith("v") and line.endswith(".requires_grad_()") and "=" not in line
            if expected is not None:
                lines[-1] += f"  # {type(expected).__name__}"
            writer.scope = {n: t for n, t in right.items() if n.startswith("v") and t is not None}
            # PyTorch may refuse even to look at what `split` gave.
            if any(step(f"{n}.grad_fn, {n}.detach()", right) for n in writer.scope):
                return
            found = [t for t in writer.scope.values() if isinstance(t, torch.Tensor)]
            # PyTorch's gradients may be expanded tensors, whose views then share elements.
            if "grad" in line and any(map(overlaps, found)):
                return
            # PyTorch lets integers join a graph that is written into them.
            if any(t.requires_grad and not t.is_floating_point() for t in found):
                return
            if any(map(large, found)) or any(t.is_leaf and t.grad is not None and large(t.grad) for t in found):
                return
            if writer.scope and writer.rng.random() < 0.1:
                n = writer.any()
                compare(n, mine[n], right[n], untracked)
        for n, t in writer.scope.items():
            compare(n, mine[n], t, untracked)
            if isinstance(t, torch.Tensor) and t.is_leaf and not untracked:
                compare(f"{n}.grad", mine[n].grad, t.grad, untracked)
    except Exception as error:
        program = "\n".join(lines)
        raise AssertionError(f"GT_RANDOM_SEED={seed}\n{program}\n{type(error).__name__}: {error}") from error


def test_random_programs_on_threads():
    """Each thread records a stream of its own."""
    if os.environ.get("GT_RANDOM_SEED"):
        pytest.skip("one program is replayed alone")
    first = random.randrange(2**32)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(first, first + 200)))


def test_random_programs():
    if seed := os.environ.get("GT_RANDOM_SEED"):
        run(int(seed))
        return
    first = random.randrange(2**32)
    end = time.monotonic() + float(os.environ.get("GT_RANDOM_SECONDS", 3))
    count = 0
    while time.monotonic() < end:
        run(first + count)
        count += 1
    assert count > 0
