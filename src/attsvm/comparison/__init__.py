"""Where training and program meet: verdicts, theory.

verdict.py compares a path with a solution and judges claims, theory.py has the norm that each weight and
optimizer tends to, hypotheses.py what that needs and whether it holds, likeness.py measures optimizers of
other libraries, kkt.py says where a trained pair K, Q stands. A new limit is a case of the table in
theory.py.
"""
