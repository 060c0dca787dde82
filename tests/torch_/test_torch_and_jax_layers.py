"""Laws of the layers of torch and of JAX, on every way to a gradient."""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attsvm as att
from attsvm.norms.names import as_norm

torch = pytest.importorskip("torch", reason="needs PyTorch")

import attsvm.jax  # noqa: E402
import attsvm.torch  # noqa: E402

RUNS, N, T, D, E = 2, 2, 4, 5, 3
SAME = 1e-9
"""Two ways to one derivative. Soft margins are solved to 1e-10."""
RESULTS = ("W", "norm", "margin", "multipliers")


def program(soft):
    """Arrays of the data by name, the selection, and a mask without the last token."""
    rng = np.random.default_rng(0)
    shapes = {"keys": (RUNS, N, T, D), "queries": (RUNS, N, E), "required": (RUNS, N)}
    data = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    data["required"] = 0.5 + abs(data["required"])
    if soft:
        data["slack"] = 0.05 + 0.1 * abs(rng.normal(size=(RUNS, N)))
    return data, rng.integers(0, T - 1, (RUNS, N)), np.arange(T) < T - 1


def weighted(result, weights):
    """The sum of the named results times their weights."""
    return sum((getattr(result, name) * weight).sum() for name, weight in weights.items())


def in_torch(gradient_of):
    def gradients(data, selected, mask, weights):
        tensors = {name: torch.tensor(x) for name, x in data.items()}
        weights = {name: torch.tensor(x) for name, x in weights.items()}
        mask = torch.tensor(np.broadcast_to(mask, (RUNS, N, T)).copy())

        def total(data, selected, mask, weights):
            result = attsvm.torch.max_margin(**data, selected=selected, mask=mask)
            return weighted(result, weights), result.regular

        return {
            k: x.detach().numpy()
            for k, x in gradient_of(total, tensors, torch.tensor(selected), mask, weights).items()
        }

    return gradients


def plain(total, data, *constants, create_graph=False):
    data = {name: x.requires_grad_() for name, x in data.items()}
    value, regular = total(data, *constants)
    gradients = torch.autograd.grad(value, list(data.values()), create_graph=create_graph)
    return {"regular": regular, **dict(zip(data, gradients, strict=True))}


def of_func(total, data, *constants):
    gradients, regular = torch.func.grad(total, has_aux=True)(data, *constants)
    return {"regular": regular, **gradients}


def of_vmap(total, *arguments):
    gradients, regular = torch.func.vmap(torch.func.grad(total, has_aux=True))(*arguments)
    return {"regular": regular, **gradients}


def in_jax(transform):
    def gradients(data, selected, mask, weights):
        def total(data, selected, mask, weights):
            result = attsvm.jax.max_margin(**data, selected=selected, mask=mask)
            return weighted(result, weights), result.regular

        arrays = jax.tree.map(jnp.asarray, (data, selected, np.broadcast_to(mask, (RUNS, N, T)), weights))
        gradients, regular = transform(jax.grad(total, has_aux=True))(*arrays)
        return {"regular": np.asarray(regular), **{k: np.asarray(x) for k, x in gradients.items()}}

    return gradients


WAYS = {
    "torch": in_torch(plain),
    "torch, create_graph": in_torch(lambda *x: plain(*x, create_graph=True)),
    "torch.func": in_torch(of_func),
    "torch.vmap": in_torch(of_vmap),
    "jax": in_jax(lambda f: f),
    "jax.jit": in_jax(jax.jit),
    "jax.vmap": in_jax(jax.vmap),
}


@pytest.fixture(params=WAYS)
def gradients_of(request):
    """Gradients of weighted results, and `regular`, of one way."""
    double = jax.enable_x64(True) if request.param.startswith("jax") else contextlib.nullcontext()
    with double:
        yield WAYS[request.param]


def weights_of(soft, **powers):
    """Weights of the results by name, with the axes of the results."""
    rng = np.random.default_rng(1)
    shapes = {"W": (RUNS, D, E), "norm": (RUNS,), "margin": (RUNS,), "multipliers": (RUNS, N, T)}
    shapes |= {"shortfall": (RUNS, N)} if soft else {}
    return {name: rng.normal(size=shape) / powers.get(name, 1.0) for name, shape in shapes.items()}


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_padding_changes_no_gradient_whatever_it_holds(gradients_of, soft):
    data, selected, mask = program(soft)
    for name, weight in weights_of(soft).items():
        results = {}
        for padding in (0.0, np.nan, np.inf):
            keys = np.where(mask[:, None], data["keys"], padding)
            results[padding] = gradients_of(data | {"keys": keys}, selected, mask, {name: weight})
        expected = results.pop(0.0)
        assert expected["keys"][:, :, :-1].any() and not expected["keys"][:, :, -1].any()
        for gradients in results.values():
            for k, x in gradients.items():
                np.testing.assert_array_equal(x, expected[k])


def test_a_token_that_is_no_padding_changes_the_gradient(gradients_of):
    data, selected, mask = program(False)
    gradients, without = (
        gradients_of(data, selected, m, weights_of(False)) for m in (mask, np.ones(T, bool))
    )
    assert not np.allclose(gradients["keys"], without["keys"])


SCALES = [
    {"keys": 1e-150},
    {"keys": 1e-145},
    {"keys": 1e145},
    {"keys": 1e150},
    {"queries": 1e-150},
    {"queries": 1e150},
    {"keys": 1e-75, "queries": 1e-75},
    {"keys": 1e200, "queries": 1e-200},
    {"required": 1e-150},
    {"required": 1e150},
]


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_the_gradient_has_the_scale_of_the_data(gradients_of, soft, scale):
    data, selected, mask = program(soft)
    rows = scale.get("keys", 1.0) * scale.get("queries", 1.0)
    required = scale.get("required", 1.0)
    weight = required / rows
    powers = {"W": weight, "norm": weight, "margin": 1 / weight, "shortfall": required}
    powers["multipliers"] = weight / rows if soft else 1 / rows
    scaled = {name: x * scale.get(name, 1.0) for name, x in data.items()}
    if soft:
        scaled["slack"] = data["slack"] * (weight / rows)
    here = gradients_of(data, selected, mask, weights_of(soft))
    there = gradients_of(scaled, selected, mask, weights_of(soft, **powers))
    assert here["regular"].all() and there["regular"].all()
    for name in data:
        back = there[name] * (weight / rows if name == "slack" else scale.get(name, 1.0))
        np.testing.assert_allclose(back, here[name], rtol=SAME, atol=SAME * abs(here[name]).max())


# ---------------------------------------------------------------------- mixed scales, small and many programs


def test_examples_of_other_scales_that_require_as_much_change_nothing(gradients_of):
    data, selected, mask = program(False)
    scale = np.array([1e9, 1e-9])
    mixed = data | {
        "keys": data["keys"] * scale[:, None, None],
        "required": data["required"] * scale,
    }
    weights = weights_of(False)
    here = gradients_of(data, selected, mask, weights)
    scaled = weights | {"multipliers": weights["multipliers"] * scale[:, None]}
    there = gradients_of(mixed, selected, mask, scaled)
    assert there["regular"].all()
    back = {"keys": there["keys"] * scale[:, None, None], "required": there["required"] * scale}
    for name in data:
        x = back.get(name, there[name])
        np.testing.assert_allclose(x, here[name], rtol=1e-6, atol=1e-6 * abs(here[name]).max())


@pytest.mark.parametrize("exponent", [0, 9, 14])
def test_the_norm_has_the_degrees_of_its_data(gradients_of, exponent):
    data, selected, mask = program(False)
    data["keys"] = data["keys"] * 10.0 ** np.array([exponent, -exponent])[:, None, None]
    gradients = gradients_of(data, selected, mask, {"norm": np.ones(RUNS)})
    size = attsvm.torch.max_margin(
        **{k: torch.tensor(x) for k, x in data.items()},
        selected=selected,
        mask=torch.tensor(mask).expand(N, T),
    ).norm.sum()
    for name, degree in {"keys": -1, "queries": -1, "required": 1}.items():
        assert (gradients[name] * data[name]).sum() == pytest.approx(degree * size.item(), rel=SAME)


SHAPES = [
    (1, 1, 2, 1, 1),
    (1, 1, 3, 4, 1),
    (1, 3, 4, 1, 2),
    (1, 2, 3, 2, 1),
    (9, 2, 3, 3, 2),
    (2, 5, 2, 3, 3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_small_and_many_programs_have_the_slope_of_the_solver(library, shape):
    runs, n, T, d, e = shape
    rng = np.random.default_rng(sum(shape))
    keys, queries = rng.normal(size=(runs, n, T, d)), rng.normal(size=(runs, n, e))
    logits = np.einsum("rntd,rde,rne->rnt", keys, rng.normal(size=(runs, d, e)), queries)
    selected, bar = logits.argmax(-1), rng.normal(size=(runs, d, e))
    if library == "torch":
        x = torch.tensor(keys, requires_grad=True)
        result = attsvm.torch.max_margin(x, selected, torch.tensor(queries))
        gradient = torch.autograd.grad((result.W * torch.tensor(bar)).sum(), x)[0].numpy()
    else:
        with jax.enable_x64(True):
            result_of = partial(attsvm.jax.max_margin, selected=selected, queries=jnp.asarray(queries))
            gradient = np.asarray(jax.grad(lambda x: (result_of(x).W * bar).sum())(jnp.asarray(keys)))
    direction, step = rng.normal(size=keys.shape), 1e-6
    ends = [
        (att.max_margin(att.Tokens(keys + t * step * direction, queries), selected).W * bar).sum()
        for t in (1, -1)
    ]
    expected = (ends[0] - ends[1]) / (2 * step)
    assert (gradient * direction).sum() == pytest.approx(expected, rel=1e-5, abs=1e-8)
    assert abs(expected) > 1e-3


def test_a_token_alone_has_results_and_no_gradient(gradients_of):
    data, selected, _ = program(False)
    alone = np.zeros(T, bool)
    alone[0] = True
    gradients = gradients_of(data, 0 * selected, alone, weights_of(False) | {"margin": np.zeros(RUNS)})
    assert gradients.pop("regular").all()
    assert not any(x.any() for x in gradients.values())


@pytest.mark.parametrize("norm", ["frobenius", "l1", "linf", "nuclear", "lp:3"])
def test_norm_and_slope_are_those_of_a_general_solver(norm):
    pytest.importorskip("cvxpy", reason="needs cvxpy")
    from tests.program.oracles import smallest

    rng = np.random.default_rng(5)
    keys, queries, selected = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3)), np.array([0, 1])
    x = torch.tensor(keys, requires_grad=True)
    result = attsvm.torch.max_margin(x, selected, torch.tensor(queries), norm=norm)
    (gradient,) = torch.autograd.grad(result.norm, x)
    direction, step = rng.normal(size=keys.shape), 1e-3

    def value(t):
        tokens = att.Tokens(keys + t * step * direction, queries)
        return smallest(tokens, selected, as_norm(norm))[0]

    assert result.norm.item() == pytest.approx(value(0), rel=1e-6)
    slope = (value(1) - value(-1)) / (2 * step)
    assert (gradient.numpy() * direction).sum() == pytest.approx(slope, rel=1e-3, abs=1e-4)
