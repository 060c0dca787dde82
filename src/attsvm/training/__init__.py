"""Road two: softmax attention trained past saturation (JAX, optax)."""
