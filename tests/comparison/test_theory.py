"""What is proven is told with its reference; what is not is refused with the nearest case."""

import re

import numpy as np
import optax
import pytest

from attsvm import Linear, best_tokens, datasets, max_margin, train
from attsvm.comparison.theory import NoTheorem, limit_norm
from attsvm.norms import (
    Entrywise,
    LongestRow,
    RowWise,
    Schatten,
    frobenius,
    l1,
    linf,
    nuclear,
    spectral,
)
from attsvm.norms.factored import Factored
from attsvm.norms.layouts import HeadLayout
from attsvm.training.optimizers import adam, compositional, gd, mirror, per_block, polyak, steepest
from attsvm.training.weights import Diagonal, FullWeight, KeyQuery, MultiHead

pytestmark = pytest.mark.quick


def falling(k):
    """Steps whose sum is infinite and whose squares have a finite one."""
    return 0.1 * (k + 1.0) ** -0.6


def falling_slowly(k):
    """Steps whose squares sum to infinity, too."""
    return 0.1 * (k + 1.0) ** -0.5


def printed(value):
    """A name of a case that is the same in every process: functions print their address."""
    return re.sub(r" at 0x\w+", "", str(value))


@pytest.mark.parametrize(
    ("weight", "optimizer", "norm", "standing"),
    [
        (FullWeight(), gd(0.1), frobenius, "theorem"),
        (FullWeight(), steepest(frobenius, 0.1), frobenius, "theorem"),
        (FullWeight(), polyak(), frobenius, "theorem"),
        (FullWeight(), mirror(3, 0.1, normalised=False), Entrywise(3), "theorem"),
        (FullWeight(), mirror(3, 0.1), Entrywise(3), "conjecture"),
        (FullWeight(), steepest(linf, 0.1), linf, "theorem for flows"),
        (FullWeight(), steepest(linf, 0.1, 0.9), linf, "conjecture"),
        (FullWeight(), steepest(spectral, 0.1), spectral, "theorem for flows"),
        (FullWeight(), steepest(spectral, falling), spectral, "theorem"),
        (KeyQuery(), gd(0.1), nuclear, "theorem"),
        (KeyQuery(rank=3), steepest(frobenius, 0.1), nuclear, "theorem for flows"),
        (KeyQuery(), steepest(frobenius, falling), nuclear, "theorem"),
        (KeyQuery(), polyak(), nuclear, "theorem for flows"),
        (Diagonal(2), gd(0.1), l1, "theorem for flows"),
        (Diagonal(2, separate=True), gd(0.1), l1, "theorem for flows"),
        (KeyQuery(), steepest(Schatten(4), falling_slowly), Schatten(2), "theorem for flows"),
        (Diagonal(), gd(0.1), frobenius, "theorem"),
        (Diagonal(), steepest(spectral, 0.1), frobenius, "theorem"),  # of a vector the same steps
        (KeyQuery(), steepest(spectral, 0.1), spectral, "theorem for flows"),
        (KeyQuery(separate=True), steepest(Schatten(4), 0.1), Schatten(2), "theorem for flows"),
        (KeyQuery(), steepest(Schatten(3), 0.1), Schatten(1.5), "theorem for flows"),
        (KeyQuery(), per_block(steepest(spectral, 0.1)), spectral, "theorem for flows"),
        (KeyQuery(), steepest(LongestRow(), 0.1), "max-norm", "theorem for flows"),
        (Diagonal(2), steepest(LongestRow(), 0.1), linf, "theorem for flows"),
        (Diagonal(), steepest(LongestRow(), 0.1), linf, "theorem for flows"),
        (Diagonal(2), steepest(Entrywise(3), 0.1), Entrywise(1.5), "theorem for flows"),
        (Diagonal(2, separate=True), steepest(Entrywise(3), 0.1), Entrywise(1.5), "theorem for flows"),
        (Diagonal(2), steepest((Entrywise(3), Entrywise(6)), 0.1), Entrywise(2), "theorem for flows"),
        (KeyQuery(), steepest((Schatten(3), Schatten(6)), 0.1), Schatten(2), "theorem for flows"),
        (KeyQuery(), steepest(("spectral", "frobenius"), 0.1), Schatten(2), "theorem for flows"),
        (Diagonal(3), steepest((linf, linf, Entrywise(2)), 0.1), Entrywise(2), "theorem for flows"),
        (Diagonal(2, separate=True), steepest(linf, 0.1), linf, "theorem for flows"),
        (Diagonal(2), steepest(spectral, 0.1), l1, "theorem for flows"),
    ],
    ids=printed,
)
def test_each_known_limit_has_its_norm_and_standing(weight, optimizer, norm, standing):
    limit = limit_norm(weight, optimizer)
    assert limit.norm == norm
    assert limit.standing == standing
    assert "et al." in limit.reference or "Theorem" in limit.reference


@pytest.mark.parametrize(
    ("weight", "optimizer", "nearest"),
    [
        (KeyQuery(), steepest(linf, 0.1), "FullWeight with the same steps → l∞"),
        (KeyQuery(), steepest(linf, 0.1), "Grothendieck"),
        (KeyQuery(), steepest(Schatten(1), 0.1), "Schatten 0.5, a quasi-norm"),
        (Diagonal(2), steepest(l1, 0.1), "l0.5, a quasi-norm"),
        (FullWeight(), steepest(linf, 0.1, decay=0.01), "in l∞ at radius 1/decay = 100"),
        (KeyQuery(), steepest(spectral, 0.1, decay=0.01), "without decay → spectral"),
        (KeyQuery(), steepest(spectral, 0.1, momentum=0.9), "FullWeight with the same steps → spectral"),
        (KeyQuery(), mirror(3, 0.1), "FullWeight with the same steps → l3"),
        (FullWeight(), optax.adam(0.1), "eps=0"),
        (Diagonal(2), optax.adagrad(0.1), "not Adam's, as in RMSprop and AdaGrad"),
    ],
    ids=[
        "sign on (K, Q)",
        "what is known of sign",
        "nuclear steps on (K, Q)",
        "coordinates of a diagonal",
        "decay of W",
        "decay of (K, Q)",
        "Muon with momentum on (K, Q)",
        "mirror on (K, Q)",
        "Adam on W",
        "AdaGrad on a diagonal",
    ],
)
def test_an_unknown_limit_names_the_nearest_case(weight, optimizer, nearest):
    with pytest.raises(NoTheorem, match=nearest):
        limit_norm(weight, optimizer)


@pytest.mark.parametrize(
    ("weight", "optimizer", "batch", "norm", "standing"),
    [
        (FullWeight(), adam(0.1, eps=0.0), None, linf, "conjecture"),
        (FullWeight(), steepest(linf, 0.1, 0.9), 4, linf, "conjecture"),
        (FullWeight(), steepest(frobenius, 0.1, [0.0, 0.0]), None, frobenius, "theorem"),
        (FullWeight(), steepest(frobenius, 0.1, [0.0, 0.9]), None, frobenius, "conjecture"),
        (KeyQuery(), compositional(0.1), None, spectral, "conjecture"),
        (Diagonal(3), steepest(Entrywise(6), 0.1), None, Entrywise(2), "theorem for flows"),
        (MultiHead(3), steepest(frobenius, 0.1), None, frobenius, "conjecture"),
        (MultiHead(3, norm="apart"), steepest(spectral, 0.1), None, spectral, "conjecture"),
        (MultiHead(3, KeyQuery()), steepest(Schatten(4), 0.1), None, Schatten(2), "conjecture"),
        (MultiHead(3, norm="concatenated"), steepest(Entrywise(3), 0.1), None, Entrywise(3), "conjecture"),
    ],
    ids=[
        "Adam",
        "Signum of batches",
        "no momentum in any run",
        "momentum in one run",
        "compositional",
        "three diagonals",
        "heads",
        "heads apart",
        "factors of heads",
        "vectors side by side",
    ],
)
def test_what_people_train_has_its_norm_and_standing(weight, optimizer, batch, norm, standing):
    limit = limit_norm(weight, optimizer, batch)
    assert limit.norm == norm and limit.standing == standing


@pytest.mark.parametrize(
    ("weight", "optimizer", "batch", "nearest"),
    [
        (FullWeight(), adam(0.1), None, "eps=0"),
        (FullWeight(), adam(0.1, eps=0.0, decay=0.01), None, "in l∞ at radius 1/decay = 100"),
        (FullWeight(), adam(0.1, eps=0.0), 1, "all examples at once → l∞"),
        (FullWeight(), steepest(linf, 0.1), 1, "all examples at once → l∞"),
        (Diagonal(3), gd(0.1), None, "l0.666667, a quasi-norm"),
        (KeyQuery(), compositional(0.1, decay=0.01), None, "without decay → spectral"),
        (MultiHead(3), adam(0.1, eps=0.0), None, 'of the longest.*norm="apart" → l∞'),
        (MultiHead(3, KeyQuery()), compositional(0.1), None, 'of the longest.*norm="apart" → spectral'),
        (MultiHead(3, norm=HeadLayout.weights(3)), adam(0.1, eps=0.0), None, "no norm of all heads is known"),
        (MultiHead(3, KeyQuery(), HeadLayout.fused(3)), steepest(linf, 0.1), None, "on the factors max"),
    ],
    ids=[
        "eps",
        "AdamW",
        "Adam of batches",
        "sign of batches",
        "three diagonals",
        "compositional",
        "Adam of heads",
        "compositional of heads",
        "Adam side by side",
        "sign on fused factors",
    ],
)
def test_what_people_train_without_a_limit_is_told_the_nearest(weight, optimizer, batch, nearest):
    with pytest.raises(NoTheorem, match=nearest):
        limit_norm(weight, optimizer, batch)


@pytest.mark.parametrize(
    ("weight", "optimizer", "layout", "standing"),
    [
        (MultiHead(3), steepest(spectral, 0.1), "[W1], [W2], [W3]", "theorem for flows"),
        (MultiHead(3, norm="concatenated"), steepest(spectral, 0.1), "[W1 W2 W3]", "theorem for flows"),
        (MultiHead(2, norm="concatenated"), steepest(spectral, 0.1, 0.9), "[W1 W2]", "conjecture"),
        (MultiHead(2, KeyQuery()), steepest(spectral, 0.1), "[K1; K2], [Q1; Q2]", "conjecture"),
        (MultiHead(2, KeyQuery(), "concatenated"), steepest(spectral, 0.1), "[K1 K2], [Q1 Q2]", "conjecture"),
        (
            MultiHead(2, KeyQuery(), HeadLayout.fused(2)),
            steepest(Schatten(4), 0.1),
            "[K1 K2], [Q1 Q2]",
            "theorem for flows",
        ),
        (
            MultiHead(2, KeyQuery(), HeadLayout.grouped_queries(1, 2)),
            steepest(spectral, 0.1),
            "[K1], [Q1 Q2]",
            "conjecture",
        ),
    ],
)
def test_heads_that_share_a_matrix_have_a_joint_norm(weight, optimizer, layout, standing):
    limit = limit_norm(weight, optimizer)
    assert str(limit.layout) == layout
    assert limit.norm == f"norm of heads under {optimizer.rule.norm} steps on {layout}"
    assert limit.standing == standing


def test_a_theorem_is_told_with_its_hypotheses():
    for weight, optimizer in [
        (FullWeight(), gd(0.1)),
        (FullWeight(), polyak()),
        (FullWeight(), mirror(3, 0.1, normalised=False)),
        (KeyQuery(), gd(0.1)),
    ]:
        assert limit_norm(weight, optimizer).standing == "theorem"
        assert limit_norm(weight, optimizer).hypotheses


@pytest.mark.parametrize(
    ("weight", "optimizer", "words"),
    [
        (KeyQuery(), steepest(Schatten(4), 0.1), ("score lower", "condition (*)", "lr² t", "rank at least")),
        (
            KeyQuery(),
            steepest(Schatten(4), falling),
            ("score lower", "condition (*)", "squares of the steps sum to a finite"),
        ),
        (KeyQuery(), gd(0.1), ("condition (*)", "small at one time")),
        (
            Diagonal(2),
            steepest(Entrywise(4), 0.1),
            ("no |k_j| = |q_j|", "unique multipliers", "lr² t"),
        ),
        (KeyQuery(), steepest(LongestRow(), 0.1), ("majorise", "d + e")),
        (FullWeight(), steepest(spectral, 0.1), ("score lower", "lr² t")),
    ],
    ids=["flow", "steps", "plain descent", "diagonals", "rows", "W"],
)
def test_a_theorem_of_this_package_prints_every_hypothesis(weight, optimizer, words):
    limit = limit_norm(weight, optimizer)
    assert limit.standing.startswith("theorem") and "law_of_halves_proofs" in limit.reference
    printed = "; ".join(map(str, limit.hypotheses))
    assert all(word in printed for word in words), printed
    assert "condition (*)" not in str(limit_norm(Diagonal(), optimizer).hypotheses)  # W needs none


def test_a_limit_that_is_ours_names_a_claim_that_exists():
    from attsvm_lab.claims import claims

    steps = [nuclear, Schatten(2), Schatten(4), spectral, Entrywise(2), Entrywise(3), linf]
    named = []
    for weight in (FullWeight(), Diagonal(), KeyQuery(), Diagonal(2)):
        for norm in steps:
            try:
                named.append(limit_norm(weight, steepest(norm, 0.1)).claim)
            except NoTheorem:
                continue
    assert set(filter(None, named)) <= set(claims)
    assert len(set(named)) >= 7


class Weighted:
    """N(W) = ‖diag(1, 2, …) W‖_F: p = 2, and not the Frobenius norm."""

    p = 2.0
    dual, value, steepest = frobenius, frobenius.value, frobenius.steepest


def test_a_norm_of_ones_own_with_p_2_is_not_taken_for_the_frobenius_norm():
    own = Weighted()
    limit = limit_norm(FullWeight(), steepest(own, 0.1))
    assert (limit.norm, limit.standing) == (own, "theorem for flows")
    assert Factored(own).closed is None
    with pytest.raises(NoTheorem, match="no closed form"):
        limit_norm(KeyQuery(), steepest(own, 0.1))
    assert Factored(RowWise(2)).closed == nuclear  # ours with p = 2 is


@pytest.mark.parametrize(
    ("weight", "optimizer", "message"),
    [
        (gd(0.1), FullWeight(), "is not a weight"),
        ("kq", gd(0.1), "is not a weight"),
        (KeyQuery(), "muon", "is not an optimizer"),
        (KeyQuery(), 0.1, "is not an optimizer"),
    ],
    ids=printed,
)
def test_what_is_no_weight_or_optimizer_is_not_called_an_open_question(weight, optimizer, message):
    with pytest.raises(TypeError, match=message):
        limit_norm(weight, optimizer)


@pytest.mark.parametrize(
    ("rule", "alike"),
    [(gd(0.5), True), (mirror(3.0, 0.1, normalised=False), True), (steepest(frobenius, 0.1), False)],
)
def test_heads_apart_end_as_those_together_where_steps_are_not_normalised(rule, alike):
    """One training by two names has one limit, lengths included."""
    tokens, _ = datasets.sphere(3, 4, 5, seed=0)
    head = Linear(np.random.default_rng(0).standard_normal((2, 5)))
    ways = [MultiHead(2, norm=across) for across in ("joint", "apart")]
    joint, apart = (train(tokens, head, weight=way, optimizer=rule, steps=20).final for way in ways)
    told = [limit_norm(way, rule).hypotheses for way in ways]
    assert np.allclose(joint, apart, rtol=1e-9) == alike == (told[0] == told[1])


def test_beside_a_trained_head_the_limit_is_the_offset_program():
    """A mixture of steps: W in one norm, the head in another."""
    W, signs, along = steepest(spectral, 0.1), steepest(linf, 0.1), steepest(frobenius, 0.1)
    proven, measured = (limit_norm(FullWeight(), W, train_head=head) for head in (along, signs))
    assert (proven.norm, proven.standing) == (spectral, "theorem for flows")
    assert (measured.norm, measured.standing) == (spectral, "conjecture")
    assert limit_norm(KeyQuery(), W, train_head=along).standing == "conjecture"
    assert all("offset program" in str(limit.hypotheses) for limit in (proven, measured))
    assert "offset program" not in str(limit_norm(FullWeight(), W).hypotheses)
    for head in (gd(0.1), steepest(linf, 0.1, momentum=0.9), steepest(linf, 0.1, decay=0.1)):
        with pytest.raises(NoTheorem, match="must grow alike"):
            limit_norm(FullWeight(), W, train_head=head)


@pytest.mark.parametrize("p", [1, 2, 3, np.inf])
@pytest.mark.parametrize("family", [Entrywise, Schatten, RowWise])
def test_a_norm_that_is_named_has_a_program(family, p):
    tokens, v = datasets.sphere(2, 3, 3, seed=0)
    selected = best_tokens(tokens, v)
    for weight in (FullWeight(), Diagonal(), KeyQuery(), Diagonal(2)):
        try:
            norm = limit_norm(weight, steepest(family(p), 0.1)).norm
        except NoTheorem:
            continue
        if norm != "max-norm":  # whose program attsvm_lab.programs has
            assert max_margin(tokens, selected, norm).certified
    if family is RowWise and p != 2:
        with pytest.raises(NoTheorem, match="no program here"):
            limit_norm(FullWeight(), steepest(family(p), 0.1))
        with pytest.raises(ValueError, match="no program for the norm"):
            max_margin(tokens, selected, family(p))


def test_the_words_that_an_error_recommends_for_programs_have_one():
    tokens, v = datasets.sphere(2, 3, 3, seed=0)
    with pytest.raises(ValueError, match="for steps also longest-row") as error:
        max_margin(tokens, best_tokens(tokens, v), "longest")
    words = str(error.value).partition("Pass ")[2].partition(";")[0].split(" with")[0]
    for word in re.split(", | or ", words.replace(":P", ":3")):
        assert max_margin(tokens, best_tokens(tokens, v), word).certified
