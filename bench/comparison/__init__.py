"""The parts of `bench/peers.py`, which describes what they do together.

`collectives` defines sizes and memory traffic; `libraries` installs, builds and starts each
library; `processes` starts programs and leaves no process behind; `measure` orders the runs;
`summary` turns times into rows; `memory` measures the limit; `report` turns rows into a table and a
file; `presets` are named sets of sizes, and `machine` names the folder of the results. `plot` draws
a file of rows and is run separately, in an environment of its own.
"""
