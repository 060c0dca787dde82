"""Programs that claims solve by a search of their own: no other prompt is better."""

import numpy as np
import pytest

import attsvm as att
from attsvm_lab.claims.joint_programs import SMALL, joint_problem
from attsvm_lab.claims.set_selection import SIZE, problem, shortest_first
from attsvm_lab.experiment import solved

ROUNDING = 1e-8
"""Of a margin: twice the gap of a certificate, and a root to nine digits."""


def unit_prompts(near, norm=att.frobenius):
    """Prompts (2000, d) of length one: random ones, and random changes of a given one."""
    drawn = np.random.default_rng(0).standard_normal((2_000, len(near)))
    drawn[1_000:] = unit(near[None], norm) + 0.05 * drawn[1_000:]
    return unit(drawn, norm)


def unit(prompts, norm=att.frobenius):
    return prompts / norm.value(prompts[..., None])[:, None]


@pytest.mark.parametrize("p", [2.0, 3.0])
def test_no_prompt_has_a_larger_offset_margin_than_the_program_of_its_ratio(p):
    pair = joint_problem(2, SMALL, tight=False, p=p)
    keys, best = pair.tokens.keys, pair.selected
    leads = keys[np.arange(len(keys)), best][:, None] - keys

    def offset(prompts, rho):
        others = np.arange(keys.shape[1]) != best[:, None]
        margins = np.where(others[..., None], leads @ prompts.T, np.inf).min(1)
        reached = (margins + rho * pair.spare[:, None]).min(0)
        return np.where((margins >= -ROUNDING).all(0), reached, -np.inf)

    for rho in (pair.half_way() / 10, pair.half_way(), pair.far_enough()):
        optimum = pair.of_ratio(rho).W[:, 0]
        attained = offset(unit(optimum[None], pair.norm), rho)[0]
        assert offset(unit_prompts(optimum, pair.norm), rho).max() <= attained + ROUNDING
    ends = np.stack([pair.prompt.W[:, 0], pair.relaxed.W[:, 0]])
    half_way = offset(unit(pair.of_ratio(pair.half_way()).W.T, pair.norm), pair.half_way())
    assert offset(unit(ends, pair.norm), pair.half_way()).max() < half_way[0] - 1e-4


@pytest.mark.parametrize("alike", [True, False])
def test_no_prompt_puts_one_token_of_each_set_higher_than_the_shortest_choice(alike):
    given = problem(3, SIZE, alike)
    W, lengths = shortest_first(given, alike)

    def margin(prompts):
        logits = np.einsum("ntd,md->mnt", given.keys, prompts)
        if not alike:  # the tokens of a set are to be separated, too
            first, second = -np.sort(-logits, axis=-1)[..., :2].transpose(2, 0, 1)
            wins = np.where(given.best, logits, -np.inf).max(-1) == first
            return np.where(wins, first - second, -np.inf).min(-1)
        inside, outside = (np.where(s, logits, -np.inf).max(-1) for s in (given.best, ~given.best))
        return (inside - outside).min(-1)

    assert abs(margin(W[0].T / lengths[0])[0] - 1 / lengths[0]) < ROUNDING
    assert margin(unit_prompts(W[0][:, 0])).max() <= 1 / lengths[0] + ROUNDING
    tied = solved(given.tokens, given.best).W[:, 0]
    assert margin(unit(tied[None]))[0] < 0.99 / lengths[0]
