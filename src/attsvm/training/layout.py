"""The fastest layout of a training: one kernel on a GPU, runs as the last axis, or blocks of examples."""

from __future__ import annotations

from dataclasses import replace

from attsvm.data.tokens import Tokens
from attsvm.training import fused
from attsvm.training.attention import Softmax
from attsvm.training.compilation import backend
from attsvm.training.inputs import Inputs
from attsvm.training.plan import Model
from attsvm.training.runs import FEWEST, FEWEST_ON_GPU, LONGEST, LONGEST_ON_GPU
from attsvm.training.weights import MultiHead, Weight

CACHED, WIDENED = 1 << 15, 1 << 20
"""Numbers of keys and values in a block. On a CPU a block fits the cache of a core (256 kB in float64); other
devices read only narrow numbers in blocks, of 8 MB."""
LARGE = 1 << 22
"""From so many float64 keys and values on, blocks are faster: fewer may fit the cache that cores share."""


def model_of(inputs: Inputs) -> Model:
    """What is trained, in its fastest layout."""
    tokens, weight, count = inputs.tokens, inputs.weight, inputs.runs
    cpu, data_runs = backend() == "cpu", tokens.runs is not None
    runs_last = _runs_last(tokens, weight, count, cpu)
    model = Model(
        weight,
        inputs.loss,
        count is not None,
        data_runs,
        runs_last,
        cpu,
        block(tokens, cpu),
        kind=inputs.attention,
    )
    if inputs.batch is not None:
        model = replace(model, runs_last=False, batch=inputs.batch.form)
    if not isinstance(inputs.attention, Softmax):
        return replace(model, runs_last=False, block=None)
    if inputs.batch is None and fused.serves(tokens, weight, inputs.start[1], inputs.loss, inputs.rules):
        return replace(model, runs_last=False, fused=True)
    return model


def block(tokens: Tokens, cpu: bool) -> int | None:
    """How many examples are computed at a time, None for all of them."""
    numbers = tokens.T * (tokens.d + (0 if tokens.values is tokens.keys else tokens.values.shape[-1]))
    if tokens.stored:
        return max(1, (CACHED if cpu else WIDENED) // numbers)
    gains = cpu and tokens.runs is None and tokens.n * numbers >= LARGE and numbers <= 2 * CACHED
    return max(1, CACHED // numbers) if gains else None


def _runs_last(tokens: Tokens, weight: Weight, runs: int | None, cpu: bool) -> bool:
    """Whether the runs are many and small enough to be the last axis."""
    sizes = [tokens.n, tokens.T, tokens.d, tokens.e, tokens.values.shape[-1]]
    sizes += [size for shape in weight.shapes(tokens.d, tokens.e).values() for size in shape]
    fewest, longest = (FEWEST, LONGEST) if cpu else (FEWEST_ON_GPU, LONGEST_ON_GPU)
    small = max(sizes) <= longest and not tokens.stored and not isinstance(weight, MultiHead)
    return runs is not None and runs >= fewest and small
