"""Random programs over torch: drawn from a seed, run by all ranks, and checked element by element.

`steps` defines a program's steps as data, `generator` draws them, `oracle` computes the results of
calls, `layouts` places tensors in memory, `calls` makes the calls of torch, `runner` runs programs
on a rank, and `shortest` reduces a failing program.
"""
