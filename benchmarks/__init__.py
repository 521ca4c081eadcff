"""How fast the library is, as ratios within one run: seconds of one machine say little of another.

A benchmark is a module with a `BENCHMARK` (see `benchmarks.harness`) and a line in
`benchmarks.__main__`; `python -m benchmarks NAME` runs it.
"""
