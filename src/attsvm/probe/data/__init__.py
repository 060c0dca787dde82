"""Token sequences in every form: sequences reads a caller's, store holds them, backends computes on them."""
