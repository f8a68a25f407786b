"""The parts of `bench/peers.py`, which says what they do together.

`collectives` says what a size means and how much memory traffic it needs; `libraries` how each library is installed,
built and started; `processes` starts them and leaves none behind; `measure` is the order of the runs; `summary` makes
times rows; `memory` measures the limit; `report` makes rows a table and a file; `presets` are the sets of sizes with a
name, and `machine` that of a results' folder. `plot` draws a file of rows and runs alone, in an environment of its own.
"""
