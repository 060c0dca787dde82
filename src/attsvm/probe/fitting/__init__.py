"""From tokens and targets to fitted weights: one objective, its minimiser, the ridges and the features."""
