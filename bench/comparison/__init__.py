"""Parts of `bench/peers.py`, which describes their common purpose.

`collectives` defines sizes and memory traffic; `libraries` installs, builds and runs each library;
`launchers` starts ranks, on this host or on several, and `hosts` describes these; `processes`
starts programs and leaves no process behind; `measure` orders the runs; `summary` turns times into
rows; `memory` measures the limit; `report` and `markdown` turn rows into tables and a file;
`presets` are named sets of sizes, and `machine` describes this machine. `plot` draws a file of
rows; it runs separately, in its own environment.
"""
