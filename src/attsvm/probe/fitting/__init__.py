"""From tokens and targets to fitted weights.

attention     the formula of a probe, in blocks and on a stream
objective     standardised tokens, log loss and ridges; evaluation: its value, gradient and curvature, which
              compiled_pass computes for many tokens
descent       L-BFGS for many functions at once
folds         weights of sequences, and which are held out
fits          the ridges that the data choose, and the fits with these ridges
features      kernel maps of tokens; relu: trained maps; kinds: the choice among them
"""
