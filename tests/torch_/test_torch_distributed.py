"""SteepestDescent in two processes, under DDP and FSDP, is that of one with all the data."""

import multiprocessing
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
pytest.importorskip("torch.distributed")

from attsvm import l1, spectral  # noqa: E402
from attsvm.torch import Compositional, SteepestDescent  # noqa: E402

SAME = 1e-9
"""A mean of two halves and of the whole, in float64, through five polar factors."""


def trained(wrap, x, norm=spectral):
    """Weights after some steps on data (n, 4)."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)).double()
    run = wrap(model)
    weights = [w for w in model.parameters() if w.ndim == 2]
    optimizer = SteepestDescent(weights, 0.1, norm, momentum=0.9, nesterov=True)
    for _ in range(5):
        optimizer.zero_grad()
        (run(x) - x[:, :3]).square().mean().backward()
        optimizer.step()
    return [getattr(w, "full_tensor", w.clone)().detach() for w in weights]


def data():
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def sharded(model):
    """FSDP: each process holds half of the rows of every weight."""
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))


def without_shards(tensors, sign=torch._foreach_sign):
    """As in PyTorch 2.11, whose shards know no such call."""
    if any(hasattr(x, "placements") for x in tensors):
        raise NotImplementedError("aten._foreach_sign has no sharding strategy")
    return sign(tensors)


def as_rank(rank, place, answers=None):
    """Train on one half of the data beside the other rank."""
    torch.set_num_threads(1)
    with mock.patch.object(torch, "_foreach_sign", without_shards):
        return beside(rank, place, answers)


def beside(rank, place, answers):
    torch.distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    try:
        own = data().chunk(2)[rank]
        with pytest.raises(RuntimeError, match="need whole gradients"):
            trained(sharded, own, l1)
        query, key = (torch.nn.Linear(4, 4, bias=False).double() for _ in range(2))
        optimizer = Compositional([(sharded(query).weight, sharded(key).weight)], 0.1, heads=2)
        (query(own) * key(own)).sum().backward()
        with pytest.raises(RuntimeError, match="several heads need whole gradients"):
            optimizer.step()
        found = [trained(wrap, own) for wrap in (torch.nn.parallel.DistributedDataParallel, sharded)]
        if answers is not None:
            answers.send([[w.numpy() for w in weights] for weights in found])
        return found
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
@pytest.mark.skipif(not getattr(torch.distributed, "is_gloo_available", lambda: True)(), reason="needs gloo")
def test_two_processes_take_the_steps_of_one_with_whole_weights_and_with_shards(tmp_path):
    theirs, mouth = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    other = spawn.Process(target=as_rank, args=(1, tmp_path / "meeting", mouth), daemon=True)
    other.start()
    first = as_rank(0, tmp_path / "meeting")
    assert theirs.poll(120), "the other process has not answered"
    second = [[torch.from_numpy(w) for w in weights] for weights in theirs.recv()]
    other.join(60)
    alone, half = trained(lambda model: model, data()), trained(lambda model: model, data().chunk(2)[0])
    for ours, others in zip(first, second, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, others, strict=True))
        assert all(torch.allclose(a, b, rtol=SAME, atol=SAME) for a, b in zip(ours, alone, strict=True))
        assert not all(torch.allclose(a, b, rtol=1e-3) for a, b in zip(ours, half, strict=True))
