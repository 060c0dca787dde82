"""The layer on a GPU."""

import jax
import pytest

from tests.jax_.gpu_gradients import ALLOWED, in_fresh_processes

PROCESSES = 12


def test_the_gradient_on_a_gpu_is_that_on_the_cpu_in_every_process():
    if jax.default_backend() != "gpu":
        pytest.skip("needs a GPU")
    for differences in in_fresh_processes(PROCESSES):
        assert max(differences.values()) <= ALLOWED
