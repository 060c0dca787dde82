"""One step of every training against a gradient that shares no formula with the package.

The loss is written once, as a textbook has it, in NumPy and for complex numbers: the imaginary part of
L(x + iε) is ε ∂L/∂x to all digits (Squire & Trapp 1998). The first step of each optimizer is written here.
`draw(seed)` draws weight, head, loss, optimizer and the sizes by which routes are chosen;
`python lab/benchmarks/gradient_scan.py` runs thousands, test_one_step.py some.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import optax

import attsvm as att
from attsvm.training import fused, layout, streaming
from attsvm.training.batches import Batches, on_host
from attsvm.training.prediction_heads import LogOdds, QuadraticPenalty, ReLUNetwork, SquaredError
from attsvm.training.weights import Diagonal, FullWeight, KeyQuery, MultiHead
from attsvm_lab import attention_kinds as kinds

TOLERANCE = 1e-9
"""Largest error of a step over its largest entry: rounding makes 1e-11 of it, a wrong winner 1e-3."""
EPSILON = 1e-40
"""The imaginary part of a parameter: its square is below every rounding."""

WIDTHS, LENGTHS, COUNTS, RUNS = (1, 2, 3), (1, 2, 3, 33, 65), (1, 2, 9, 17), (None, 1, 2, 8, 9, 33)
WEIGHTS = {
    "full": FullWeight(),
    "key-query": KeyQuery(),
    "key-query of rank 1": KeyQuery(1),
    "key-query apart": KeyQuery(separate=True),
    "diagonal": Diagonal(),
    "diagonal key-query": Diagonal(2),
    "diagonal of depth 3": Diagonal(3),
    "two heads": MultiHead(2),
    "two heads apart": MultiHead(2, norm="apart"),
    "two key-queries": MultiHead(2, KeyQuery(), norm="concatenated"),
}
HEADS = ("linear", "trained", "relu", "quadratic", "log-odds", "squared error")
LOSSES = {
    "logistic": att.logistic,
    "exponential": att.exponential,
    "correlation": att.correlation,
    "log": att.log_loss,
}
KINDS = {
    "softmax": None,
    "sink": kinds.LearntSink(),
    "gated": kinds.Gated(),
    "sigmoid": kinds.Sigmoid(-0.7),
    "entmax": kinds.Entmax(),
    "normalised": kinds.QueryKeyNorm(),
    "normalised, gain 4": kinds.QueryKeyNorm(4.0),
}
RATE = 0.3
OPTIMIZERS = {
    "gd": att.gd(RATE),
    "frobenius": att.steepest(att.frobenius, RATE),
    "linf": att.steepest(att.linf, RATE),
    "l1": att.steepest(att.l1, RATE),
    "l3, momentum, decay": att.steepest(att.Entrywise(3), RATE, momentum=0.9, decay=0.2),
    "spectral": att.steepest(att.spectral, RATE),
    "schatten 3": att.steepest(att.Schatten(3), RATE),
    "longest row": att.steepest(att.norms.LongestRow(), RATE),
    "a norm for each factor": att.steepest((att.linf, att.spectral), RATE),
    "compositional": att.compositional(RATE, ridge=0.2),
    "mirror": att.mirror(1.5, RATE),
    "mirror, true length": att.mirror(3, RATE, normalised=False),
    "adam": att.adam(RATE),
    "polyak": att.polyak(),
    "optax": optax.sgd(RATE),
}
OF_MATRICES = ("spectral", "schatten 3", "longest row", "a norm for each factor", "compositional")
PAIRS = ("key-query", "key-query of rank 1", "diagonal key-query")
ROUTES = ("memory", "blocks", "stream", "mini-batch", "kernel")


@dataclass(frozen=True)
class Case:
    """What is trained, how, and at which sizes; runs: of the start, data_runs: of the tokens too."""

    weight: str = "full"
    head: str = "linear"
    loss: str = "logistic"
    optimizer: str = "gd"
    route: str = "memory"
    d: int = 2
    e: int = 2
    T: int = 3
    n: int = 2
    runs: int | None = None
    data_runs: bool = False
    mask: bool = False
    values: bool = True
    seed: int = 0
    kind: str = "softmax"

    def __str__(self) -> str:
        sizes = f"d={self.d} e={self.e} T={self.T} n={self.n} runs={self.runs}"
        flags = [name for name in ("data_runs", "mask", "values") if getattr(self, name)]
        names = (self.route, self.weight, self.head, self.loss, self.optimizer, self.kind)
        return " | ".join([*names, sizes, *flags, f"seed {self.seed}"])


def draw(seed: int, routes: tuple[str, ...] = ROUTES) -> Case:
    """A random case in which everything fits together."""
    rng = np.random.default_rng(seed)

    def one(options: Any) -> Any:
        return options[rng.integers(len(options))]

    case = Case(
        *(one(list(names)) for names in (WEIGHTS, HEADS, LOSSES, OPTIMIZERS, routes)),
        *(one(sizes) for sizes in (WIDTHS, WIDTHS, LENGTHS, COUNTS, RUNS)),
        *(bool(rng.integers(2)) for _ in range(3)),
        seed,
    )
    return consistent(replace(case, kind=one(list(KINDS) if seed % 2 else ["softmax"])))


def consistent(case: Case) -> Case:
    """The nearest case that train() takes."""
    several = isinstance(WEIGHTS[case.weight], MultiHead)
    if case.kind.startswith("normalised") and case.weight not in ("key-query", "key-query apart"):
        case = replace(case, weight="key-query")
        several = False
    if case.kind in ("sink", "gated") and isinstance(WEIGHTS[case.weight], Diagonal):
        case = replace(case, weight="full")
    if case.kind != "softmax":
        if case.optimizer in ("polyak", "compositional", "a norm for each factor"):
            case = replace(case, optimizer="spectral")
        if case.route == "kernel":
            case = replace(case, route="memory")
        if case.head == "squared error" and case.kind in ("sink", "gated", "sigmoid"):
            case = replace(case, head="quadratic")
    if case.runs is None:
        case = replace(case, data_runs=False)
    if case.route == "kernel":
        case = replace(case, weight="full", head="linear", n=min(case.n, 9), T=min(case.T, 33))
        if case.optimizer in ("l1", "adam", "optax", *OF_MATRICES):
            case = replace(case, optimizer="frobenius")
        several = False
    if case.route == "mini-batch" and case.n == 1:
        case = replace(case, route="memory")
    if case.route in ("blocks", "stream"):  # large data: no runs of their own, no lanes
        case = replace(case, data_runs=False, T=33 if (case.runs or 0) >= 8 else case.T)
    if several and case.head not in ("linear", "trained"):
        case = replace(case, head="linear")
    if isinstance(WEIGHTS[case.weight], Diagonal):
        case = replace(case, e=case.d)
    if case.head == "squared error":
        case = replace(case, loss="correlation", values=True)
    if case.loss == "log" and (case.head != "linear" or case.optimizer == "polyak"):
        case = replace(case, loss="exponential")
    if case.optimizer == "compositional" and case.weight not in ("key-query", "key-query of rank 1"):
        case = replace(case, optimizer="longest row")
    if case.optimizer == "a norm for each factor" and case.weight not in PAIRS:
        case = replace(case, optimizer="spectral")
    if case.optimizer == "polyak" and case.head not in ("linear", "squared error"):
        case = replace(case, optimizer="mirror")
    return case


# ---------------------------------------------------------------------- the case as arrays


def tokens_of(case: Case) -> att.Tokens:
    rng = np.random.default_rng([1, case.seed])
    lead = (case.runs,) if case.data_runs else ()
    keys = rng.standard_normal((*lead, case.n, case.T, case.d))
    queries = rng.standard_normal((*lead, case.n, case.e))
    labels: Any = np.where(rng.random((*lead, case.n)) < 0.5, -1.0, 1.0)
    values = rng.standard_normal((*lead, case.n, case.T, 1 + case.seed % 3)) if case.values else None
    mask = None
    if case.mask:
        mask = rng.random((*lead, case.n, case.T)) < 0.7
        mask[..., 0] = True
    if case.loss == "log":
        labels = np.ones_like(labels)
        keys, values = np.abs(keys), None if values is None else np.abs(values)
    if case.head == "squared error":
        labels = np.ones_like(labels)
        values[..., 0, :] = 0  # a token on the target
    return att.Tokens(keys, queries, labels, mask, values=values)


def head_of(case: Case, width: int) -> Any:
    rng = np.random.default_rng([2, case.seed])
    v = np.abs(rng.standard_normal(width)) if case.loss == "log" else rng.standard_normal(width)
    if isinstance(WEIGHTS[case.weight], MultiHead):
        v = np.stack([v, 0.7 * v[::-1]])
    return {
        "linear": att.Linear(v),
        "trained": att.Linear(v),
        "relu": ReLUNetwork(rng.standard_normal((width, 4)), rng.standard_normal(4)),
        "quadratic": QuadraticPenalty(v, 0.3),
        "log-odds": LogOdds(),
        "squared error": SquaredError(),
    }[case.head]


def start_of(case: Case) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([3, case.seed])
    lead = () if case.runs is None else (case.runs,)
    tokens, weight, kind = tokens_of(case), WEIGHTS[case.weight], KINDS[case.kind]
    if kind is not None:
        tokens, weight, _ = kind.prepared(tokens, weight)
    shapes = weight.shapes(tokens.d, tokens.e)
    return {name: rng.standard_normal((*lead, *shape)) for name, shape in shapes.items()}


# ---------------------------------------------------------------------- the textbook


def matrices(weight: Any, params: dict[str, Any]) -> Any:
    """W of every head, (H, d, e)."""
    if isinstance(weight, MultiHead):
        each = [{name: x[h] for name, x in params.items()} for h in range(weight.count)]
        return np.concatenate([matrices(weight.weight, one) for one in each])
    if "K" in params:
        return (params["K"] @ params["Q"].T)[None]
    if "W" in params:
        return params["W"][None]
    product = 1
    for factor in params.values():
        product = product * factor
    return np.diag(product)[None]


def margins(case: Case, tokens: att.Tokens, head: Any, params: dict[str, Any], v: Any) -> Any:
    """f_i = Y_i h(Σ_t s_it value_it), complex where the parameters are."""
    total = 0
    heads = matrices(WEIGHTS[case.weight], {k: x for k, x in params.items() if k not in EXTRA})
    for h, W in enumerate(heads):
        logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
        extra = {name: params[name].reshape(len(heads), -1)[h] for name in EXTRA if name in params}
        if case.kind.startswith("normalised"):
            k, q = tokens.keys @ params["K"], tokens.queries @ params["Q"]
            logits = logits / np.sqrt((k * k).sum(-1) * (q * q).sum(-1)[:, None])
            logits = logits * extra.get("gain", [4.0])[0]
        r = np.einsum("nt,ntc->nc", token_weights(case.kind, logits, tokens.mask, extra), tokens.values)
        if case.kind == "gated":
            r = r / (1 + np.exp(-(tokens.queries @ extra["gate"])))[:, None]
        if case.head in ("linear", "trained"):
            total = total + r @ (v[h] if v.ndim == 2 else v)
        elif case.head == "relu":
            hidden = r @ head.V
            total = total + np.where(hidden.real > 0, hidden, 0) @ head.u
        elif case.head == "quadratic":
            total = total + r @ head.v - head.strength * (r * r).sum(1)
        elif case.head == "log-odds":
            total = total - np.log(np.exp(r).sum(1))
        else:
            total = total - (r * r).sum(1) / 2
    return tokens.labels * total


EXTRA = ("sink", "gate", "gain")
"""Parameters of kinds of attention."""


def token_weights(kind: str, logits: Any, mask: Any, extra: Any) -> Any:
    """The weights of tokens (n, T), complex where logits are."""
    if kind == "sigmoid":
        return np.where(mask, 1 / (1 + np.exp(0.7 - logits)), 0)
    if kind == "entmax":
        return np.stack([entmax(row, keep) for row, keep in zip(logits, mask, strict=True)])
    powers = np.where(mask, np.exp(logits), 0)
    return powers / (powers.sum(1, keepdims=True) + (np.exp(extra["sink"]) if kind == "sink" else 0))


def entmax(logits: Any, mask: Any) -> Any:
    """(a/2 − τ)² on the largest support on which all of these are positive, by trying all its sizes."""
    order = [t for t in np.argsort(-logits.real) if mask[t]]
    weights = np.zeros_like(logits)
    for size in range(1, len(order) + 1):
        halves = logits[order[:size]] / 2
        spread = (halves**2).sum() - halves.sum() ** 2 / size
        threshold = halves.mean() - np.sqrt((1 - spread) / size + 0j)
        if (halves - threshold).real.min() > 0 and abs(threshold.imag) < 1e-20:
            weights = np.zeros_like(logits, dtype=complex)
            weights[order[:size]] = (halves - threshold) ** 2
    return weights if np.iscomplexobj(logits) else weights.real


def whole_matrices(case: Case, params: dict[str, Any]) -> Any:
    """W (H, d, e) as a path has it: with the sink as a block, the gate as a row, or times the gain."""
    W = matrices(WEIGHTS[case.weight], {k: x for k, x in params.items() if k not in EXTRA})
    if case.kind == "sink":
        W = np.pad(W, ((0, 0), (0, 1), (0, 1)))
        W[:, -1, -1] = params["sink"].reshape(-1)
    elif case.kind == "gated":
        W = np.concatenate([W, params["gate"].reshape(len(W), 1, -1)], 1)
    elif case.kind.startswith("normalised"):
        W = W * params.get("gain", np.full(1, 4.0)).reshape(-1, 1, 1)
    return W


def mean_loss(case: Case, f: Any) -> Any:
    formula = {
        "logistic": lambda f: np.log(1 + np.exp(-f)),
        "exponential": lambda f: np.exp(-f),
        "correlation": lambda f: -f,
        "log": lambda f: -np.log(f),
    }
    return formula[case.loss](f).mean()


def best_loss(case: Case, tokens: att.Tokens, v: Any) -> Any:
    """The loss of the tokens of highest score, in every head."""
    total = 0
    for one in np.atleast_2d(v):
        scores = tokens.labels[:, None] * (tokens.values @ one)
        total = total + np.where(tokens.mask, scores, -np.inf).max(1)
    return mean_loss(case, total)


def gradients(case: Case, tokens: att.Tokens, head: Any, params: Any) -> tuple[Any, Any, float]:
    """Of the parameters and of v, by complex steps; and the loss."""
    v = np.asarray(getattr(head, "v", np.zeros(0)))

    def slope(name: str, place: tuple[int, ...]) -> float:
        moved = {key: x.astype(complex) for key, x in (*params.items(), ("v", v))}
        moved[name][place] += 1j * EPSILON
        own = {key: moved[key] for key in params}
        return mean_loss(case, margins(case, tokens, head, own, moved["v"])).imag / EPSILON

    def whole(name: str, x: Any) -> Any:
        return np.array([slope(name, place) for place in np.ndindex(x.shape)]).reshape(x.shape)

    along = {name: whole(name, x) for name, x in params.items()}
    of_v = whole("v", v) if case.head == "trained" else None
    return along, of_v, float(mean_loss(case, margins(case, tokens, head, params, v)))


def first_step(case: Case, params: Any, grads: Any, excess: float) -> dict[str, Any]:
    """The parameters after the first step of the optimizer, where it takes these arrays as one."""
    if case.optimizer in OF_MATRICES:
        units = directions_of_matrices(case, params, grads)
        return {name: x - RATE * units[name] for name, x in params.items()}
    g = np.concatenate([x.ravel() for x in grads.values()])
    w = np.concatenate([x.ravel() for x in params.values()])
    size = np.linalg.norm(g)
    safe = size if size > 0 else 1.0
    if case.optimizer in ("gd", "optax"):
        new = w - RATE * g
    elif case.optimizer == "frobenius":
        new = w - RATE * g / safe
    elif case.optimizer == "linf":
        new = w - RATE * np.sign(g)
    elif case.optimizer == "adam":
        new = w - RATE * g / (np.abs(g) + 1e-8)
    elif case.optimizer == "l1":
        new = w - RATE * np.where(np.arange(g.size) == np.abs(g).argmax(), np.sign(g), 0)
    elif case.optimizer == "l3, momentum, decay":
        root = np.sign(g) * np.abs(g) ** 0.5  # q = 3/2, whose steepest direction is |g|^(q − 1)
        new = w - RATE * (root / ((np.abs(root) ** 3).sum() ** (1 / 3) if size > 0 else 1) + 0.2 * w)
    elif case.optimizer == "mirror":
        dual = np.sign(w) * np.abs(w) ** 0.5 - RATE * g / ((np.abs(g) ** 3).sum() ** (1 / 3) or 1)
        new = np.sign(dual) * dual**2
    elif case.optimizer == "mirror, true length":
        dual = np.sign(w) * w**2 - RATE * g
        new = np.sign(dual) * np.abs(dual) ** 0.5
    else:
        new = w - excess * g / safe**2
    parts = np.split(new, np.cumsum([x.size for x in params.values()])[:-1])
    return {name: part.reshape(x.shape) for (name, x), part in zip(params.items(), parts, strict=True)}


def directions_of_matrices(case: Case, params: Any, grads: Any) -> dict[str, Any]:
    """Steepest directions of matrices: all blocks of heads and factors are one block-diagonal matrix."""
    if case.optimizer == "a norm for each factor":
        first, second = grads
        return {
            first: np.sign(grads[first]),
            second: polar([_as_matrix(grads[second])])[0].reshape(grads[second].shape),
        }
    if case.optimizer == "compositional":
        return {
            name: 0.5 * polar([grads[name] @ inverse])[0] @ inverse
            for name, other in (("K", params["Q"]), ("Q", params["K"]))
            for inverse in [inverse_root(other.T @ other + 0.2 * np.eye(other.shape[1]))]
        }
    weight = WEIGHTS[case.weight]
    laid = getattr(weight, "norm", "") if next(iter(grads.values())).ndim > _axes(weight) else ""
    blocks = []  # with their places
    for x in grads.values():
        if laid == "joint":
            blocks += [_as_matrix(one) for one in x]
        else:
            blocks.append(_as_matrix(np.concatenate(list(x), -1) if laid == "concatenated" else x))
    if case.optimizer == "longest row":
        lengths = [np.linalg.norm(block, axis=1, keepdims=True) for block in blocks]
        units = [block / np.where(size > 0, size, 1) for block, size in zip(blocks, lengths, strict=True)]
    else:
        units = polar(blocks, power=0.0 if case.optimizer == "spectral" else 0.5)
    out, rest = {}, iter(units)
    for name, x in grads.items():
        if laid == "joint":
            out[name] = np.stack([next(rest).reshape(one.shape) for one in x])
        elif laid == "concatenated":
            out[name] = np.stack(np.split(next(rest), len(x), axis=1)).reshape(x.shape)
        else:
            out[name] = next(rest).reshape(x.shape)
    return out


def polar(blocks: list[Any], power: float = 0.0) -> list[Any]:
    """U σ^power Vᵀ of every block over the Schatten norm of all, of which that is steepest; σ = 0 stays."""
    parts = [np.linalg.svd(block, full_matrices=False) for block in blocks]
    largest = max((sigma.max() for _, sigma, _ in parts), default=0.0)
    if largest == 0:
        return [np.zeros(block.shape) for block in blocks]
    raised = [
        np.where(sigma > 1e-12 * largest, sigma / largest, 0) ** power * (sigma > 1e-12 * largest)
        for _, sigma, _ in parts
    ]
    size = (np.concatenate(raised) ** 3).sum() ** (1 / 3) if power else 1.0
    return [(U * (s / size)) @ Vt for (U, _, Vt), s in zip(parts, raised, strict=True)]


def inverse_root(C: Any) -> Any:
    values, vectors = np.linalg.eigh(C)
    return (vectors / np.sqrt(values)) @ vectors.T


def _as_matrix(x: Any) -> Any:
    return x[:, None] if x.ndim == 1 else x


def _axes(weight: Any) -> int:
    """Axes of a parameter of one head."""
    return 1 if isinstance(weight, Diagonal) else 2


def expected(case: Case, tokens: att.Tokens, head: Any, params: Any) -> tuple[Any, Any]:
    """W (H, d, e) and v after one step of one run."""
    weight = WEIGHTS[case.weight]
    grads, of_v, loss = gradients(case, tokens, head, params)
    squared = case.head == "squared error"  # whose best loss is zero
    excess = loss if squared or case.optimizer != "polyak" else loss - best_loss(case, tokens, head.v)
    each = [(name,) for name in params] if getattr(weight, "separate", False) else [tuple(params)]
    new: dict[str, Any] = {}
    for names in each:
        own, along = ({name: x[name] for name in names} for x in (params, grads))
        if getattr(weight, "norm", "") == "apart":
            heads = [[{k: x[h] for k, x in y.items()} for y in (own, along)] for h in range(weight.count)]
            steps = [first_step(case, *one, excess) for one in heads]
            new |= {name: np.stack([one[name] for one in steps]) for name in names}
        else:
            new |= first_step(case, own, along, excess)
    return whole_matrices(case, new), None if of_v is None else np.asarray(head.v) - RATE * of_v


# ---------------------------------------------------------------------- ours against it


def error(case: Case) -> float:
    """The largest difference of a step from the textbook's, over the largest entry of that step."""
    tokens, params = tokens_of(case), start_of(case)
    head = head_of(case, tokens.values.shape[-1])
    weight: Any = WEIGHTS[case.weight]
    init: Any = params if len(params) > 1 else next(iter(params.values()))
    options: dict[str, Any] = {"train_head": att.gd(RATE)} if case.head == "trained" else {}
    batch = Batches(max(1, case.n - 1), seed=case.seed) if case.route == "mini-batch" else None
    with ExitStack() as stack:
        if case.route == "blocks":
            stack.enter_context(mock.patch.multiple(layout, LARGE=0, CACHED=2 * case.T * 3))
        if case.route == "stream":
            stack.enter_context(mock.patch.object(streaming, "too_large", lambda _: True))
            stack.enter_context(mock.patch.object(streaming, "READ", 16 * case.T * case.d))
        if case.route == "kernel":
            stack.enter_context(mock.patch.object(fused, "available", lambda: True))
        path = kinds.train(
            tokens,
            head,
            weight=weight,
            attention=KINDS[case.kind],
            loss=None if case.head == "squared error" else LOSSES[case.loss],
            optimizer=OPTIMIZERS[case.optimizer],
            steps=1,
            record=[1],
            init=init,
            batch=batch,
            **options,
        )
    if batch is not None:
        places = np.sort(on_host(batch.form, np.uint64(case.seed), case.n, 0))
        parts = (tokens.keys, tokens.queries, tokens.labels, tokens.mask, tokens.values)
        axis = int(case.data_runs)
        keys, queries, labels, mask, values = (np.take(x, places, axis) for x in parts)
        tokens = att.Tokens(keys, queries, labels, mask, values=values)
    worst = 0.0
    for run in range(case.runs or 1):
        own = params if case.runs is None else {name: x[run] for name, x in params.items()}
        there = tokens.run(run) if case.data_runs else tokens
        W, v = expected(case, there, head, own)
        begin, end = (path.W if case.runs is None else path.W[run])[[0, -1]]
        worst = max(worst, _distance(begin, end.reshape(W.shape), W))
        if v is not None:
            trained = path.v if case.runs is None else path.v[run]
            worst = max(worst, _distance(np.asarray(head.v), trained[-1], v))
    return worst


def _distance(begin: Any, end: Any, wanted: Any) -> float:
    """Of two ends, over the way from the beginning; a way of nothing has the length of one rounding."""
    begin = np.reshape(begin, np.shape(wanted))
    way = max(np.abs(wanted - begin).max(), 1e-5 * np.abs(begin).max())
    return float(np.abs(end - wanted).max() / way)
