"""Small probes: of two classes, of three with two heads, on kernel features and tokens."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the probe needs the extra sklearn")


def sequences(n=60, d=12, seed=0, most=9):
    """Sequences (T_i, d) away from the origin, and for each its largest first feature."""
    rng = np.random.default_rng(seed)
    X = [rng.standard_normal((rng.integers(2, most), d)) + 3 for _ in range(n)]
    return X, np.array([x[:, 0].max() for x in X])


@pytest.fixture(scope="session")
def X():
    return sequences()[0]


@pytest.fixture(scope="session")
def y():
    return np.where(sequences()[1] > 4.2, "yes", "no")


@pytest.fixture
def planted():
    """Sequences of 3–9 Gaussian tokens; one of them carries a mark and, against it, the class."""
    rng = np.random.default_rng(0)
    lengths, labels = rng.integers(3, 10, 120), rng.integers(0, 2, 120)
    sequences, place = [rng.standard_normal((T, 8)) for T in lengths], rng.integers(0, lengths)
    for tokens, t, y in zip(sequences, place, labels, strict=True):
        tokens[t, :2] = 4.0, 3.0 * (2 * y - 1)
    return sequences, labels, place


@pytest.fixture(scope="session")
def probe(X, y):
    from attsvm.probe import AttentionProbe

    return AttentionProbe(head_ridge=0.01, prompt_ridge=0.01).fit(X, y)


@pytest.fixture(scope="session")
def three(X):
    from attsvm.probe import AttentionProbe

    classes = np.digitize(sequences()[1], [3.9, 4.6])
    return AttentionProbe(head_ridge=0.01, prompt_ridge=0.01, features=["linear", "last"]).fit(X, classes)


@pytest.fixture(scope="session")
def kernels(X, y):
    from attsvm.probe import AttentionProbe

    return AttentionProbe(head_ridge=0.01, prompt_ridge=0.01, features=["rbf", "linear"]).fit(X, y)


@pytest.fixture(params=["probe", "three", "kernels"])
def any_probe(request):
    return request.getfixturevalue(request.param)
