"""The data: tokens, selections of tokens, and paths of weights."""
