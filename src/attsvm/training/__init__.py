"""Road two: softmax attention trained past saturation (JAX, optax).

A run: `train` checks its arguments and chooses the recorded steps (inputs), plans what is compiled (plan) and
in which layout (layout), runs it until its last step or its convergence (driver from memory, streaming in
chunks), and makes the path. engine has the compiled loop, fused the kernel of a GPU, devices the sharing of
runs, segments Ctrl-C and the length of calls, resume the saved state.
A step: attention and sums (gradient and excess), losses, prediction_heads, weights, data, batches, and rules,
which optimizers makes; directions and schedules serve them.
A regularisation path: regularise, search, radius, balls.
Shared: types, runs (the runs axis), programs (how many compiled ones are kept in memory), compilation (how
XLA compiles, and programs on disk).
"""
