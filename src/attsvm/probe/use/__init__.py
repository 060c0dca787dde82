"""A fitted probe at work: on a stream, in a file, in torch, and the methods that lead to all reading."""
