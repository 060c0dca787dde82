"""The programs of next-token prediction: closed forms, an independent solver, certificates."""

from dataclasses import replace

import cvxpy
import numpy as np
import pytest

from attsvm import next_token as nt

EXACT = 1e-12  # closed forms, a few roundings away


def test_the_feed_forward_program_of_orthonormal_tokens_has_its_closed_form():
    corpus = nt.random_corpus(10, 3, 8, seed=2)
    expected = np.full((8, 8), -1 / 8)
    expected[corpus.collocation, np.arange(8)] += 1
    general, decoupled = nt.feed_forward_program(corpus, np.eye(8)), nt.feed_forward_program(corpus)
    np.testing.assert_allclose(general.W, expected, atol=EXACT)
    np.testing.assert_allclose(decoupled.W, expected, atol=EXACT)
    assert general.certified and decoupled.certified


@pytest.mark.parametrize("corpus", [nt.random_corpus(120, 5, 20), nt.log2_toy()])
def test_decoupling_by_query_solves_the_same_program(corpus):
    whole, parts = nt.graph_program(corpus, np.eye(corpus.V)), nt.graph_program(corpus)
    np.testing.assert_allclose(parts.W, whole.W, atol=1e-9)
    assert whole.certified and parts.certified


def test_a_rotation_of_orthonormal_tokens_rotates_the_solution():
    corpus = nt.random_corpus(60, 4, 10, seed=1)
    E = np.linalg.qr(np.random.default_rng(0).standard_normal((10, 10)))[0]
    W = nt.graph_program(corpus, E).W
    np.testing.assert_allclose(E @ W @ E.T, nt.graph_program(corpus).W, atol=1e-9)


def cvxpy_graph_program(corpus, E):
    """Every pair of every query's graph, written out with reachability instead of sentences."""
    graph, W = nt.Priorities.of(corpus), cvxpy.Variable((E.shape[1], E.shape[1]))
    rows = []
    for q, x, y, strict in zip(graph.query, graph.upper, graph.lower, graph.strict, strict=True):
        difference = (E[x] - E[y]) @ W @ E[q]
        rows.append(difference >= 1 if strict else difference == 0)
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(W)), rows).solve(
        cvxpy.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13
    )
    return W.value


@pytest.mark.parametrize("d", [8, 11])
def test_graph_svm_agrees_with_cvxpy_on_cyclic_data(d):
    corpus = nt.noisy_corpus(25, 3, 8, seed=4, copies=True)
    E = nt.random_embeddings(8, d, seed=1)
    solution = nt.graph_program(corpus, E)
    assert solution.certified
    assert not nt.Priorities.of(corpus).realisable
    np.testing.assert_allclose(solution.W, cvxpy_graph_program(corpus, E), atol=1e-5)


def test_the_toy_ties_two_tokens_above_the_others():
    np.testing.assert_allclose(nt.graph_program(nt.log2_toy()).W[:, 3], [0.5, 0.5, -0.5, -0.5])


def test_the_attention_program_refuses_cycles():
    for solve in (nt.attention_program, lambda c: nt.attention_program(c, np.eye(20))):
        with pytest.raises(nt.Unrealisable, match="not realisable"):
            solve(nt.noisy_corpus(120, 5, 20))


def test_repeated_tokens_change_no_program():
    once = nt.Corpus.of([[*"abqa"], [*"bcqb"]])
    often = nt.Corpus.of([[*"ababqa"], [*"bbcqqb"]])
    E = nt.random_embeddings(4, 5, seed=0)
    np.testing.assert_allclose(nt.graph_program(often, E).W, nt.graph_program(once, E).W, atol=1e-9)


@pytest.mark.parametrize("program", [nt.attention_program, nt.feed_forward_program])
@pytest.mark.parametrize("change", [lambda W: 0.9 * W, lambda W: 1.1 * W, lambda W: W[::-1]])
def test_another_weight_is_not_certified_by_the_blocks(program, change):
    solution = program(nt.random_corpus(40, 4, 8))
    assert solution.certified
    assert not replace(solution, W=change(solution.W)).certified


def test_a_logit_that_no_query_asks_for_is_not_certified():
    solution = nt.graph_program(nt.Corpus.of([[*"abqa"]], vocabulary="abqz"))
    longer = solution.W + 1e-3 * (solution.W == 0)
    assert solution.certified
    assert not replace(solution, W=longer).certified


def test_more_dimensions_than_tokens_are_solved_in_their_span():
    corpus, E = nt.random_corpus(60, 4, 8, seed=0), nt.random_embeddings(8, 90, seed=0)
    solution = nt.attention_program(corpus, E)
    assert solution.W.shape == (90, 90)
    assert solution.certified


def test_embeddings_that_cannot_express_the_orders_are_not_separable():
    from attsvm.program.solution import NotSeparable

    with pytest.raises(NotSeparable):
        nt.attention_program(nt.random_corpus(200, 5, 12), nt.random_embeddings(12, 2))


@pytest.mark.parametrize("embeddings", [np.eye(3), np.full((20, 20), np.nan), np.ones(20)])
def test_bad_embeddings_are_refused(embeddings):
    with pytest.raises(ValueError, match="embeddings has"):
        nt.attention_program(nt.random_corpus(20, 3, 20), embeddings)


@pytest.mark.parametrize("seed", range(3))
def test_the_program_ties_pairs_of_the_extended_order_and_reverses_none(seed):
    """Rounding would rank one or two in a hundred of the ties, some of them the wrong way."""
    corpus = nt.random_corpus(120, 5, 20, seed=seed)
    W = nt.attention_program(corpus).W
    right, pairs = nt.extended_pairs(corpus, W).sum(-1)
    assert 0.84 < right / pairs < 0.92
    assert not nt.extended_pairs(corpus, -W)[0].any()
    assert nt.extended_pairs(corpus, np.round(W, 9)).sum(-1).tolist() == [right, pairs]
