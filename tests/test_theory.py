"""What is proven is told with its reference; what is not is refused with the nearest case."""

import optax
import pytest

from attsvm.norms import Entrywise, frobenius, l1, linf, nuclear, spectral
from attsvm.theory import NoTheorem, limit_norm
from attsvm.training.optimizers import gd, mirror, polyak, steepest
from attsvm.training.weights import Diagonal, DiagonalKeyQuery, FullWeight, KeyQuery

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("weight", "optimizer", "norm", "standing"),
    [
        (FullWeight(), gd(0.1), frobenius, "theorem"),
        (FullWeight(), steepest(frobenius, 0.1), frobenius, "theorem"),
        (FullWeight(), polyak(), frobenius, "theorem"),
        (FullWeight(), mirror(3, 0.1, normalised=False), Entrywise(3), "theorem"),
        (FullWeight(), mirror(3, 0.1), Entrywise(3), "conjecture"),
        (FullWeight(), steepest(linf, 0.1), linf, "conjecture"),
        (FullWeight(), steepest(spectral, 0.1), spectral, "conjecture"),
        (KeyQuery(), gd(0.1), nuclear, "regularisation path only"),
        (KeyQuery(rank=3), steepest(frobenius, 0.1), nuclear, "regularisation path only"),
        (DiagonalKeyQuery(), gd(0.1), l1, "theorem"),
        (Diagonal(), gd(0.1), frobenius, "theorem"),
    ],
    ids=str,
)
def test_each_known_limit_has_its_norm_and_standing(weight, optimizer, norm, standing):
    limit = limit_norm(weight, optimizer)
    assert limit.norm == norm
    assert limit.standing == standing
    assert "et al." in limit.reference


@pytest.mark.parametrize(
    ("weight", "optimizer", "nearest"),
    [
        (KeyQuery(), steepest(linf, 0.1), "FullWeight with the same steps → l∞"),
        (KeyQuery(), mirror(3, 0.1), "FullWeight with the same steps → l3"),
        (FullWeight(), optax.adam(0.1), "steepest"),
        (DiagonalKeyQuery(), optax.adam(0.1), "→ l1"),
    ],
    ids=["sign on (K, Q)", "mirror on (K, Q)", "Adam on W", "Adam on a diagonal"],
)
def test_an_unknown_limit_names_the_nearest_case(weight, optimizer, nearest):
    with pytest.raises(NoTheorem, match=nearest):
        limit_norm(weight, optimizer)
