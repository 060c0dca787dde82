"""How a solution changes with its tokens: derivatives of W, norm and multipliers, for all callers.

    f = N²/2,  M = ∇f(W) = Σ μ_j A_j,  H = ∇²f*(M);  the active rows A (ties included) stay at their bounds b:
    K q = A H W̄ + μ̄,  K = A H Aᵀ,    P = H (W̄ − Aᵀ q),    b̄ = q,    Ā_j = μ_j P − q_j W

optimum.py has solutions as plain arrays; active.py says which rows are active, and how clearly. gram.py is
the derivative in the Frobenius norm, all runs at once; one_run.py that in lp and Schatten(p) norms, with the
H of curvature.py, and at vertices of l1 and l∞. pull_back.py is the verb: cotangents of the results in,
cotangents of keys, queries, margins and prices out. polish.py has solutions up to rounding, and batch.py what
layers of torch and JAX share; arguments.py has the words in which both refuse.
"""
