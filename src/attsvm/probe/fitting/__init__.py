"""From tokens and targets to fitted weights.

attention     the formula of a probe, in blocks and on a stream
objective     standardised tokens, log loss and ridges: value, gradient and curvature, which compiled_pass
              computes for many tokens
descent       L-BFGS for many functions at once
folds         weights of sequences, and which are held out
fits          the ridges that the data choose, and the fits with these ridges
tolerances    the numbers that were chosen, with their reasons
features      what the prompts attend to, a probe on each kind of features, and the mean of the best
"""
