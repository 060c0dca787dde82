"""Torch optimizers: SGD bit for bit, geometry, numerics at extreme p, checkpoints."""

import io
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")

from attsvm import Entrywise, LongestRow, Schatten, frobenius, l1, linf, nuclear, spectral  # noqa: E402
from attsvm.norms import RowWise  # noqa: E402
from attsvm.torch import LpMirrorDescent, SteepestDescent  # noqa: E402

NORMS = [
    l1,
    linf,
    frobenius,
    nuclear,
    spectral,
    Entrywise(3),
    Entrywise(1.2),
    Schatten(1.5),
    LongestRow(),
    RowWise(3),
]
BOTH_WAYS = pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "plain"])


def network(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    layers = torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)
    return torch.nn.Sequential(*layers).to(dtype)


def fit(model, optimizer, steps=25, seed=1):
    generator = torch.Generator().manual_seed(seed)
    weight = next(model.parameters())
    for _ in range(steps):
        x = torch.randn(8, 5, generator=generator).to(weight.dtype)
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
    return [w.detach().clone() for w in model.parameters()]


def trained(make, dtype=torch.float64, **options):
    model = network(dtype)
    return fit(model, make(model.parameters(), **options))


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def moved(w, gradient, make):
    """The weight after one step of the optimizer with this gradient."""
    w = torch.nn.Parameter(w.clone())
    w.grad = gradient.clone()
    make([w]).step()
    return w.detach()


# ---------------------------------------------------------------------- one pass


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("p", [1.1, 2, 3])
def test_a_fused_step_is_the_same_step(monkeypatch, p, dtype):
    """The formula of the one pass, uncompiled: compiling takes a minute: lab/benchmarks/epochs.py."""
    monkeypatch.setattr("attsvm.torch.optimizers._compiled", lambda step: step)
    ends = []
    for fused in (False, True):
        model = network(dtype)
        optimizer = LpMirrorDescent(model.parameters(), 0.05, p, weight_decay=0.01, fused=fused)
        fit(model, optimizer, 5)
        with torch.no_grad():
            model[0].weight[0, 0] = 0.7  # both notice that something else has changed a weight
            model[2].weight.data = model[2].weight.data.T.contiguous().T  # and take any layout
        ends.append(fit(model, optimizer, 5))
    near = 1e-9 if dtype == torch.float64 else 0.02  # rounding, the tenth power of it
    assert all(torch.allclose(a, b, rtol=near, atol=near / 10) for a, b in zip(*ends, strict=True))
    other = fit(network(dtype), LpMirrorDescent(network(dtype).parameters(), 0.05, p), 10)
    assert not any(torch.allclose(a, b, rtol=near) for a, b in zip(ends[0], other, strict=True))


# ---------------------------------------------------------------------- SGD


@BOTH_WAYS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("extra", [{}, {"weight_decay": 0.01, "maximize": True}], ids=["plain", "decay"])
def test_mirror_descent_with_p_two_is_torch_sgd_bit_for_bit(dtype, extra, foreach):
    extra = {"lr": 0.01, "foreach": foreach, **extra}
    sgd = trained(torch.optim.SGD, dtype, **extra)
    assert equal(trained(LpMirrorDescent, dtype, p=2, **extra), sgd)
    assert not equal(trained(LpMirrorDescent, dtype, p=2.2, **extra), sgd)


@pytest.mark.parametrize("p", [1.1, 1.5, 3, 8])
def test_a_mirror_step_solves_its_proximal_problem(p):
    w, g = torch.randn(2, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    new = moved(w, g, lambda q: LpMirrorDescent(q, 0.1, p))
    slope = 0.1 * g + new.sign() * new.abs() ** (p - 1) - w.sign() * w.abs() ** (p - 1)
    assert (slope.abs() / (0.1 * g.abs() + w.abs() ** (p - 1))).max() < 2e-14
    assert (moved(w, g, lambda q: LpMirrorDescent(q, 0.1, p + 0.5)) - new).abs().max() > 1e-3


@pytest.mark.parametrize(
    "make",
    [
        lambda q, **o: LpMirrorDescent(q, 0.01, 1.5, normalised=True, **o),
        lambda q, **o: LpMirrorDescent(q, 0.01, 3, weight_decay=0.1, **o),
        lambda q, **o: SteepestDescent(q, 0.01, Entrywise(1.5), momentum=0.9, **o),
        lambda q, **o: SteepestDescent(q, 0.01, spectral, **o),
    ],
)
def test_all_at_once_and_one_by_one_are_the_same_steps(make):
    assert equal(trained(make, foreach=True), trained(make, foreach=False))


# ---------------------------------------------------------------------- Muon as people use it


def spread(rows=12, columns=8, least=0.1, seed=0):
    """A matrix with singular values from `least` to 1."""
    g = torch.Generator().manual_seed(seed)
    U, V = (
        torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64)).Q[:, :8] for n in (rows, columns)
    )
    return (U * torch.logspace(float(torch.log10(torch.tensor(least))), 0, 8)) @ V.T


def alike(a, b):
    return float((a * b).sum() / (a.norm() * b.norm()))


@pytest.mark.parametrize(
    ("norm", "bound", "least"), [(spectral, 0.03, 0.01), (Schatten(4), 1e-5, 0.1)], ids=str
)
@pytest.mark.parametrize("rows", [12, 8], ids=["tall", "square"])
def test_products_find_the_direction_of_the_singular_values(norm, bound, least, rows):
    """Muon's five steps leave singular values in [0.68, 1.13]: a cosine of 0.97. Newton's converge."""
    w, g = torch.zeros(rows, 8, dtype=torch.float64), spread(rows, least=least)
    exact, close = (
        moved(w, g, lambda q, way=way: SteepestDescent(q, 0.1, norm, polar=way))
        for way in ("svd", "newton-schulz")
    )
    assert 1 - alike(exact, close) < bound
    assert 1 - alike(-0.1 * g, close) > 2 * bound  # the gradient itself is not it
    assert norm.value(close.numpy()) == pytest.approx(0.1, rel=0.4 if norm is spectral else 1e-9)


def test_one_step_is_that_of_torchs_muon():
    g = torch.randn(16, 16, generator=torch.Generator().manual_seed(2))
    theirs = moved(torch.ones(16, 16), g, lambda q: torch.optim.Muon(q, 0.1, weight_decay=0.3, momentum=0.9))
    how = {"weight_decay": 0.3, "momentum": 0.9, "nesterov": True}
    ours = moved(
        torch.ones(16, 16), g, lambda q: SteepestDescent(q, 0.1, spectral, polar="newton-schulz", **how)
    )
    assert (ours - theirs).abs().max() < 2e-3  # theirs is computed in bfloat16
    plain = moved(torch.ones(16, 16), g, lambda q: SteepestDescent(q, 0.1, spectral, polar="newton-schulz"))
    assert (plain - theirs).abs().max() > 0.02


def test_weight_decay_is_decoupled():
    w, g = torch.ones(3, 3), torch.eye(3)
    step = moved(w, g, lambda q: SteepestDescent(q, 0.1, spectral, weight_decay=0.5))
    assert torch.allclose(step, 0.95 * w - 0.1 * g) and not torch.allclose(step, w - 0.1 * g)


def test_a_checkpoint_without_the_newer_settings_is_read():
    w = torch.nn.Parameter(torch.ones(2, 2))
    saved = SteepestDescent([w], 0.1, spectral).state_dict()
    for name in ("polar", "nesterov", "weight_decay"):
        del saved["param_groups"][0][name]
    optimizer = SteepestDescent([w], 0.1, spectral)
    optimizer.load_state_dict(saved)
    w.grad = torch.eye(2)
    optimizer.step()
    assert torch.allclose(w, torch.ones(2, 2) - 0.1 * torch.eye(2))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"polar": "qr"}, "'svd' or 'newton-schulz'"),
        ({"norm": nuclear, "polar": "newton-schulz"}, "serves spectral"),
        ({"norm": Schatten(4), "polar": "newton-schulz", "joint": True}, "need singular values"),
        ({"nesterov": True}, "momentum=0.95"),
        ({"weight_decay": -1}, "weight_decay is -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(how, told):
    with pytest.raises(ValueError, match=told):
        SteepestDescent([torch.nn.Parameter(torch.ones(3, 3))], 0.1, **{"norm": spectral, **how})


# ---------------------------------------------------------------------- geometry


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("joint", [False, True], ids=["each", "joint"])
def test_a_step_has_length_lr_in_its_norm(norm, joint):
    params = [torch.nn.Parameter(torch.zeros(s, dtype=torch.float64)) for s in ((4, 3), (5, 3), (2,))]
    for w in params:
        w.grad = torch.randn(w.shape, dtype=torch.float64)
    SteepestDescent(params, 0.1, norm, joint=joint).step()
    blocks = [w.detach().numpy().reshape(len(w), -1) for w in params]
    if joint:
        whole = [torch.block_diag(*map(torch.from_numpy, blocks)).numpy()]
    assert [norm.value(b) for b in (whole if joint else blocks)] == pytest.approx([0.1] * (1 if joint else 3))


def test_jointly_normalised_mirror_descent_divides_by_one_norm():
    params = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    for k, w in enumerate(params):
        w.grad = torch.full((3,), 1.0 + k)
    LpMirrorDescent(params, 1.0, 2, normalised=True, joint=True).step()
    assert torch.cat([w.detach() for w in params]).norm().item() == pytest.approx(1)
    assert params[1].norm().item() == pytest.approx(2 * params[0].norm().item())


@pytest.mark.parametrize(
    "make",
    [lambda q: SteepestDescent(q, 0.1, spectral), lambda q: LpMirrorDescent(q, 0.1, 3, normalised=True)],
)
def test_zero_missing_and_empty_gradients_move_nothing(make):
    still, without, empty = (torch.nn.Parameter(torch.ones(s)) for s in ((2, 3), (2, 3), (0, 3)))
    still.grad, empty.grad = torch.zeros(2, 3), torch.zeros(0, 3)
    make([still, without, empty]).step()
    assert torch.equal(still, torch.ones(2, 3)) and torch.equal(without, torch.ones(2, 3))


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_memory_layout_of_a_gradient_does_not_matter(norm):
    w, g = torch.randn(2, 3, 4, dtype=torch.float64)
    make = lambda q: SteepestDescent(q, 0.1, norm)  # noqa: E731
    assert torch.allclose(moved(w, g.T.contiguous().T, make), moved(w, g, make), rtol=1e-14)


# ---------------------------------------------------------------------- extreme p


def test_weights_that_underflow_for_p_near_one_are_remembered():
    w = torch.nn.Parameter(torch.zeros(1))
    w.grad = torch.full((1,), -1.0)
    optimizer = LpMirrorDescent([w], 0.1, 1.01)
    optimizer.step()
    assert w.item() == 0  # 0.1 to the hundredth power
    for _ in range(9):
        optimizer.step()
    assert w.item() == pytest.approx(1, rel=1e-3)
    assert moved(torch.zeros(1), w.grad, lambda q: LpMirrorDescent(q, 0.1, 1.01)) == 0  # each step alone


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_dual_variable_that_underflows_for_large_p_does_not_lose_the_weight(dtype):
    w = torch.tensor([0.01, -0.1, 3.0], dtype=dtype)
    new = moved(w, torch.tensor([0.0, 0.0, 1e-3], dtype=dtype), lambda q: LpMirrorDescent(q, 1e-3, 400.0))
    assert torch.equal(new, w)
    assert w[0] ** 399 == 0  # what the textbook step would start from
    assert torch.isfinite(moved(w, -w, lambda q: LpMirrorDescent(q, 1e-3, 400.0))).all()


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_normalised_steps_do_not_see_the_gradients_scale(scale):
    w, g = torch.randn(2, 4, 3, dtype=torch.float64)
    for make in (
        lambda q: LpMirrorDescent(q, 0.1, 1.5, normalised=True),
        lambda q: SteepestDescent(q, 0.1, linf),
    ):
        assert torch.allclose(moved(w, scale * g, make), moved(w, g, make), rtol=1e-13)
    plain = lambda q: LpMirrorDescent(q, 0.1, 1.5)  # noqa: E731
    assert not torch.allclose(moved(w, scale * g, plain), moved(w, g, plain))


def test_weights_changed_from_outside_are_read_anew():
    w = torch.nn.Parameter(torch.tensor([1.0, 0.0]))
    w.grad = torch.full((2,), -0.1)
    optimizer = LpMirrorDescent([w], 1.0, 1.1)
    optimizer.step()
    hidden = optimizer.state[w]["dual"][1].item()
    w.data[0] = 0.5
    optimizer.step()
    assert w[0].item() == pytest.approx((0.5**0.1 + 0.1) ** 10, rel=1e-5)
    assert optimizer.state[w]["dual"][1].item() == pytest.approx(hidden + 0.1)  # untouched, so remembered


# ---------------------------------------------------------------------- the torch.optim contract


@pytest.mark.parametrize(
    "make",
    [
        lambda q: LpMirrorDescent(q, 0.01, 1.3),
        lambda q: SteepestDescent(q, 0.01, Schatten(1.5), momentum=0.9),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_checkpoint_continues_bit_for_bit(make, dtype):
    model, twin, amnesiac = network(dtype), network(dtype), network(dtype)
    optimizer, saved = make(model.parameters()), io.BytesIO()
    fit(model, optimizer)
    torch.save([model.state_dict(), optimizer.state_dict()], saved)
    weights, state = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
    resumed, fresh = make(twin.parameters()), make(amnesiac.parameters())
    (twin.load_state_dict(weights), resumed.load_state_dict(state), amnesiac.load_state_dict(weights))
    end = fit(model, optimizer, seed=2)
    assert equal(fit(twin, resumed, seed=2), end)
    assert not equal(fit(amnesiac, fresh, seed=2), end)


def test_every_group_has_its_own_settings():
    a, b = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    a.grad = b.grad = torch.eye(2) * 3
    SteepestDescent([{"params": [a], "norm": linf, "lr": 1.0}, {"params": [b]}], 0.5, nuclear).step()
    assert torch.equal(a, torch.ones(2, 2) - torch.eye(2))
    assert torch.linalg.matrix_rank(1 - b) == 1 and (1 - b).norm().item() == pytest.approx(0.5)


def test_closures_and_schedulers_work():
    w = torch.nn.Parameter(torch.full((3,), 8.0))
    optimizer = SteepestDescent([w], 1.0, linf)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def closure():
        optimizer.zero_grad()
        (loss := w.sum()).backward()
        return loss

    assert [(optimizer.step(closure).item(), scheduler.step())[0] for _ in range(3)] == [24, 21, 19.5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda q: LpMirrorDescent(q, 0.1, 1.0), "1 < p"),
        (lambda q: LpMirrorDescent(q, 0.1, float("inf")), "1 < p"),
        (lambda q: LpMirrorDescent(q, -0.1), "lr is -0.1"),
        (lambda q: LpMirrorDescent(q, 0.1, weight_decay=-1), "weight_decay is -1"),
        (lambda q: SteepestDescent(q, float("nan"), linf), "lr is nan"),
        (lambda q: SteepestDescent(q, 0.1, "spectra"), "no norm 'spectra'"),
        (lambda q: SteepestDescent(q, 0.1, linf, momentum=1.0), "momentum is 1.0"),
        (lambda q: SteepestDescent([{"params": q, "lr": None}], 0.1, linf), "lr is None"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make([torch.nn.Parameter(torch.ones(2))])


def test_gradients_that_cannot_be_used_are_refused():
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="dense gradients"):
        LpMirrorDescent(table.parameters(), 0.1).step()
    with pytest.raises(ValueError, match="view_as_real"):
        LpMirrorDescent([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))], 0.1)
    with pytest.raises(ValueError, match="needs matrices or vectors"):
        moved(torch.ones(2, 2, 2), torch.ones(2, 2, 2), lambda q: SteepestDescent(q, 0.1, spectral))


def test_without_torch_the_import_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import attsvm.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "needs PyTorch" in done.stderr and "pip install" in done.stderr and done.returncode == 1


@pytest.mark.parametrize("joint", [False, True], ids=["each", "joint"])
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_gradient_with_a_nan_is_seen_in_the_weight_and_lengthens_no_other_step(norm, joint):
    params = [torch.nn.Parameter(torch.zeros(3, 3, dtype=torch.float64)) for _ in range(2)]
    for k, w in enumerate(params):
        w.grad = 1e6 * torch.randn(3, 3, generator=torch.Generator().manual_seed(k)).double()
    params[1].grad[1, 2] = torch.nan
    SteepestDescent(params, 0.1, norm, joint=joint).step()
    assert params[1][1, 2].isnan()
    moved = torch.cat([w.detach().abs().flatten() for w in params])
    assert moved.nan_to_num(0).max() <= 0.1 * (1 + 1e-9)
    assert joint or not params[0].isnan().any()


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_a_nan_leaves_no_step_of_normalised_mirror_descent_unnormalised(p):
    w = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    w.grad = torch.tensor([1e6, torch.nan, 1.0], dtype=torch.float64)
    LpMirrorDescent([w], 0.1, p, normalised=True).step()
    assert w.isnan().all()
