"""PyTorch's longer paths to modules: `gt.nn.modules.batchnorm._BatchNorm` and its kin."""

from itertools import repeat

from gt import nn
from gt._places import places
from gt.nn import layers, losses, windowed

__all__ = [name for name in vars(nn)["__all__"] if name[0].isupper()]
globals().update({name: getattr(nn, name) for name in __all__})


def _ntuple(n, name="parse"):
    def parse(x):
        return tuple(x) if hasattr(x, "__iter__") else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_TABLE = {
    "activation": "gt.nn.activations gt.nn.transformer",
    "batchnorm": "gt.nn.norms",
    "container": "gt.nn.containers",
    "conv": "gt.nn.windowed",
    "distance": "gt.nn.losses",
    "dropout": "gt.nn.drops gt.nn.layers",
    "flatten": "gt.nn.layers",
    "fold": "gt.nn.folds",
    "instancenorm": "gt.nn.norms",
    "linear": "gt.nn.layers",
    "loss": "gt.nn.margins gt.nn.losses",
    "module": "gt.nn.module",
    "normalization": "gt.nn.norms gt.nn.layers",
    "padding": "gt.nn.pads",
    "pixelshuffle": "gt.nn.windowed",
    "pooling": "gt.nn.pools gt.nn.windowed",
    "rnn": "gt.nn.recurrent",
    "sparse": "gt.nn.bags gt.nn.layers",
    "transformer": "gt.nn.transformer",
    "upsampling": "gt.nn.resize",
    "utils": "",
}
globals().update(
    places(
        __name__,
        _TABLE,
        conv={"_ConvNd": windowed._Conv},
        pooling={"_MaxPoolNd": windowed._MaxPool, "_AvgPoolNd": windowed._AvgPool},
        dropout={"_DropoutNd": layers.Dropout},
        loss={"_WeightedLoss": losses._Loss},
        utils={
            "_ntuple": _ntuple,
            "_single": _ntuple(1, "_single"),
            "_pair": _ntuple(2, "_pair"),
            "_triple": _ntuple(3, "_triple"),
            "_quadruple": _ntuple(4, "_quadruple"),
        },
    )
)
