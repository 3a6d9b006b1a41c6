"""What PyTorch programs ask of the place they run at, before and beside their work."""

import pytest
from helpers import check, needs_torch, torch

import gt
from gt import nn


def test_devices_of_what_is_made_without_one():
    assert gt.get_default_device() == gt.device("cpu")
    with gt.device("cuda"):
        assert gt.zeros(2).device == gt.device("cuda:0") and nn.Linear(2, 2).weight.is_cuda
        with gt.device("cpu"):
            assert gt.tensor([1.0]).device.type == "cpu"
        assert gt.get_default_device() == gt.device("cuda:0") and gt.ones(2, device="cpu").device.type == "cpu"
    assert gt.rand(2).device.type == "cpu"
    gt.set_default_device("cuda:1")
    try:
        assert gt.arange(3).device == gt.device("cuda:1") and gt.as_tensor([1]).device.index == 1
        assert gt.from_numpy(gt.zeros(2).numpy()).device.type == "cpu"
        assert gt.zeros_like(gt.ones(1, device="cpu")).device.type == "cpu"
    finally:
        gt.set_default_device(None)
    assert gt.zeros(1).device.type == "cpu"


def test_words_of_memory_and_layout_are_taken():
    x = gt.ones(2, 3)
    for made in (gt.zeros_like, gt.ones_like, gt.empty_like, gt.rand_like, gt.randn_like):
        assert made(x, memory_format=gt.preserve_format, layout=gt.strided, pin_memory=False).shape == (2, 3)
    assert gt.full_like(x, 2.0, memory_format=gt.contiguous_format).tolist() == [[2.0] * 3] * 2
    assert gt.zeros(2, layout=gt.strided).shape == gt.empty(2, memory_format=gt.contiguous_format).shape == (2,)
    gt.set_default_dtype(gt.float64)
    try:
        assert gt.full((2,), 0.5).dtype is gt.float64 and gt.full((2,), 1).dtype is gt.int64
    finally:
        gt.set_default_dtype(gt.float32)


def test_classes_of_tensors_of_one_type():
    x = gt.FloatTensor([1, 2])
    assert isinstance(x, gt.FloatTensor) and not isinstance(x, gt.LongTensor) and x.type() == "gt.FloatTensor"
    assert gt.LongTensor(2, 3).shape == (2, 3) and gt.BoolTensor().shape == (0,)
    for said in (gt.DoubleTensor, "torch.DoubleTensor", "torch.cuda.DoubleTensor", gt.float64):
        assert x.type(said).dtype is gt.float64
    gt.set_default_tensor_type(gt.DoubleTensor)
    try:
        assert gt.zeros(1).dtype is gt.float64
    finally:
        gt.set_default_tensor_type("torch.FloatTensor")
    assert gt.zeros(1).dtype is gt.float32
    assert x.new(3).dtype is gt.float32 and x.new([1, 2]).tolist() == [1.0, 2.0]
    assert gt.range(1, 4).tolist() == [1.0, 2.0, 3.0, 4.0] and gt.fill(x, 3).tolist() == [3.0, 3.0]


def test_there_are_no_process_groups():
    dist = gt.distributed
    assert not dist.is_available() and not dist.is_initialized() and not dist.is_nccl_available()
    with pytest.raises(RuntimeError, match="one process"):
        dist.init_process_group("nccl")
    for call in (dist.get_rank, dist.get_world_size, dist.barrier):
        with pytest.raises(ValueError, match="not been initialized"):
            call()
    with pytest.raises(RuntimeError, match="one process"):
        nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    net = nn.DataParallel(nn.Linear(3, 2), device_ids=[0, 1])
    assert list(net.state_dict()) == ["module.weight", "module.bias"] and net(gt.zeros(4, 3)).shape == (4, 2)


def test_shares_of_a_dataset():
    from gt.utils.data import DistributedSampler

    halves = [DistributedSampler(range(7), num_replicas=2, rank=rank, seed=3) for rank in (0, 1)]
    first = [list(h) for h in halves]
    assert [len(h) for h in first] == [4, 4] == [len(h) for h in halves] and set(first[0] + first[1]) == set(range(7))
    for half in halves:
        half.set_epoch(1)
    assert [list(h) for h in halves] != first
    plain = [list(DistributedSampler(range(7), 2, rank, shuffle=False, drop_last=True)) for rank in (0, 1)]
    assert plain == [[0, 2, 4], [1, 3, 5]]
    with pytest.raises(ValueError, match="Invalid rank"):
        DistributedSampler(range(7), num_replicas=2, rank=2)


def test_what_compilers_and_profilers_are_told():
    net = nn.Linear(2, 2)
    assert gt.jit.script(net) is gt.jit.trace(net, gt.zeros(1, 2)) is net and not gt.jit.is_scripting()

    class Marked(nn.Module):
        @gt.jit.ignore
        def plain(self):
            return 1

        @gt.jit.export
        @gt.compiler.disable
        def other(self):
            return 2

        @gt.compiler.disable(recursive=False)
        def third(self):
            return 3

    assert (Marked().plain(), Marked().other(), Marked().third()) == (1, 2, 3) and not gt.compiler.is_compiling()
    with gt.autograd.profiler.record_function("forward"):
        assert net(gt.zeros(1, 2)).shape == (1, 2)
    with nn.attention.sdpa_kernel([nn.attention.SDPBackend.MATH, nn.attention.SDPBackend.FLASH_ATTENTION]):
        pass
    with pytest.raises(TypeError, match="SDPBackend"), nn.attention.sdpa_kernel("math"):
        pass
    assert gt.backends.cuda.matmul.allow_tf32 is False
    gt.backends.cuda.enable_flash_sdp(False)
    gt.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    import gt.backends.cudnn as cudnn

    cudnn.benchmark = True
    assert gt.backends.cudnn.benchmark and not gt.backends.mps.is_available() and not cudnn.is_available()
    cudnn.benchmark = False
    assert gt.version.__version__ == gt.__version__ and gt.version.cuda is None


def test_questions_about_gpus_have_answers_without_one():
    if gt.cuda.is_available():
        pytest.skip("there is one")
    cuda = gt.cuda
    assert cuda.memory_allocated() == cuda.max_memory_allocated() == cuda.memory_reserved() == 0
    assert gt.accelerator.current_accelerator() is None and not gt.accelerator.is_available()
    assert issubclass(cuda.OutOfMemoryError, RuntimeError)


def test_streams_and_events():
    start, end = gt.cuda.Event(enable_timing=True), gt.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    side = gt.cuda.Stream()
    side.wait_stream(gt.cuda.current_stream())
    with gt.cuda.stream(side), gt.cuda.nvtx.range("step"):
        x = gt.ones(3) + 1
    end.record()
    assert x.tolist() == [2.0] * 3 and 0 < start.elapsed_time(end) < 60_000


def test_variables():
    x = gt.autograd.Variable(gt.ones(2), requires_grad=True)
    assert isinstance(x, gt.autograd.Variable) and isinstance(x, gt.Tensor) and x.requires_grad


def test_gradients_by_position_and_in_batches():
    x = gt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y, unused = x**2, gt.ones(2, requires_grad=True)
    got = gt.autograd.grad(y, [x, unused], gt.ones(3), True, False, True, True)
    assert got[0].tolist() == [2.0, 4.0, 6.0] and got[1] is None
    (rows,) = gt.autograd.grad(y, x, gt.eye(3), is_grads_batched=True)
    assert rows.tolist() == [[2.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 6.0]]
    with pytest.raises(RuntimeError, match="is_grads_batched needs"):
        gt.autograd.grad(x**2, x, None, is_grads_batched=True)


def test_functions_that_cast_as_their_forward_did():
    from gt.amp import custom_bwd, custom_fwd

    seen = []

    class Double(gt.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu")
        def forward(ctx, x):
            seen.append(gt.is_autocast_enabled("cpu"))
            return x * 2

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, g):
            seen.append(gt.is_autocast_enabled("cpu"))
            return g * 2

    class Wide(Double):
        @staticmethod
        @custom_fwd(device_type="cpu", cast_inputs=gt.float32)
        def forward(ctx, x):
            seen.append((gt.is_autocast_enabled("cpu"), x.dtype))
            return x * 2

    x = gt.ones(2, requires_grad=True)
    with gt.autocast("cpu"):
        y, z = Double.apply(x), Wide.apply(x.bfloat16())
    y.sum().backward()
    z.sum().backward()
    assert seen == [True, (False, gt.float32), True, False] and x.grad.tolist() == [4.0, 4.0]


def test_results_that_are_close():
    close = gt.testing.assert_close
    close({"a": [gt.ones(2), 1.0]}, {"a": [gt.ones(2) + 1e-7, 1.0]})
    for wrong, text in (
        (gt.ones(2) * 2, "not close"),
        (gt.ones(3), "'shape'"),
        (gt.ones(2, dtype=gt.float64), "'dtype'"),
    ):
        with pytest.raises(AssertionError, match=text):
            close(wrong, gt.ones(2))
    close(gt.ones(2, dtype=gt.float64), gt.ones(2), check_dtype=False)
    close(gt.tensor([gt.nan]), gt.tensor([gt.nan]), equal_nan=True)
    with pytest.raises(AssertionError, match="mine"):
        close(gt.ones(1), gt.zeros(1), msg="mine")


@needs_torch
def test_special_functions():
    seen = []
    for T in (gt, torch):
        x, S = T.tensor([-0.5, 0.0, 0.3, 1.5], dtype=T.float64), T.special
        seen.append([S.expit(x), S.entr(x), S.xlog1py(x, x.abs()), S.gammaln(x + 2), S.psi(x + 2), S.sinc(x)])
    check(*seen)


@needs_torch
def test_batch_norm_of_nothing_and_over_processes():
    seen = []
    for T in (gt, torch):
        norm = T.nn.BatchNorm1d(3)
        out = norm(T.zeros(0, 3, 4))
        seen.append([out, norm.running_mean, norm.running_var, norm.num_batches_tracked])
        with pytest.raises(ValueError, match="must be positive"):
            T.nn.functional.batch_norm(T.ones(2, 3), None, None, training=True, eps=0.0)
    check(*seen)
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3)))
    made = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    assert type(made[1][0]) is nn.SyncBatchNorm and list(made.state_dict()) == list(net.state_dict())
    x = gt.randn(4, 2)
    check(made(x), nn.Sequential(net[0], nn.BatchNorm1d(3))(x).detach().numpy(), (1e-6, 1e-6))


@needs_torch
def test_errors_of_targets_have_pytorchs_types():
    for shape, target in (((2, 3), (2, 3)), ((2, 3, 5), (2, 4)), ((4, 3), (2,)), ((2, 3), (2, 2))):
        kinds = []
        for T in (gt, torch):
            with pytest.raises((RuntimeError, ValueError)) as caught:
                T.nn.functional.cross_entropy(T.zeros(shape), T.zeros(target, dtype=T.int64))
            kinds.append(caught.type)
        assert kinds[0] is kinds[1], (shape, target)


def test_longer_paths():
    from gt.autograd.variable import Variable
    from gt.distributions.multivariate_normal import MultivariateNormal
    from gt.nn.modules.batchnorm import _BatchNorm
    from gt.nn.modules.conv import _ConvNd
    from gt.nn.modules.loss import _Loss, _WeightedLoss
    from gt.nn.modules.utils import _pair, _triple
    from gt.nn.utils.clip_grad import clip_grad_norm_
    from gt.optim.adamw import AdamW
    from gt.utils.data.dataloader import DataLoader, default_collate

    assert isinstance(nn.BatchNorm2d(2), _BatchNorm) and isinstance(nn.SyncBatchNorm(2), _BatchNorm)
    assert nn.modules.batchnorm._BatchNorm is _BatchNorm and nn.modules.Linear is nn.Linear
    assert isinstance(nn.Conv3d(1, 1, 1), _ConvNd) and isinstance(nn.Dropout2d(), nn.modules.dropout._DropoutNd)
    assert isinstance(nn.NLLLoss(), _WeightedLoss) and issubclass(nn.MSELoss, _Loss)
    assert _pair(3) == (3, 3) and _pair([1, 2]) == (1, 2) and _triple(1) == (1, 1, 1)
    assert clip_grad_norm_ is nn.utils.clip_grad_norm_ and AdamW is gt.optim.AdamW
    assert DataLoader is gt.utils.data.DataLoader and default_collate is gt.utils.data.default_collate
    assert Variable is gt.autograd.Variable and MultivariateNormal is gt.distributions.MultivariateNormal


def test_steps_that_are_profiled(tmp_path):
    P = gt.profiler
    said = P.schedule(wait=1, warmup=1, active=2, repeat=1, skip_first=1)
    names = [said(i).name for i in range(7)]
    assert names == ["NONE", "NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE", "NONE", "NONE"]
    traces = []

    def ready(prof):
        traces.append(sum(row["calls"] for row in prof.key_averages()))
        P.tensorboard_trace_handler(tmp_path / "traces")(prof)

    plan = P.schedule(wait=1, warmup=0, active=1)
    with P.profile(activities=[P.ProfilerActivity.CPU], schedule=plan, on_trace_ready=ready, with_flops=True) as prof:
        for _ in range(4):
            (gt.rand(8, 8) @ gt.rand(8, 8)).sum().item()
            prof.step()
    assert len(traces) == 2 and min(traces) > 0 and len(list((tmp_path / "traces").iterdir())) == 2
    with pytest.raises(ValueError, match="schedule"):
        P.schedule(wait=0, warmup=0, active=0)


def test_settings_of_wrong_types():
    for wrong in (lambda: nn.Softmax(dim=1.0), lambda: nn.LogSoftmax("1"), lambda: nn.HuberLoss(delta=1j)):
        with pytest.raises(TypeError, match="must be"):
            wrong()
