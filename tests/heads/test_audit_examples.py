"""The examples on the page show what a head does, not only where it is surest."""

import numpy as np
import pytest

from attsvm.heads.audit import SHOWN, AuditSettings, audit, representative
from tests.heads.conftest import TEXTS


def queries(kinds, texts=4, seed=0):
    """Ten queries in each of some texts: the first one special and surest, kinds as given."""
    n = 10 * texts
    text, special = np.repeat(np.arange(texts), 10), np.arange(n) % 10 == 0
    mass = np.where(special, 1.0, np.random.default_rng(seed).uniform(0.2, 0.9, n))
    return text, np.resize(kinds, n), mass, special


@pytest.mark.parametrize(
    ("kinds", "shown"),
    [([2], [2, 2, 2]), ([2] * 19 + [0], [2, 2, 2]), ([0, 2, 5], [0, 2, 5]), ([0, 3, 3], [3, 3, 0])],
)
def test_every_kind_is_shown_by_its_share(kinds, shown):
    text, kind, mass, special = queries(kinds)
    chosen = representative(text, kind, mass, special, np.random.default_rng(0))
    assert kind[chosen].tolist() == shown and len({*text[chosen]}) == SHOWN


def test_a_special_token_asks_only_where_no_word_does():
    text, kind, mass, special = queries([2])
    assert special[np.argsort(-mass)[:SHOWN]].all()  # the surest would not do
    assert not special[representative(text, kind, mass, special, np.random.default_rng(0))].any()
    alone = representative(text, kind, mass, np.ones_like(special), np.random.default_rng(0))
    assert len(alone) == SHOWN


def test_the_surest_kind_is_not_shown_for_its_sureness():
    text, _, mass, special = queries([2])
    first = np.arange(len(text)) % 10 == 1  # the first word looks back at [CLS], surer than all others
    kind, mass = np.where(first, 0, 2), np.where(first, 1.0, mass)
    assert (kind[np.argsort(-mass * ~special)[:SHOWN]] == 0).all()
    assert (kind[representative(text, kind, mass, special, np.random.default_rng(0))] == 2).all()


def test_examples_come_from_the_surer_half_and_the_seed_decides():
    text, kind, mass, special = queries([2])
    draws = [representative(text, kind, mass, special, np.random.default_rng(s)) for s in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert mass[draws].min() >= np.median(mass[~special])


def test_few_queries_give_few_examples():
    one = np.zeros(1, int)
    rng = np.random.default_rng(0)
    assert representative(one, one, np.ones(1), one > 0, rng) == [0]
    assert representative(one[:0], one[:0], np.ones(0), one[:0] > 0, rng) == []
    text, kind, mass, special = queries([2], texts=1)
    assert len({*representative(text, kind, mass, special, rng)}) == SHOWN


def test_the_previous_token_head_of_minilm_shows_words_and_their_predecessors(minilm):
    texts = [*TEXTS, "a film that says nothing new ."]
    heads = audit(minilm, texts, AuditSettings(margins=False), layers=[0]).heads
    shown = heads[2].examples
    assert [e.kind for e in shown] == ["previous"] * 3 and len({e.pieces for e in shown}) == 3
    for example in shown:
        assert example.pieces[example.query] not in ("[CLS]", "[SEP]")
        assert np.argmax(example.attention) == example.query - 1
    assert heads[11].shares["previous"] < 0.1  # another head shows something else
    assert "previous" not in [e.kind for e in heads[11].examples]
