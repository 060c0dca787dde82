"""Norms by their names and counts such as 1e3 mean the same wherever one is expected."""

import numpy as np
import pytest

import attsvm as att
from attsvm._support.validation import as_integer
from attsvm.comparison.verdict import divergence
from attsvm.norms.names import as_norm

TOKENS, V = att.datasets.sphere(2, 3, 2, seed=0)
HEAD = att.Linear(V)
SELECTED = att.best_tokens(TOKENS, V)
PATH = att.Path(TOKENS, np.array([0, 1]), np.ones((2, 2, 2)), np.ones(2), np.zeros(2), "steps")

OF_A_NORM = {
    "max_margin": lambda norm: att.max_margin(TOKENS, SELECTED, norm).W,
    "separate": lambda norm: att.separate(np.array([[1.0, 2.0]]), norm).W,
    "selections": lambda norm: np.array([s.W for s in att.selections(TOKENS, V, norm)]),
    "label_svm": lambda norm: att.label_svm(TOKENS, SELECTED, norm).W,
    "Path.norm": lambda norm: PATH.norm(norm),
    "divergence": lambda norm: divergence(PATH.W, np.eye(2), norm),
    "steepest": lambda norm: np.array(repr(att.steepest(norm, 0.1))),
    "compositional": lambda norm: np.array(repr(att.compositional(0.1, norm=norm))),
    "Factored": lambda norm: np.array(repr(att.Factored(norm))),
}


@pytest.mark.parametrize("call", OF_A_NORM)
def test_a_norm_may_be_named(call):
    named, meant, another = (OF_A_NORM[call](norm) for norm in ("nuclear", att.nuclear, att.linf))
    np.testing.assert_array_equal(named, meant)
    assert named.shape != another.shape or (named != another).any()


@pytest.mark.parametrize(
    ("name", "norm"),
    [("frobenius", att.frobenius), ("LINF", att.linf), ("lp:1.5", att.Entrywise(1.5))]
    + [("schatten:3", att.Schatten(3)), ("longest-row", att.LongestRow())],
)
def test_names_are_those_of_the_command_line(name, norm):
    assert as_norm(name) == norm


def test_paths_of_radii_take_names_and_refuse_other_words():
    paths = [att.regularisation_path(TOKENS, HEAD, radii=[1.0], norm=n, starts=2.0) for n in ("l1", att.l1)]
    assert np.array_equal(paths[0].W, paths[1].W)
    with pytest.raises(ValueError, match="no norm 'l3'"):
        att.regularisation_path(TOKENS, HEAD, radii=[1.0], norm="l3")


def test_optimizers_of_torch_take_names():
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    from attsvm.torch import Compositional, SteepestDescent

    q, k = (torch.nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    one = SteepestDescent([{"params": [q]}, {"params": [k], "norm": "linf"}], 0.1, "spectral")
    assert [group["norm"] for group in one.param_groups] == [att.spectral, att.linf]
    assert Compositional([(q, k)], 0.1, "nuclear").param_groups[0]["norm"] == att.nuclear


# ---------------------------------------------------------------------- counts


@pytest.mark.parametrize("value", [3, 3.0, np.float32(3), np.int8(3)])
def test_a_whole_number_is_a_count_however_it_is_written(value):
    assert as_integer(value) == 3 and type(as_integer(value)) is int


@pytest.mark.parametrize("value", [3.5, np.nan, np.inf, "3", None, True])
def test_what_is_no_whole_number_stays_what_it_is(value):
    assert as_integer(value) is value


def test_counts_may_be_written_with_an_exponent():
    def trained(number, **options):
        steps, record, rank, batch = map(number, (20, 4, 1, 2))
        given = {"weight": att.KeyQuery(rank), "batch": att.Batches(batch)}
        return att.train(TOKENS, HEAD, optimizer=att.gd(0.1), steps=steps, record=record, **given)

    assert np.array_equal(trained(float).W, trained(int).W)
    drawn = [att.datasets.sphere(n, T, d, seed=0)[0].keys for n, T, d in ((2, 3, 2), (2.0, 3.0, 2.0))]
    assert np.array_equal(*drawn)
    for steps in (1e3 + 0.5, np.inf, "1e3", True, -1.0):
        with pytest.raises(ValueError, match=r"steps is .*Pass a positive integer"):
            att.train(TOKENS, HEAD, optimizer=att.gd(0.1), steps=steps)
