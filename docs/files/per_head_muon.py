"""Muon with a step for every attention head, in one file: copy it into your code base. It needs torch alone.

    from per_head_muon import PerHeadMuon, by_head

    muon, others = by_head(model, heads={"q_proj": 32, "k_proj": 8, "v_proj": 8, "o_proj": 1})
    optimizers = [PerHeadMuon(muon, lr=2e-2), torch.optim.AdamW(others, lr=3e-4)]

A projection of queries (heads · width, d) is one matrix for Muon: all heads together then have one spectral
norm, and a head whose gradient is small takes a small step where the others fill the space (heads · width >
d). With heads=H every block of width rows is a matrix by itself.

    M ← momentum · M + (1 − momentum) ∇L
    W ← (1 − lr · weight_decay) W − lr · scale · polar(momentum · M + (1 − momentum) ∇L)     of every head

method="newton-schulz" is Muon's five steps: singular values below 2e-3 of the gradient's length stay far from
one. "polished" adds Newton–Schulz steps, which bring those above 1e-2 to one within 1e-3. "svd" is exact.

From attsvm, MIT licence (Jordan et al. 2024, Muon). Equal to attsvm.torch's SteepestDescent on
the blocks of `split` to rounding; its tests compare the two.
"""

import torch

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Keller Jordan's polynomial σ ← a σ + b σ³ + c σ⁵: brings σ in [0.01, 1] into [0.68, 1.13] in five steps."""
CUBIC = (1.5, -0.5, 0.0)
"""σ ← 1.5 σ − 0.5 σ³, whose limit is one, from below √3."""
STEPS, POLISH = 5, 4


def polar(G, method="newton-schulz"):
    """The polar factor U Vᵀ of every matrix (…, rows, columns), zero for zero."""
    if method == "svd":
        U, S, Vh = torch.linalg.svd(G, full_matrices=False)
        cut = max(G.shape[-2:]) * torch.finfo(S.dtype).eps * S.amax(-1, keepdim=True)
        return (U * (cut < S).to(S.dtype).unsqueeze(-2)) @ Vh
    tall = G.shape[-2] > G.shape[-1]
    X = (G.mT if tall else G).reshape(-1, *sorted(G.shape[-2:]))
    if X.is_cuda and X.dtype == torch.float32 and method == "newton-schulz":
        X = X.to(torch.bfloat16)
    size = torch.linalg.matrix_norm(X, keepdim=True)
    X = X / torch.where(size == 0, torch.ones_like(size), size)
    for a, b, c in [QUINTIC] * STEPS + [CUBIC] * (POLISH if method == "polished" else 0):
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return (X.mT if tall else X).reshape(G.shape).to(G.dtype)


class PerHeadMuon(torch.optim.Optimizer):
    """Muon on matrices (out, in), each cut into `heads` blocks of rows (axis=0) or of columns (axis=1).

    lr: the length of a step in the spectral norm of a block, times `scale(rows, columns)` of the block.
    heads and axis may differ between parameter groups; heads=1 is Muon.
    """

    def __init__(
        self,
        params,
        lr=2e-2,
        momentum=0.95,
        nesterov=True,
        weight_decay=0.0,
        heads=1,
        axis=0,
        method="newton-schulz",
        scale=None,
    ):
        if method not in ("newton-schulz", "polished", "svd"):
            raise ValueError(f"method is {method!r}. Pass 'newton-schulz', 'polished' or 'svd'.")
        self.scale = scale
        defaults = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        defaults |= {"heads": heads, "axis": axis, "method": method}
        super().__init__(params, defaults)
        for group in self.param_groups:
            for w in group["params"]:
                if w.ndim != 2 or w.shape[group["axis"]] % group["heads"]:
                    raise ValueError(
                        f"a parameter of shape {tuple(w.shape)} cannot be cut into {group['heads']} heads "
                        f"along axis {group['axis']}. Give it another group, or another optimizer."
                    )

    @torch.no_grad()
    def step(self, closure=None):
        """One step of every parameter that has a gradient; returns what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._move(group, w)
        return loss

    def _move(self, group, w):
        g = w.grad.float() if w.dtype in (torch.float16, torch.bfloat16) else w.grad
        if group["momentum"]:
            state = self.state[w]
            if "average" not in state:
                state["average"] = torch.zeros_like(g)
            average = state["average"].lerp_(g, 1 - group["momentum"])
            g = g.lerp(average, group["momentum"]) if group["nesterov"] else average
        blocks = torch.stack(g.chunk(group["heads"], group["axis"]))  # (heads, rows, columns)
        steps = polar(blocks, group["method"])
        if self.scale is not None:
            steps = steps * self.scale(*blocks.shape[1:])
        w.mul_(1 - group["lr"] * group["weight_decay"])
        w.add_(torch.cat(list(steps), group["axis"]).to(w.dtype), alpha=-group["lr"])


def by_head(model, heads, axis=None):
    """Groups for PerHeadMuon, and the parameters that are left for another optimizer.

    heads: the number of heads by the name of the layer, {"q_proj": 32, "k_proj": 8, "o_proj": 1}; axis: 1 for
    layers whose heads are columns, {"o_proj": 1}, else 0. Matrices of other layers, embeddings among them,
    and vectors are left.
    """
    groups, others = {}, []
    for name, w in model.named_parameters():
        layer = name.split(".")[-2] if "." in name else ""
        if w.ndim == 2 and name.endswith("weight") and layer in heads:
            key = heads[layer], (axis or {}).get(layer, 0)
            groups.setdefault(key, []).append(w)
        else:
            others.append(w)
    return [{"params": ws, "heads": h, "axis": a} for (h, a), ws in groups.items()], others
