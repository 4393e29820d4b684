"""How cost grows: one curve for each thing there can be more of. `python -m bench.growth`; docs/benchmarks.md."""
