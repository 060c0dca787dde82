"""Gradients of soft margins on a GPU beside those on the CPU, each time in a fresh process.

    python -m tests.jax_.gpu_gradients 12      # one line per process; fails where one is far from the CPU's

XLA tunes its products anew in every process, and with them the last digits of what they give.
"""

import json
import os
import subprocess
import sys

ALLOWED = 1e-9
"""Difference of a gradient, relative to the largest entry of it: rounding of W by the two devices."""


def differences() -> dict[str, float]:
    """Of this process, by the names of the inputs."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from attsvm.jax import max_margin

    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    shapes = {"keys": (3, 2, 4, 5), "queries": (3, 2, 3), "required": (3, 2), "slack": (3, 2)}
    data = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    data |= {"required": 0.5 + abs(data["required"]), "slack": 0.05 + 0.1 * abs(data["slack"])}
    selected, weights = rng.integers(0, 4, (3, 2)), rng.normal(size=(3, 2))

    def value(data):
        return (weights * max_margin(**data, selected=selected).shortfall).sum()

    by_device = []
    for device in (jax.local_devices(backend="gpu")[0], jax.local_devices(backend="cpu")[0]):
        with jax.default_device(device):
            gradient = jax.jit(jax.grad(value))({k: jnp.asarray(x) for k, x in data.items()})
            by_device.append({k: np.asarray(x) for k, x in gradient.items()})
    gpu, cpu = by_device
    return {k: float(np.abs(gpu[k] - cpu[k]).max() / np.abs(cpu[k]).max()) for k in data}


def in_fresh_processes(count: int) -> list[dict[str, float]]:
    """The differences of every process; raises what a process says that fails."""
    environment = os.environ | {"JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-m", "tests.jax_.gpu_gradients"]
    found = []
    for _ in range(count):
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if process.returncode:
            raise RuntimeError(process.stderr)
        found.append(json.loads(process.stdout.splitlines()[-1]))
    return found


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(json.dumps(differences()))
        sys.exit()
    lines = in_fresh_processes(int(sys.argv[1]))
    print(*map(json.dumps, lines), sep="\n")
    sys.exit(not all(max(line.values()) <= ALLOWED for line in lines))
