"""What `bench/gpu.sh` runs: facts about a GPU, tests of correctness on it, and speed."""
