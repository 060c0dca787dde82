"""Random corpora, and the toy with a closed form."""

from __future__ import annotations

import numpy as np

from attsvm.next_token.corpus import Corpus, Ids
from attsvm.numbers import Float


def random_corpus(n: int, T: int, V: int, seed: int = 0, *, copies: bool = False, group: int = 1) -> Corpus:
    """A corpus in which every query ranks the vocabulary, and every sentence chooses a top token.

    Sentences are T different tokens, drawn uniformly; the last is the query. Each query has its own
    hidden random order of the vocabulary, so all priority graphs are acyclic: the corpus is realisable. The
    collocation is a random permutation, or the identity with `copies`.
    group: so many neighbours in the order are equally good, and a sentence draws one of the best group at
        random. With two or more, groups become components: ties inside, an order between them.
    Draw order: collocation, hidden orders, sentences, and with groups the choices.
    """
    rng, collocation = _generator_and_collocation(n, T, V, seed, copies)
    if group < 1:
        raise ValueError(f"group is {group}. Pass how many tokens are equally good, 1 for an order.")
    rank = np.argsort(rng.random((V, V)), axis=-1) // group
    ids = _different_tokens(rng, n, T, V)
    level = rank[ids[:, -1:], ids].astype(float)
    best = np.argmax(level if group == 1 else level + rng.random((n, T)), axis=-1)
    return Corpus(ids, collocation[ids[np.arange(n), best]], _numbers(V), collocation)


def noisy_corpus(n: int, T: int, V: int, seed: int = 0, *, copies: bool = False) -> Corpus:
    """The same sentences with a winner drawn at random in each: orders contradict each other."""
    rng, collocation = _generator_and_collocation(n, T, V, seed, copies)
    ids = _different_tokens(rng, n, T, V)
    return Corpus(ids, collocation[ids[np.arange(n), rng.integers(T, size=n)]], _numbers(V), collocation)


def log2_toy() -> Corpus:
    """Five sentences of one query whose finite part is log 2.

        0 1 3 → 0 (twice),  0 1 3 → 1,  0 2 3 → 0 (twice)

    Components {0, 1}, {2}, {3}: the direction of the query's logits is (½, ½, −½, −½) and
    w_0 − w_1 → log 2.
    """
    return Corpus.of([[*"0130"], [*"0130"], [*"0131"], [*"0230"], [*"0230"]], vocabulary="0123")


def random_embeddings(V: int, d: int, seed: int = 0) -> Float:
    """V random unit vectors in d dimensions (V, d): rows of a Gaussian matrix, scaled to length one."""
    E = np.random.Generator(np.random.PCG64(seed)).standard_normal((V, d))
    return np.asarray(E / np.linalg.norm(E, axis=-1, keepdims=True))


def _numbers(V: int) -> tuple[str, ...]:
    return tuple(map(str, range(V)))


def _generator_and_collocation(
    n: int, T: int, V: int, seed: int, copies: bool
) -> tuple[np.random.Generator, Ids]:
    if not (n >= 1 and 1 <= T <= V):
        raise ValueError(f"n={n}, T={T}, V={V}. Pass n ≥ 1 and 1 ≤ T ≤ V: a sentence has T different tokens.")
    rng = np.random.Generator(np.random.PCG64(seed))
    collocation = rng.permutation(V)
    return rng, np.arange(V) if copies else collocation


def _different_tokens(rng: np.random.Generator, n: int, T: int, V: int) -> Ids:
    """n draws of T different tokens. Where repetitions are rare, the sentences with one are drawn again."""
    if T * T > V:
        return np.argsort(rng.random((n, V)), axis=-1)[:, :T]
    ids = rng.integers(V, size=(n, T))
    while True:
        ranked = np.sort(ids, axis=-1)
        repeated = (ranked[:, 1:] == ranked[:, :-1]).any(-1)
        if not repeated.any():
            return ids
        ids[repeated] = rng.integers(V, size=(int(repeated.sum()), T))
