"""Layers that solve a quadratic program, forward and backward, beside ours: batches of 1 to 10,000, one core.

    pip install moreau moreau-cpu qpth cvxpylayers proxsuite daqp     # those that are missing are left out
    python lab/benchmarks/layers.py --record lab/records/layers.json
    python lab/benchmarks/layers.py --tables lab/records/layers.json  # for docs/lab/layer.md

CPU seconds of one process with one thread, the least over rounds that take all contenders in turn. Everything
from keys to a loss of W, and back to keys, counts: the differences of tokens, too. What a peer compiles once
for all calls (structure, parameters) does not. A contender leaves before the batch of which a round would
take LONG. Errors are relative to the solution of ours, which is certified, and to its gradient, by their
norms; medians over the runs of the batch.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

for name in ("OMP", "OPENBLAS", "MKL", "NUMBA", "RAYON"):
    os.environ.setdefault(f"{name}_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import attsvm.torch  # noqa: E402

CASES = {
    "matrices": ((6, 8, 10, 10), None),
    "prompts": ((6, 8, 10, 1), None),
    "larger matrices": ((20, 16, 16, 16), None),
    "soft matrices": ((6, 8, 10, 10), 0.03),
    "soft prompts": ((6, 8, 10, 1), 0.3),
}
"""n, T, d, e and the price C of falling short."""
BATCHES = (1, 100, 1_000, 10_000)
ROUNDS, MOST, LONG = 100, 12.0, 5.0
"""Rounds at most; CPU seconds of all rounds of a batch and case, after which none begins; see above."""
PEERS = ("moreau", "qpth", "cvxpylayers", "proxsuite", "daqp", "torch", "jax", "numpy")


class Case:
    """Programs of one size: Gaussian keys and queries. A random W selects, in soft ones by noisy logits."""

    def __init__(self, name: str, batch: int) -> None:
        (n, T, d, e), self.price = CASES[name]
        rng = np.random.default_rng([batch, len(name)])
        keys, queries = rng.normal(size=(batch, n, T, d)), rng.normal(size=(batch, n, e))
        if e == 1:
            queries = np.ones_like(queries)
        logits = np.einsum("bntd,bde,bne->bnt", keys, rng.normal(size=(batch, d, e)), queries)
        noise = 0.0 if self.price is None else logits.std()
        selected = (logits + noise * rng.normal(size=logits.shape)).argmax(-1)
        self.shape, self.batch, self.rows = (n, T, d, e), batch, n * (T - 1)
        self.keys, self.queries = torch.tensor(keys), torch.tensor(queries)
        self.selected = torch.tensor(selected)
        others = np.argsort(np.arange(T) == selected[..., None], axis=-1, kind="stable")[..., :-1]
        self.losing = torch.tensor(others)
        self.bar = torch.tensor(rng.normal(size=(batch, d, e)))

    def matrix(self, keys: Tensor) -> Tensor:
        """The rows (b, m, d e) of the programs, from keys."""
        wide = (*self.losing.shape, keys.shape[-1])
        first = keys.gather(2, self.selected[..., None, None].expand(*self.selected.shape, 1, keys.shape[-1]))
        delta = first - keys.gather(2, self.losing[..., None].expand(wide))
        rows = delta[..., None] * self.queries[:, :, None, None]
        return rows.reshape(self.batch, self.rows, -1)

    def groups(self) -> np.ndarray:
        """Of a soft margin: the example of each row, (m, n)."""
        n, T, _, _ = self.shape
        return np.kron(np.eye(n), np.ones((T - 1, 1)))


State = Any
Step = Callable[..., Any]


class Contender:
    """forward gives W (b, d, e) and what backward needs; backward gives the gradient in the keys."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def forward(self) -> tuple[Tensor, State]:
        keys = self.case.keys.clone().requires_grad_()
        W = self.solve(keys).reshape(self.case.bar.shape)
        return W, (keys, W)

    def solve(self, keys: Tensor) -> Tensor:
        raise NotImplementedError

    def backward(self, state: State) -> Tensor | None:
        keys, W = state
        return torch.autograd.grad((W * self.case.bar).sum(), keys)[0]


class Ours(Contender):
    certificate = False

    def solve(self, keys: Tensor) -> Tensor:
        case = self.case
        result = attsvm.torch.max_margin(keys, case.selected, case.queries, slack=case.price)
        if self.certificate:
            assert result.solution.certified.all()
        return result.W


class OursCertified(Ours):
    certificate = True


class OursInJax(Contender):
    def __init__(self, case: Case) -> None:
        import jax

        from attsvm.jax import max_margin

        super().__init__(case)
        jax.config.update("jax_enable_x64", True)
        keys, queries, selected, bar = (
            jax.numpy.asarray(x.numpy()) for x in (case.keys, case.queries, case.selected, case.bar)
        )

        def loss(keys: Any) -> tuple[Any, Any]:
            W = max_margin(keys, selected, queries, slack=case.price).W
            return (W * bar).sum(), W

        self.keys, self.forwards = keys, jax.jit(lambda k: loss(k)[1])
        self.both = jax.jit(jax.grad(lambda k: loss(k)[0]))

    def forward(self) -> tuple[Tensor, State]:
        return torch.tensor(np.asarray(self.forwards(self.keys))), None

    def backward(self, state: State) -> Tensor:
        """Forward and backward: JAX keeps no state between them."""
        return torch.tensor(np.asarray(self.both(self.keys)))


def dense(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The structure of a matrix without zeros, as Moreau takes it."""
    return np.arange(rows + 1) * columns, np.tile(np.arange(columns), rows)


class MoreauPrimal(Contender):
    """min ½ x·P x + q·x,  A x + s = b,  s ≥ 0;  x = (w, ξ)."""

    solver = "auto"

    def __init__(self, case: Case) -> None:
        import moreau

        super().__init__(case)
        self.n, self.A, self.P, self.q, self.b = self.data()
        m = self.A.shape[-2]
        structure = (*self.pattern(self.P), *self.pattern(self.A))
        self.P_at, self.A_at = (np.nonzero(self.mask(x)) for x in (self.P, self.A))
        settings = moreau.Settings(solver=self.solver, device="cpu", batch_size=case.batch, enable_grad=True)
        self.peer = self.made(moreau, (self.n, m), structure, moreau.Cones(num_nonneg_cones=m), settings)

    def made(self, moreau: Any, sizes: Any, structure: Any, cones: Any, settings: Any) -> Any:
        from moreau.torch import Solver

        return Solver(*sizes, *(torch.tensor(x) for x in structure), cones=cones, settings=settings)

    def data(self) -> tuple[int, Tensor, Tensor, Tensor, Tensor]:
        case, (n, _, d, e) = self.case, self.case.shape
        rows = case.matrix(case.keys)
        width = d * e + (n if case.price is not None else 0)
        P, q = torch.zeros(width, width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
        P[range(d * e), range(d * e)] = 1.0
        b = -torch.ones(case.rows, dtype=torch.float64)
        if case.price is not None:
            q[d * e :] = case.price
            b = torch.cat([b, torch.zeros(n, dtype=torch.float64)])
        many = case.batch
        return width, self.constraints(rows), P.expand(many, -1, -1), q.expand(many, -1), b.expand(many, -1)

    def constraints(self, rows: Tensor) -> Tensor:
        if self.case.price is None:
            return -rows
        n = self.case.shape[0]
        slack = torch.tensor(self.case.groups()).expand(self.case.batch, -1, -1)
        below = torch.eye(rows.shape[-1] + n, dtype=torch.float64)[-n:].expand(self.case.batch, -1, -1)
        return -torch.cat([torch.cat([rows, slack], 2), below], 1)

    def mask(self, matrix: Tensor) -> np.ndarray:
        return (matrix != 0).any(0).numpy()

    def pattern(self, matrix: Tensor) -> tuple[np.ndarray, np.ndarray]:
        mask = self.mask(matrix)
        return np.concatenate([[0], np.cumsum(mask.sum(1))]), np.nonzero(mask)[1]

    def values(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        A = self.constraints(self.case.matrix(keys))
        return self.P[:, *self.P_at].contiguous(), A[:, *self.A_at].contiguous()

    def solve(self, keys: Tensor) -> Tensor:
        P, A = self.values(keys)
        return self.weight(self.peer.solve(P, A, self.q.contiguous(), self.b.contiguous()).x, keys)

    def weight(self, x: Tensor, keys: Tensor) -> Tensor:
        _, _, d, e = self.case.shape
        return x[:, : d * e]


class MoreauDual(MoreauPrimal):
    """min ½ λ·K λ − Σ λ,  λ ≥ 0,  Σ_t λ_it ≤ C;  W = Aᵀ λ."""

    def data(self) -> tuple[int, Tensor, Tensor, Tensor, Tensor]:
        case = self.case
        rows, m = case.matrix(case.keys), case.rows
        A, b = -torch.eye(m, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
        if case.price is not None:
            A = torch.cat([A, torch.tensor(case.groups().T)])
            b = torch.cat([b, torch.full((case.shape[0],), case.price, dtype=torch.float64)])
        q = -torch.ones(m, dtype=torch.float64)
        self.fixed = A.expand(case.batch, -1, -1)
        return m, self.fixed, rows @ rows.mT, q.expand(case.batch, -1), b.expand(case.batch, -1)

    def values(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        self.rows = self.case.matrix(keys)
        return (self.rows @ self.rows.mT).flatten(1), self.fixed[:, *self.A_at].contiguous()

    def weight(self, x: Tensor, keys: Tensor) -> Tensor:
        return (x[:, None] @ self.rows)[:, 0]


class NumpyInterface:
    """Moreau without torch: its compiled solver, and the chain rule through the rows by torch alone."""

    def made(self, moreau: Any, sizes: Any, structure: Any, cones: Any, settings: Any) -> Any:
        return moreau.CompiledSolver(*sizes, *structure, cones=cones, settings=settings)

    def forward(self: Any) -> tuple[Tensor, State]:
        keys = self.case.keys.clone().requires_grad_()
        P, A = self.values(keys)
        self.peer.setup(P.detach().numpy(), A.detach().numpy())
        x = torch.tensor(self.peer.solve(self.q.numpy(), self.b.numpy()).x).requires_grad_()
        W = self.weight(x, keys).reshape(self.case.bar.shape)
        return W.detach(), (keys, P, A, x, W)

    def backward(self: Any, state: State) -> Tensor:
        keys, P, A, x, W = state
        (of_x,) = torch.autograd.grad(W, x, self.case.bar, retain_graph=True)
        peer = self.peer.backward(of_x.numpy())
        pairs = [(P, peer["dP_values"]), (A, peer["dA_values"])]
        outputs = [(y, torch.tensor(np.asarray(bar))) for y, bar in pairs if y.requires_grad]
        if isinstance(self, MoreauDual):  # W = Aᵀ λ depends on the keys by A, too
            outputs.append((W, self.case.bar))
        return torch.autograd.grad([y for y, _ in outputs], keys, [bar for _, bar in outputs])[0]


class MoreauNumpyPrimal(NumpyInterface, MoreauPrimal):
    pass


class MoreauNumpyDual(NumpyInterface, MoreauDual):
    pass


class MoreauInterior(MoreauPrimal):
    solver = "ipm"


class Dense(Contender):
    """The primal program as dense matrices."""

    definite = 0.0

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        width, _, P, q, b = MoreauPrimal.data(self)  # type: ignore[arg-type]
        extra = (
            self.definite if case.price is not None else 0.0
        )  # for peers that need P ≻ 0, where ξ has none
        self.P = (P + extra * torch.eye(width, dtype=torch.float64)).contiguous()
        self.q, self.b = q.contiguous(), b.contiguous()
        self.empty = torch.empty(0, dtype=torch.float64)

    def constraints(self, rows: Tensor) -> Tensor:
        return MoreauPrimal.constraints(self, rows)  # type: ignore[arg-type]

    def solve(self, keys: Tensor) -> Tensor:
        return self.solved(self.constraints(self.case.matrix(keys)))[:, : self.case.bar[0].numel()]

    def solved(self, A: Tensor) -> Tensor:
        raise NotImplementedError


class Qpth(Dense):
    definite = 1e-8

    def solved(self, A: Tensor) -> Tensor:
        from qpth.qp import QPFunction

        solver = QPFunction(verbose=-1, check_Q_spd=False)
        return solver(self.P, self.q, A, self.b, self.empty, self.empty)


class Proxsuite(Dense):
    def solved(self, A: Tensor) -> Tensor:
        from proxsuite.torch.qplayer import QPFunction

        below = torch.full_like(self.b, -1e20)
        return QPFunction()(self.P, self.q, self.empty, self.empty, A, below, self.b)[0]


class Daqp(Dense):
    """In a loop, without a gradient."""

    definite = 1e-8

    def solved(self, A: Tensor) -> Tensor:
        import daqp

        H, f, upper = self.P[0].numpy(), self.q[0].numpy(), self.b[0].numpy()
        lower, sense = np.full(len(upper), -1e30), np.zeros(len(upper), np.int32)
        every = A.detach().numpy()
        return torch.tensor(np.array([daqp.solve(H, f, one, upper, lower, sense)[0] for one in every]))

    def backward(self, state: State) -> None:
        return None


class Cvxpylayers(Contender):
    def __init__(self, case: Case) -> None:
        import cvxpy as cp
        from cvxpylayers.torch import CvxpyLayer

        super().__init__(case)
        n, _, d, e = case.shape
        w, A = cp.Variable(d * e), cp.Parameter((case.rows, d * e))
        cost, left = 0.5 * cp.sum_squares(w), A @ w
        constraints = []
        if case.price is not None:
            short = cp.Variable(n)
            cost, left = cost + case.price * cp.sum(short), left + case.groups() @ short
            constraints = [short >= 0]
        problem = cp.Problem(cp.Minimize(cost), [left >= 1, *constraints])
        self.layer = CvxpyLayer(problem, parameters=[A], variables=[w])

    def solve(self, keys: Tensor) -> Tensor:
        (w,) = self.layer(self.case.matrix(keys))
        return w


CONTENDERS: dict[str, type[Contender]] = {
    "ours": Ours,
    "ours, certified": OursCertified,
    "ours, JAX": OursInJax,
    "Moreau, torch, primal": MoreauPrimal,
    "Moreau, torch, dual": MoreauDual,
    "Moreau, torch, interior point": MoreauInterior,
    "Moreau, NumPy, primal": MoreauNumpyPrimal,
    "Moreau, NumPy, dual": MoreauNumpyDual,
    "qpth": Qpth,
    "cvxpylayers": Cvxpylayers,
    "proxsuite": Proxsuite,
    "daqp, loop": Daqp,
}


# ---------------------------------------------------------------------- measuring


def measured(name: str, batch: int, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Times and errors of the contenders on one case, in turn."""
    case, ready = Case(name, batch), {}
    with torch.no_grad():
        reference, _ = Ours(case).forward()
    gradient = (ours := Ours(case)).backward(ours.forward()[1])
    for who in names:
        try:
            contender = CONTENDERS[who](case)
            W, state = contender.forward()
            bar = contender.backward(state)
        except Exception as error:  # a peer that is not installed, or cannot solve this
            yield who, {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}
            continue
        apart = (W.detach() - reference).flatten(1).norm(dim=1) / reference.flatten(1).norm(dim=1)
        row: dict[str, Any] = {"error of W": float(apart.median()), "worst of W": float(apart.max())}
        if bar is not None:
            off = (bar - gradient).flatten(1).norm(dim=1) / gradient.flatten(1).norm(dim=1)
            row |= {"error of gradient": float(off.median())}
        ready[who] = contender, row, [], []
    start = time.process_time()
    for turn in range(ROUNDS):
        if turn > 1 and time.process_time() - start > MOST:
            break
        for contender, _, forwards, backwards in ready.values():
            begin = time.process_time()
            _, state = contender.forward()
            middle = time.process_time()
            if contender.backward(state) is not None:
                backwards.append(1e3 * (time.process_time() - middle))
            forwards.append(1e3 * (middle - begin))
            if turn == 0 and sum(forwards + backwards) > 1e3 * LONG:
                break
    for who, (_, row, forwards, backwards) in ready.items():
        if not forwards:
            continue
        row["forward"] = min(forwards)
        if backwards:
            row["together" if who == "ours, JAX" else "backward"] = min(backwards)
        yield who, row


def peak_of(name: str, batch: int, who: str) -> float:
    """MB that one pass forward and backward takes beyond its data, in this process."""
    small = CONTENDERS[who](Case(name, 2))
    small.backward(small.forward()[1])  # what is compiled and loaded stays
    contender = CONTENDERS[who](Case(name, batch))
    Path("/proc/self/clear_refs").write_text("5")
    before = _megabytes("VmRSS")
    contender.backward(contender.forward()[1])
    return _megabytes("VmHWM") - before


def _megabytes(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def memory(name: str, who: str, batches: tuple[int, ...]) -> dict[int, float]:
    """The peaks, each in a process of its own."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    out = {}
    for batch in batches:
        with context.Pool(1) as pool:
            out[batch] = round(pool.apply(peak_of, (name, batch, who)), 1)
    return out


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# ---------------------------------------------------------------------- tables


def tables(record: dict[str, Any]) -> str:
    """Milliseconds forward / backward of every case, a column for each batch, and ratios."""
    out = []
    for name, by_batch in record["cases"].items():
        (n, T, d, e), price = CASES[name]
        soft = "" if price is None else f", C = {price}"
        batches = list(by_batch)
        out.append(f"**{name.capitalize()}**, n, T, d, e = {n}, {T}, {d}, {e}{soft}: ms forward / backward\n")
        heads = " | ".join(f"batch {int(b):,}" for b in batches)
        out.append(f"| | {heads} | error of W | of gradient |")
        out.append("|---" * (len(batches) + 3) + "|")
        for who in CONTENDERS:
            rows = [by_batch[b].get(who, {}) for b in batches]
            ready = [row for row in rows if "forward" in row]
            if not ready:
                continue
            cells = [_cell(row) for row in rows]
            last, keys = ready[-1], ("error of W", "error of gradient")
            errors = [f"{last[key]:.0e}" if key in last else "–" for key in keys]
            out.append(f"| {who} | {' | '.join(cells)} | {' | '.join(errors)} |")
        out.append("")
    return "\n".join(out)


def ratios(record: dict[str, Any]) -> str:
    """Time forward and backward of Moreau's torch layer (primal, dual) and of its best path, per ours."""
    out = [
        "| forward and backward, per ours | batch | torch, primal | torch, dual | best path |",
        "|---|---|---|---|---|",
    ]
    for name, by_batch in record["cases"].items():
        for batch, rows in by_batch.items():
            total = {who: x["forward"] + x["backward"] for who, x in rows.items() if "backward" in x}
            paths = {who: total[who] / total["ours"] for who in total if who.startswith("Moreau")}
            if paths:
                cells = [paths.get(f"Moreau, torch, {form}") for form in ("primal", "dual")]
                cells.append(min(paths.values()))
                numbers = " | ".join("" if x is None else f"{x:.1f}" for x in cells)
                out.append(f"| {name} | {int(batch):,} | {numbers} |")
    return "\n".join(out)


def _cell(row: dict[str, Any]) -> str:
    if "together" in row:
        return f"{_ms(row['forward'])}, both {_ms(row['together'])}"
    return f"{_ms(row['forward'])} / {_ms(row.get('backward'))}" if "forward" in row else ""


def _ms(number: float | None) -> str:
    return "–" if number is None else f"{number:.2g}" if number < 10 else f"{number:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--batches", nargs="*", type=int, default=BATCHES)
    parser.add_argument("--contenders", nargs="*", default=list(CONTENDERS))
    parser.add_argument("--memory", action="store_true", help="only the peaks of memory")
    options = parser.parse_args()
    if options.tables:
        record = json.loads(options.tables.read_text())
        print(tables(record), ratios(record), sep="\n")
        return
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # with two cores ours would take threads
    old = json.loads(options.record.read_text()) if options.record and options.record.exists() else {}
    record: dict[str, Any] = {"versions": {p: installed(p) for p in PEERS}, "cases": {}, "memory": {}} | old

    def keep() -> None:
        if options.record:
            options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf8")

    if options.memory:
        for who in ("ours", "Moreau, torch, dual"):
            record["memory"][who] = memory("matrices", who, (100, 1_000, 10_000))
            print(who, record["memory"][who], flush=True)
        keep()
        return
    for name in options.cases:
        names = list(options.contenders)
        for batch in options.batches:
            if "ours" not in names:
                break
            rows = dict(measured(name, batch, names))
            record["cases"].setdefault(name, {}).setdefault(str(batch), {}).update(rows)
            keep()
            following = next((b for b in options.batches if b > batch), batch)
            for who, row in rows.items():
                short = {k: f"{v:.2g}" if isinstance(v, float) else v for k, v in row.items()}
                print(name, batch, who, short, flush=True)
                took = (row.get("forward", np.inf) + row.get("backward", 0.0)) / 1e3
                if took * following / batch > LONG:
                    names.remove(who)


if __name__ == "__main__":
    main()
