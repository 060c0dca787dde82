"""Peers of AttentionProbe: `fit(store, labels, seed)` gives a function from stores to scores.

probelab comes from the index; EleutherAI's probe is a plain loop after the recipe of their repository
(L-BFGS on all sequences, raw tokens, a bias by position, one weight decay for all), with the decay chosen on
a fifth of the training part; without any, its default, it overfits wherever it was tried here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from attsvm.probe import AttentionProbe, TokenStore

Scores = Callable[[TokenStore], np.ndarray]
DECAYS = (0.1, 0.03, 0.01)


def pooled(pool: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Scores]:
    """Logistic regression on one vector per sequence; its C by four folds."""

    def vectors(store: TokenStore) -> np.ndarray:
        return np.stack([pool(x.astype(float)) for x in store])

    def fit(store: TokenStore, labels: np.ndarray, seed: int) -> Scores:
        warnings.simplefilter("ignore", FutureWarning)  # its defaults are about to change
        search = LogisticRegressionCV(Cs=np.logspace(-4, 0, 9), max_iter=2000, cv=4, scoring="neg_log_loss")
        model = make_pipeline(StandardScaler(), search).fit(vectors(store), labels)
        return lambda unseen: model.decision_function(vectors(unseen))

    return fit


mean_pooling, max_pooling = pooled(lambda x: x.mean(0)), pooled(lambda x: x.max(0))
last_token = pooled(lambda x: x[-1])


def ours(**settings: object) -> Callable[..., Scores]:
    """AttentionProbe in the shape of its peers; without random starts it has no use for the seed."""

    def fit(store: TokenStore, labels: np.ndarray, seed: int) -> Scores:
        return AttentionProbe(**settings).fit(store, labels).decision_function

    return fit


def probelab(kind: str) -> Callable[..., Scores]:
    """A probe of probelab with its defaults; it stops early on a fifth that it sets aside itself."""

    def acts(store: TokenStore):
        import torch
        from probelab import Activations

        flat = torch.tensor(np.concatenate(list(store))).float()
        return Activations.from_flat(flat, torch.tensor(np.cumsum([0, *store.lengths])))

    def fit(store: TokenStore, labels: np.ndarray, seed: int) -> Scores:
        import torch
        from probelab import probes as kinds

        torch.set_num_threads(1)
        probe = getattr(kinds, kind)(seed=seed).fit(acts(store), torch.tensor(labels))

        def scores(unseen: TokenStore) -> np.ndarray:
            with torch.no_grad():
                return probe.predict_logits(acts(unseen)).numpy().astype(float)

        return scores

    return fit


def eleuther(store: TokenStore, labels: np.ndarray, seed: int, decays=DECAYS) -> Scores:
    """After EleutherAI/attention-probes: q = 0 at the start, L-BFGS with strong Wolfe steps."""
    order = np.random.default_rng(seed).permutation(len(labels))
    validation, training = np.sort(order[: len(labels) // 5]), np.sort(order[len(labels) // 5 :])
    losses = []
    for decay in decays:
        margins = (2 * labels[validation] - 1) * _eleuther(store[training], labels[training], decay, seed)(
            store[validation]
        )
        losses.append(np.logaddexp(0, -margins).mean())
    return _eleuther(store, labels, decays[int(np.argmin(losses))], seed)


def _eleuther(store: TokenStore, labels: np.ndarray, decay: float, seed: int, most: int = 200) -> Scores:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    d = store.width
    value, query, position = torch.nn.Linear(d, 1), torch.zeros(d), torch.zeros(())
    weights = [value.weight, value.bias, *(torch.nn.Parameter(tensor) for tensor in (query, position))]

    def laid_out(sequences: TokenStore):
        x = torch.tensor(sequences.padded(np.concatenate(sequences.split()).astype(np.float32)))
        return x, torch.tensor(sequences.mask), torch.arange(x.shape[1]).float()

    def forward(x, mask, place):
        logits = (x @ weights[2] + place * weights[3]).masked_fill(~mask, -torch.inf)
        return (torch.softmax(logits, 1) * value(x)[..., 0]).sum(1)

    padded, truth = laid_out(store), torch.tensor(labels).float()
    optimizer = torch.optim.LBFGS(weights, line_search_fn="strong_wolfe", max_iter=most)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(forward(*padded), truth)
        loss = loss + decay / 2 * sum((w**2).sum() for w in weights)
        loss.backward()
        return loss

    optimizer.step(closure)

    def scores(unseen: TokenStore) -> np.ndarray:
        with torch.no_grad():
            blocks = [unseen[a : a + 500] for a in range(0, len(unseen), 500)]
            return np.concatenate([forward(*laid_out(block)).numpy() for block in blocks]).astype(float)

    return scores
