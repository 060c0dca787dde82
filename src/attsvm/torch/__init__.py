"""The geometry of attsvm for PyTorch users (extra `torch`).

LpMirrorDescent, SteepestDescent    torch.optim optimizers
Compositional                       an optimizer of W_Q and W_K together
max_margin                          certified max-margin solutions of a batch, with gradients
pool, attention, AttentionPooling   softmax attention whose gradient survives saturation
attention_statistics                what every query selects, at any length of context
MarginMonitor                       norm, entropy and margin of every head while a model trains
clip_logits                         a limit on the logits of every head, kept in the weights
split                               queries, keys and values of every head as parameters of their own
watch                               running scores of probes while a language model generates
QueryKey                            where an attention module of your own keeps queries and keys

A head is an attention head of a model, except in `probe.py`. `optimizers.py` takes its steps from
`directions.py`. `max_margin.py` gives the solver's results a backward pass, `active_formula.py` has them in
torch operations. `statistics.py` reads logits in blocks; `statistics_kernel.py` does the same on a GPU.
`attention_hooks.py` keeps the inputs of a model's attention modules, and `readers.py` recomputes queries and
keys from them (the names of a new family go to `_support/architectures.py`), for transformers by
`hf_attention_inputs.py`, which runs a module to its softmax. `split.py` cuts the matrices of these modules.
`monitor.py` records every head and draws its records. `probe.py` is a fitted probe as a module, and
`running.py` keeps the running scores of `watch.py`. `AttentionProbe.export` copies `probe.py`, which imports
torch alone.
"""

from attsvm._support.optional_dependencies import missing as _missing

try:
    import torch as _torch
except ModuleNotFoundError as error:
    raise _missing("attsvm.torch needs PyTorch", "torch") from error

from attsvm.torch.clip import clip_logits
from attsvm.torch.max_margin import NotDifferentiable, max_margin
from attsvm.torch.monitor import MarginMonitor
from attsvm.torch.optimizers import Compositional, LpMirrorDescent, SteepestDescent
from attsvm.torch.pooling import AttentionPooling, pool
from attsvm.torch.probe import attention
from attsvm.torch.readers import QueryKey
from attsvm.torch.split import split
from attsvm.torch.statistics import attention_statistics
from attsvm.torch.watch import watch

__all__ = [
    "AttentionPooling",
    "Compositional",
    "LpMirrorDescent",
    "MarginMonitor",
    "NotDifferentiable",
    "QueryKey",
    "SteepestDescent",
    "attention",
    "attention_statistics",
    "clip_logits",
    "max_margin",
    "pool",
    "split",
    "watch",
]
