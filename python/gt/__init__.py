"""GT: many GPUs as one PyTorch-like device, shared by many people.

Any operation starts what is needed inside this process; `gt.connect("host:port")` uses a server instead.
"""

import atexit as _atexit

from gt import _gt
from gt._function import function as _function
from gt._gt import (
    Generator,
    OutOfBoundsError,
    OutOfMemoryError,
    Session,
    Tensor,
    arange,
    as_tensor,
    bernoulli,
    bfloat16,
    bool,
    broadcast_tensors,
    cat,
    connect,
    cosine_similarity,
    current_session,
    default_generator,
    device,
    disconnect,
    dtype,
    einsum,
    empty,
    empty_like,
    eye,
    float16,
    float32,
    float64,
    from_numpy,
    frombuffer,
    full,
    full_like,
    get_default_device,
    get_default_dtype,
    get_float32_matmul_precision,
    get_rng_state,
    gpu_workers,
    hstack,
    int8,
    int16,
    int32,
    int64,
    is_grad_enabled,
    is_inference_mode_enabled,
    is_tensor,
    layer_norm,
    linspace,
    manual_seed,
    multinomial,
    ones,
    ones_like,
    open_session,
    pow,
    promote_types,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    result_type,
    rms_norm,
    set_default_device,
    set_default_dtype,
    set_float32_matmul_precision,
    set_printoptions,
    set_rng_state,
    stack,
    synchronize,
    tensor,
    tensordot,
    uint8,
    vstack,
    where,
    zeros,
    zeros_like,
)
from gt._size import Size
from gt.autograd.grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled

__version__ = _gt.__version__

# Types under their other names.
float = float32
double = float64
half = float16
short = int16
int = int32
long = int64

# Numbers.
from math import e, inf, nan, pi  # noqa: E402

# Methods as functions: `gt.exp(x)` is `x.exp()`.
abs = absolute = Tensor.abs
add = Tensor.add
addcdiv = Tensor.addcdiv
addcmul = Tensor.addcmul
addmm = Tensor.addmm
all = Tensor.all
allclose = Tensor.allclose
amax = Tensor.amax
amin = Tensor.amin
any = Tensor.any
argmax = Tensor.argmax
argmin = Tensor.argmin
argsort = Tensor.argsort
baddbmm = Tensor.baddbmm
bitwise_and = Tensor.bitwise_and
bitwise_not = Tensor.bitwise_not
bitwise_or = Tensor.bitwise_or
bitwise_xor = Tensor.bitwise_xor
bmm = Tensor.bmm
broadcast_to = Tensor.broadcast_to
ceil = Tensor.ceil
chunk = Tensor.chunk
clamp = Tensor.clamp
clip = Tensor.clip
clone = Tensor.clone
cos = Tensor.cos
cosh = Tensor.cosh
count_nonzero = Tensor.count_nonzero
cumprod = Tensor.cumprod
cumsum = Tensor.cumsum
detach = Tensor.detach
diagonal = Tensor.diagonal
div = divide = Tensor.div
dot = Tensor.dot
eq = Tensor.eq
equal = Tensor.equal
erf = Tensor.erf
exp = Tensor.exp
exp2 = Tensor.exp2
expm1 = Tensor.expm1
flatten = Tensor.flatten
flip = Tensor.flip
fliplr = Tensor.fliplr
flipud = Tensor.flipud
floor = Tensor.floor
floor_divide = Tensor.floor_divide
fmod = Tensor.fmod
frac = Tensor.frac
gather = Tensor.gather
ge = greater_equal = Tensor.ge
gelu = Tensor.gelu
gt = greater = Tensor.gt
index_add = Tensor.index_add
index_copy = Tensor.index_copy
index_fill = Tensor.index_fill
index_select = Tensor.index_select
isclose = Tensor.isclose
isfinite = Tensor.isfinite
isinf = Tensor.isinf
isnan = Tensor.isnan
is_floating_point = Tensor.is_floating_point
kthvalue = Tensor.kthvalue
le = less_equal = Tensor.le
lerp = Tensor.lerp
log = Tensor.log
log10 = Tensor.log10
log1p = Tensor.log1p
log2 = Tensor.log2
log_softmax = Tensor.log_softmax
logical_and = Tensor.logical_and
logical_not = Tensor.logical_not
logical_or = Tensor.logical_or
logical_xor = Tensor.logical_xor
logsumexp = Tensor.logsumexp
lt = less = Tensor.lt
masked_fill = Tensor.masked_fill
masked_scatter = Tensor.masked_scatter
masked_select = Tensor.masked_select
matmul = Tensor.matmul
max = Tensor.max
maximum = Tensor.maximum
mean = Tensor.mean
median = Tensor.median
min = Tensor.min
minimum = Tensor.minimum
mm = Tensor.mm
moveaxis = movedim = Tensor.movedim
msort = Tensor.msort
mul = multiply = Tensor.mul
mv = Tensor.mv
nan_to_num = Tensor.nan_to_num
narrow = Tensor.narrow
ne = not_equal = Tensor.ne
neg = negative = Tensor.neg
nonzero = Tensor.nonzero
norm = Tensor.norm
numel = Tensor.numel
outer = Tensor.outer
permute = Tensor.permute
prod = Tensor.prod
ravel = Tensor.ravel
reciprocal = Tensor.reciprocal
relu = Tensor.relu
remainder = Tensor.remainder
reshape = Tensor.reshape
roll = Tensor.roll
round = Tensor.round
rsqrt = Tensor.rsqrt
scatter = Tensor.scatter
scatter_add = Tensor.scatter_add
select = Tensor.select
sigmoid = Tensor.sigmoid
sign = Tensor.sign
silu = Tensor.silu
sin = Tensor.sin
sinh = Tensor.sinh
softmax = Tensor.softmax
sort = Tensor.sort
split = Tensor.split
sqrt = Tensor.sqrt
square = Tensor.square
squeeze = Tensor.squeeze
std = Tensor.std
sub = subtract = Tensor.sub
sum = Tensor.sum
swapaxes = swapdims = transpose = Tensor.transpose
t = Tensor.t
take = Tensor.take
take_along_dim = Tensor.take_along_dim
tan = Tensor.tan
tanh = Tensor.tanh
tile = Tensor.tile
topk = Tensor.topk
tril = Tensor.tril
triu = Tensor.triu
trunc = Tensor.trunc
unbind = Tensor.unbind
unflatten = Tensor.unflatten
unsqueeze = Tensor.unsqueeze
var = Tensor.var

concat = concatenate = cat
acos = arccos = Tensor.acos
asin = arcsin = Tensor.asin
atan = arctan = Tensor.atan
atan2 = arctan2 = Tensor.atan2
clamp_max = Tensor.clamp_max
clamp_min = Tensor.clamp_min
dropout = Tensor.dropout
rsub = Tensor.rsub
true_divide = Tensor.div
row_stack = vstack
asarray = as_tensor
newaxis = None


def _offer_functions():
    """Makes functions of the methods above, and lets those that make tensors write them into `out`."""
    made = {}
    for name, value in list(globals().items()):
        if getattr(value, "__objclass__", None) is Tensor:
            made[value] = made.get(value) or _function(value)
            globals()[name] = made[value]
    for name in (
        "arange cat concat concatenate empty eye full hstack linspace ones pow rand randint randn randperm row_stack "
        "stack tensordot vstack where zeros"
    ).split():
        globals()[name] = _function(globals()[name], None)


_offer_functions()

# Functions written with the ones above, many of them methods of tensors too.
from gt.composed import *  # noqa: E402, F403
from gt.composed.info import compile, finfo, iinfo  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gt import (
        accelerator,
        amp,
        autograd,
        backends,
        client,
        compiler,
        cuda,
        debug,
        distributed,
        distributions,
        func,
        jit,
        launch,
        linalg,
        multiprocessing,
        nn,
        optim,
        profiler,
        random,
        serialization,
        signal,
        special,
        testing,
        utils,
        version,
    )
    from gt.amp import GradScaler, autocast, get_autocast_dtype, is_autocast_available, is_autocast_enabled
    from gt.func import vmap
    from gt.serialization import load, save
    from gt.signal.config import (
        Config,
        ShardConfig,
        SignalConfig,
        get_config,
        get_signal_config,
        load_config,
        register_config,
    )

_LAZY = {
    "accelerator",
    "amp",
    "autograd",
    "backends",
    "client",
    "compiler",
    "cuda",
    "debug",
    "distributed",
    "distributions",
    "func",
    "jit",
    "launch",
    "linalg",
    "multiprocessing",
    "nn",
    "optim",
    "profiler",
    "random",
    "serialization",
    "signal",
    "special",
    "testing",
    "utils",
    "version",
}
# Functions of `gt.linalg` that PyTorch has here too.
_LINALG = {
    "cholesky": "cholesky",
    "det": "det",
    "inverse": "inv",
    "logdet": "_logdet",
    "lu": "_lu",
    "lu_solve": "_lu_solve",
    "lu_unpack": "_lu_unpack",
    "pinverse": "pinv",
    "qr": "qr",
    "slogdet": "slogdet",
    "cholesky_solve": "_cholesky_solve",
    "cholesky_inverse": "_cholesky_inverse",
}
_AMP = {"GradScaler", "autocast", "get_autocast_dtype", "is_autocast_available", "is_autocast_enabled"}
_CONFIG = {
    "Config",
    "ShardConfig",
    "SignalConfig",
    "get_config",
    "get_signal_config",
    "load_config",
    "register_config",
}


def __getattr__(name):
    from importlib import import_module

    if name in _LAZY:
        return import_module(f"gt.{name}")
    if name in ("load", "save"):
        # Not imported before it is needed: NumPy would take most of the time of `import gt`.
        return getattr(import_module("gt.serialization"), name)
    if name in _AMP:
        return getattr(import_module("gt.amp"), name)
    if name in _CONFIG:
        # The package before what is in it: two threads that begin at either end would wait for one another.
        return getattr(import_module("gt.signal"), name)
    if name == "vmap":
        return import_module("gt.func").vmap
    if name in _LINALG:
        return getattr(import_module("gt.linalg"), _LINALG[name])
    if name.endswith("_") and not name.startswith("_") and hasattr(Tensor, name):
        # `gt.relu_(x)` is `x.relu_()`.
        return getattr(Tensor, name)
    raise AttributeError(f"module 'gt' has no attribute '{name}'")


def workers():
    """The workers there are now: name, backend, device, threads, bytes of memory and those in use, and load.

    They come in the order in which signals count them. `load` is the number of programs that wait there or run,
    `busy_seconds` the time spent on programs so far.
    """
    keys = ("name", "backend", "device", "threads", "memory", "bytes_in_use", "busy_seconds")
    return [{**{key: row[key] for key in keys}, "load": row["queued"]} for row in _gt._stats()["workers"]]


def _at_exit():
    """Ends the sessions. A failure nobody has looked at is shown, and the process does not end well.

    Where the program has chosen a status of its own (`sys.exit(7)`), that stays.
    """
    import sys

    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    try:
        failures = _gt._finish(not interrupted)
    except KeyboardInterrupt:
        import os

        print("gt: interrupted while waiting for what was recorded", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)
    if failures:
        _gt._end_badly()
        sys.stdout.flush()
        for failure in failures:
            print(f"gt: an operation failed and nobody looked at its result:\n{failure}", file=sys.stderr)
        sys.stderr.flush()


_atexit.register(_at_exit)


def _name_packages():
    """Tells a worker in this process, or started by it, where packages lie: NVIDIA's libraries may be among them."""
    import os
    import sys

    found = [path for path in sys.path if path and os.path.isdir(os.path.join(path, "nvidia"))]
    if found:
        os.environ.setdefault("GT_CUDA_PACKAGES", os.pathsep.join(found))


_name_packages()
