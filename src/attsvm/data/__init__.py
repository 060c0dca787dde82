"""The data: tokens, selections of tokens, and paths of weights.

tokens.py has `Tokens`, token_checks.py the checks of its arrays with their messages, equal_keys.py what
tokens with one key share. selection.py has scores and selections, path.py the weights of a run.
"""
