"""Whole pieces of steps in one kernel of a GPU: one program per run, its data and state in registers.

The kernel traces the step of the general loop (engine.py). Triton needs arrays whose sizes are powers of two.
Keys, queries and weights are padded with zeros, tokens with masked ones, and examples with copies of the last
one whose share is zero: the loss of an example of zeros may be infinite.

Pallas compiles it by Triton, whose removal JAX has announced; docs/performance.md says what else was tried.
Only `_settings` calls Triton. Where it fails, training takes the general loop and warns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attsvm.data.tokens import Tokens
from attsvm.norms import capabilities_of
from attsvm.training.compilation import local_devices
from attsvm.training.data import Data
from attsvm.training.losses import Correlation, Exponential, Logistic, Loss, NegativeLog
from attsvm.training.plan import Plan, State
from attsvm.training.prediction_heads import Head, Linear
from attsvm.training.rules import GradientDescent, Mirror, Polyak, Rule, Steepest, per_run
from attsvm.training.runs import IN_KERNEL
from attsvm.training.schedules import Rates
from attsvm.training.types import AnyArray, Index, Tree
from attsvm.training.weights import FullWeight, Weight

Step = Callable[[Plan, Data, State, Array | None], State]

LARGEST = 1 << 12
"""The largest number of terms in the sums of a run, after padding. 32 threads hold so many in registers; more
threads would wait for each other (docs/performance.md)."""

MOST = 1 << 28
"""The largest number of key entries of all runs: the kernel needs a padded copy of them."""

HAVE_IT = "JAX 0.8 to 0.11"
"""Versions whose Pallas compiles by Triton; the last of them announces that a later one will not."""


class GeneralLoop(UserWarning):
    """A GPU trains small problems by the general loop, because it cannot compile the kernel."""


def serves(tokens: Tokens, weight: Weight, head: Head, loss: Loss, rules: tuple[Rule, Rule | None]) -> bool:
    """Whether the kernel can compute this training, and this machine can run the kernel."""
    simple = isinstance(weight, FullWeight) and isinstance(head, Linear) and rules[1] is None
    supported = isinstance(loss, (Logistic, Exponential, Correlation, NegativeLog)) and _entrywise(rules[0])
    small = _terms(tokens.n, tokens.T, tokens.d, tokens.e) <= LARGEST and tokens.keys.size <= MOST
    shared = not per_run(rules[0])
    return simple and supported and shared and small and not tokens.stored and available()


def available() -> bool:
    """Whether Pallas compiles by Triton for the one device here."""
    device, *more = local_devices()
    return device.platform == "gpu" and not more and _compiles()


@cache
def _compiles() -> bool:
    """Whether a small kernel compiles and computes e⁰ = 1; if not, a warning says why, once in a process."""
    try:
        from jax.experimental import pallas as pl

        def kernel(x: AnyArray, out: AnyArray) -> None:
            out[...] = jnp.exp(x[...])

        with jax.enable_x64(True):
            zeros = jnp.zeros(8, jnp.float64)
            ones = pl.pallas_call(kernel, out_shape=jax.typeof(zeros), compiler_params=_settings())(zeros)
            if not (np.asarray(ones) == 1).all():
                raise ArithmeticError(f"a kernel computed e⁰ = {np.asarray(ones)[0]}")
    except Exception as error:  # drivers, their compilers and versions of JAX differ, and so do their errors
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        warnings.warn(
            "on this GPU, training of small problems takes the general loop, three to six times as long: "
            f"their kernel does not compile ({reason}). It needs Pallas with Triton, as in {HAVE_IT}; this "
            f"is JAX {jax.__version__}.",
            GeneralLoop,
            stacklevel=5,
        )
        return False
    return True


def _settings() -> Any:
    """The settings with which Pallas compiles by Triton: one warp of 32 threads."""
    from jax.experimental.pallas.triton import CompilerParams

    return CompilerParams(num_warps=1, num_stages=1)


def steps(step: Step, plan: Plan, data: Data, scores: Array) -> Callable[[State, Array, Array], State]:
    """The function (state, begin, length) → state after the steps begin … begin + length − 1."""
    from jax.experimental import pallas as pl

    model = plan.model
    inputs = _padded_data(data, 1 if model.data_runs else 0), _repeated(scores, 1 if model.runs else 0)
    arrays, tree = jax.tree.flatten(inputs)
    numbers, rules = jax.tree.flatten(plan, is_leaf=lambda x: isinstance(x, Rates))
    tables = [jnp.reshape(x.table if isinstance(x, Rates) else x, -1) for x in numbers]

    def shared(x: Array) -> Any:
        return pl.BlockSpec(x.shape, lambda run: (0,) * x.ndim)

    def per_run(x: Array) -> Any:
        return pl.BlockSpec((None, *x.shape[1:]), lambda run: (run, *[0] * (x.ndim - 1)))

    specs = [(per_run if model.data_runs else shared)(x) for x in arrays[:-1]]
    specs += [(per_run if model.runs else shared)(arrays[-1])]

    def moved(state: State, begin: Array, length: Array) -> State:
        old, of_state = jax.tree.flatten((state.params, state.memory))
        wide = [_padded(x if model.runs else x[None], 1) for x in old]

        def kernel(*refs: Tree) -> None:
            first, count, *refs_left = refs
            rates, refs_left = refs_left[: len(tables)], refs_left[len(tables) :]
            data_here, gains = jax.tree.unflatten(tree, [x[...] for x in refs_left[: len(arrays)]])

            def one_step(k: Index, leaves: tuple[Array, ...]) -> tuple[Array, ...]:
                at = [x[k if isinstance(n, Rates) else 0] for n, x in zip(numbers, rates, strict=True)]
                plan_now = jax.tree.unflatten(rules, [x.astype(leaves[0].dtype) for x in at])
                params, memory = jax.tree.unflatten(of_state, leaves)
                new = step(
                    plan_now, _in_kernel(data_here), state._replace(params=params, memory=memory), gains
                )
                return tuple(jax.tree.leaves((new.params, new.memory)))

            initial = tuple(x[...] for x in refs_left[len(arrays) : -len(wide)])
            final = lax.fori_loop(first[0], first[0] + count[0], one_step, initial)
            for ref, x in zip(refs_left[-len(wide) :], final, strict=True):
                ref[...] = x

        ends = [jnp.reshape(x, 1).astype(jnp.int32) for x in (begin, length)]
        states = [per_run(x) for x in wide]
        padded = pl.pallas_call(
            kernel,
            grid=(len(wide[0]),),
            in_specs=[*map(shared, (*ends, *tables)), *specs, *states],
            out_specs=states,
            out_shape=[jax.typeof(x) for x in wide],
            compiler_params=None if model.cpu else _settings(),
            interpret=model.cpu,
        )(*ends, *tables, *arrays, *wide)
        cut = [
            (x if model.runs else x[0])[tuple(map(slice, y.shape))] for x, y in zip(padded, old, strict=True)
        ]
        params, memory = jax.tree.unflatten(of_state, cut)
        return state._replace(params=params, memory=memory)

    return moved


# ---------------------------------------------------------------------- details


def _entrywise(rule: Rule) -> bool:
    if isinstance(rule, Steepest) and not isinstance(rule.norm, tuple):
        traits = capabilities_of(rule.norm)
        # p = 1 searches for the largest entry, which a kernel does not.
        return traits.euclidean or (traits.acts_on == "entries" and rule.norm.p != 1)
    return isinstance(rule, (GradientDescent, Mirror, Polyak))


def _terms(n: int, T: int, d: int, e: int) -> int:
    n, T, d, e = map(_power, (n, T, d, e))
    return n * d * max(T, e)


def _power(size: int) -> int:
    """The power of two that holds it."""
    return 1 << (size - 1).bit_length()


def _padded(x: Array, runs: int) -> Array:
    """With zeros behind all axes but the first `runs`."""
    return jnp.pad(x, [(0, 0 if axis < runs else _power(size) - size) for axis, size in enumerate(x.shape)])


def _repeated(x: Array, runs: int) -> Array:
    """The same with copies of the last example; examples are the first axis after the runs."""
    n = x.shape[runs]
    examples = [(0, _power(n) - n if axis == runs else 0) for axis in range(x.ndim)]
    return _padded(jnp.pad(x, examples, mode="edge"), runs)


def _padded_data(data: Data, runs: int) -> Data:
    """The data with a mask and shares that leave out what is padded; the scores stand for the values."""
    n, T = data.keys.shape[runs : runs + 2]
    mask, share = data.mask, data.share
    if mask is None and (n, T) != (_power(n), _power(T)):
        mask = jnp.ones(data.keys.shape[: runs + 2], bool)
    if share is None and n != _power(n):
        share = jnp.full_like(data.labels, 1 / n)
    read = data._replace(mask=None, values=None, share=None, alike=None)
    wide = jax.tree.map(lambda x: _repeated(x, runs), read)
    share = None if share is None else _padded(share, runs)
    mask = None if mask is None else _repeated(mask, runs).astype(jnp.int32)  # kernels read no booleans
    return wide._replace(mask=mask, share=share)


def _in_kernel(data: Data) -> Data:
    return data._replace(mask=None if data.mask is None else data.mask != 0, fence=IN_KERNEL)
