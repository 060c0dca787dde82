"""How a solution changes with its tokens: derivatives of W, norm, multipliers and shortfall, for all callers.

    f = N²/2,  M = ∇f(W) = Σ μ_j A_j,  H = ∇²f*(M);  the active rows A (ties included) stay at their bounds b:
    K q = A H W̄ + μ̄,  K = A H Aᵀ,    P = H (W̄ − Aᵀ q),    b̄ = q,    Ā_j = μ_j P − q_j W

optimum.py has solutions as plain arrays near one; active.py says which rows are active, and how clearly.
gram.py has q and P in the Frobenius norm, all runs at once; one_run.py has them in lp and Schatten(p) norms,
with the H of curvature.py, and at vertices of l1 and l∞, which polish.py makes exact. gram.py spreads them
over the data in every norm. pull_back.py is the verb: cotangents of the results in, cotangents of keys,
queries, margins and prices out. arguments.py prepares what layers of torch and JAX take; batch.py solves it.

Rows are chosen in active.py alone: no other choice hangs on rounded numbers, and `strictness` says how close
that one was.
"""
