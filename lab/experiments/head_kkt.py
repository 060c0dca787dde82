"""Where a head stands while its net trains: at a KKT point of low rank, or on its way.

In the notation of docs/law_of_halves.md a head has K = W_Kᵀ and Q = W_Qᵀ (d, m), both over m^¼, and
W = K Qᵀ (d, d); M = −dL/dW is the gradient of the loss of the whole net in the logits x_tᵀ W z of this head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from added import factors
from attend import attend
from attsvm.norms import Norm
from models import linear

USED = 0.1
"""Singular values of W below this share of the largest one are spare."""
TINY = torch.finfo(torch.float64).tiny


def pairs(model: nn.Module) -> tuple[Tensor, Tensor]:
    """K and Q of every head (layers · heads, d, m), with √m shared evenly between them."""
    K, Q = factors(model)
    quarter = K.shape[1] ** 0.25
    return (K * quarter).mT, (Q / quarter).mT


def first_tokens(x: Tensor, line: Any) -> Tensor:
    """The state of each example's first token (n, d)."""
    return x[:, 0] if line is None else x[line.first]


@contextmanager
def extended(model: nn.Module) -> Iterator[list[Tensor]]:
    """Add x_tᵀ D z with D = 0 to the logits of every head: the gradient in D (heads, d, d) is that in W."""
    terms, hooks = [], []
    for block in model.blocks:
        module = block.attention
        weight = module.query.weight
        size = (module.heads, weight.shape[1], weight.shape[1])
        terms.append(torch.zeros(size, dtype=weight.dtype, device=weight.device, requires_grad=True))
        hooks.append(module.register_forward_hook(_with_term(terms[-1]), with_kwargs=True))
    try:
        yield terms
    finally:
        for hook in hooks:
            hook.remove()


def _with_term(D: Tensor) -> Any:
    def recomputed(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: Tensor) -> Tensor:
        """The attention of `models.Attention`, its keys and queries longer by x_t and D z."""
        x, line, first = args[0], kwargs.get("line"), kwargs.get("first", False)
        z = x if not first else x[:, :1] if line is None else x[line.first]
        q, k, v = (
            linear(states, layer).unflatten(-1, (module.heads, -1))
            for states, layer in ((z, module.query), (x, module.key), (x, module.value))
        )
        width, total = q.shape[-1], q.shape[-1] + x.shape[-1]
        term = torch.einsum("...e,hde->...hd", z, D) * width**0.5
        q = torch.cat([q, term], -1) * (total / width) ** 0.5  # the kernel divides by √total
        k = torch.cat([k, x[..., None, :].expand(*k.shape[:-1], -1)], -1)
        if line is not None:
            return attend(q, k, v, line, 0.0, first).flatten(-2)
        swapped = (each.transpose(1, 2) for each in (q, k, v))
        return F.scaled_dot_product_attention(*swapped).transpose(1, 2).flatten(-2)

    return recomputed


def ascent(task: Any, model: nn.Module, batches: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """M = −dL/dW of every head (layers · heads, d, d) and the direction of its mean first token (…, d).

    L is the mean loss of the batches, without dropout.
    """
    training, total, count = model.training, 0.0, 0
    means: list[Any] = [0.0] * len(model.blocks)

    def add(layer: int, x: Tensor, kwargs: dict[str, Any]) -> None:
        means[layer] = means[layer] + first_tokens(x.detach(), kwargs.get("line")).double().sum(0)

    hooks = [
        block.attention.register_forward_pre_hook(
            lambda _, args, kwargs, k=k: add(k, args[0], kwargs), with_kwargs=True
        )
        for k, block in enumerate(model.blocks)
    ]
    model.eval()
    try:
        for batch in batches:
            with extended(model) as terms:
                loss = task.loss(model, batch)[0] * (1 if task.summed else len(batch[-1]))
                total = total - torch.cat(torch.autograd.grad(loss, terms)).double().cpu()
            count += len(batch[-1])
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    heads = model.blocks[0].attention.heads
    units = [(z / z.norm().clamp_min(TINY)).expand(heads, -1) for z in means]
    return total / count, torch.cat(units).cpu()


def stable_rank(W: Tensor) -> Tensor:
    """‖W‖_F² / ‖W‖² of matrices (…, d, e)."""
    sizes = torch.linalg.svdvals(W)
    return sizes.square().sum(-1) / sizes[..., 0].square().clamp_min(TINY)


def cosine(A: Tensor, B: Tensor) -> Tensor:
    """Of matrices (…, d, e)."""
    return (A * B).sum((-2, -1)) / (length(A) * length(B)).clamp_min(TINY)


def length(A: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(A)


def standing(K: Tensor, Q: Tensor, M: Tensor, norm: Norm, used: float = USED) -> dict[str, float]:
    """The conditions of Theorem 2 on one head, and what Theorem 5 reads off M.

    alignment: 2⟨M, W⟩ / (‖MQ‖_* + ‖MᵀK‖_*) for K and Q of length one in the norm of the steps, as in
    `attsvm.kkt_point`; 1 at KKT points only. balance: ‖KᵀK − QᵀQ‖ / ‖KᵀK‖ for these. rank: singular values
    of W that are not spare.
    inside: s, the mean of uᵢᵀ M vᵢ over them, weighted by σᵢ(W); beyond: σ = ‖M_⊥‖; both over ‖M‖. Where
    s < 0 the gradient shrinks W. second: σ₂(W) / σ₁(W). of W, of M: stable ranks.
    """
    K, Q = K / _value(norm, K), Q / _value(norm, Q)
    W, gram = K @ Q.mT, K.mT @ K
    lengths = [_value(norm.dual, G) for G in (M @ Q, M.mT @ K)]
    left, sizes, right = torch.linalg.svd(W)
    rank = int((sizes > used * sizes[0]).sum())
    U, V = left[:, :rank], right[:rank].mT
    inside = (sizes[:rank] * ((U.mT @ M).mT * V).sum(0)).sum() / sizes[:rank].sum()
    spare = M - U @ (U.mT @ M)
    spare = spare - (spare @ V) @ V.mT
    largest = torch.linalg.matrix_norm(M, 2).clamp_min(TINY)
    return {
        "alignment": 2 * float((M * W).sum()) / max(sum(lengths), TINY),
        "balance": float((gram - Q.mT @ Q).norm() / gram.norm()),
        "rank": rank,
        "second": float(sizes[1] / sizes[0]),
        "inside": float(inside / largest),
        "beyond": float(torch.linalg.matrix_norm(spare, 2) / largest),
        "of W": float(stable_rank(W)),
        "of M": float(stable_rank(M)),
    }


def _value(norm: Norm, X: Tensor) -> float:
    return float(norm.value(X.numpy()))
