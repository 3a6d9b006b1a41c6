"""Wrappers of PyTorch programs that use several GPUs."""

from gt.nn.module import Module

__all__ = ["DataParallel", "DistributedDataParallel"]


class DataParallel(Module):
    """Calls `module`. A batch is divided by the dispatcher (`GT_AUTO_SHARD`, signals), not by this wrapper."""

    def __init__(self, module, device_ids=None, output_device=None, dim=0):
        super().__init__()
        self.dim, self.device_ids, self.output_device = dim, device_ids or [], output_device
        self.module = module

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)


class DistributedDataParallel(Module):
    """Needs a process group, and GT has none."""

    def __init__(self, module, *args, **kwargs):
        from gt.distributed import init_process_group

        init_process_group()
