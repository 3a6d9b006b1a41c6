"""Arguments of layers and losses that PyTorch takes, or refuses: as there, where it can be imported."""

import numpy as np
import pytest
from helpers import check, draw, needs_new_torch, needs_torch, torch

import gt

LIBRARIES = [gt] if torch is None else [gt, torch]
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)

WAYS = {
    "by position": ((None, None, 0), {}),
    "all by position": (("weight", None, 1, None, "sum"), {}),
    "size_average": ((), {"size_average": False}),
    "reduce": ((None, None, -100, False), {}),
    "both": ((), {"reduce": True, "size_average": True}),
}


@needs_torch
@pytest.mark.filterwarnings("ignore:size_average and reduce")
@pytest.mark.parametrize("loss", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("way", WAYS)
def test_losses_of_classes_take_pytorchs_old_arguments(loss, way):
    results, (more, options) = [], WAYS[way]
    for library in (gt, torch):
        x, weight = library.tensor(draw((4, 3), "float64")), library.tensor([0.5, 1.0, 2.0], dtype=library.float64)
        given = [weight if a == "weight" else a for a in more]
        target = library.tensor([0, 1, 2, 0])
        results.append(getattr(library.nn.functional, loss)(x, target, *given, **options))
    check(*results)


@each_library
def test_probabilities_have_no_index_to_ignore(library):
    with pytest.raises(RuntimeError, match="ignore_index is not supported for floating point target"):
        library.nn.functional.cross_entropy(library.ones(2, 3), library.ones(2, 3), ignore_index=2)


@each_library
def test_tables_have_the_size_they_say(library):
    with pytest.raises(AssertionError, match="Shape of weight does not match num_embeddings and embedding_dim"):
        library.nn.Embedding(5, 2, _weight=library.ones(3, 2))


@each_library
@pytest.mark.parametrize("layer", ["LayerNorm", "RMSNorm"])
def test_sizes_may_be_numpys(library, layer):
    norm = getattr(library.nn, layer)(np.int64(3))
    assert tuple(norm.weight.shape) == (3,) and tuple(norm(library.ones(2, 3)).shape) == (2, 3)


@each_library
@pytest.mark.parametrize("norm_type", ["inf", 2])
def test_the_order_of_a_norm_may_be_text(library, norm_type):
    p = library.nn.Parameter(library.zeros(2))
    p.grad = library.tensor([3.0, 4.0])
    norm = library.nn.utils.clip_grad_norm_([p], 1.0, norm_type, error_if_nonfinite=True)
    assert norm.item() == (4 if norm_type == "inf" else 5)


NORMS = {
    "BatchNorm1d(3, bias=False)": (2, 3),
    "GroupNorm(3, 6, bias=False)": (2, 6, 2),
    "InstanceNorm1d(3, affine=True, bias=False)": (2, 3, 4),
    "BatchNorm2d(3)": (2, 3, 2, 2),
    "InstanceNorm2d(3)": (2, 3, 2, 2),
    "GroupNorm(3, 6, affine=False)": (2, 6),
}


@needs_torch
@pytest.mark.parametrize("norm", NORMS)
def test_norms_without_a_bias(norm):
    needs_new_torch("the bias of batch norms")
    mine, right = (eval(norm, vars(library.nn)) for library in (gt, torch))
    assert repr(mine) == repr(right) and list(mine.state_dict()) == list(right.state_dict())
    x = draw(NORMS[norm], "float32")
    check(mine(gt.tensor(x)), right(torch.tensor(x)))


@each_library
def test_buffers_print_as_tensors(library):
    assert repr(library.nn.Buffer(library.ones(1))) == "tensor([1.])"
