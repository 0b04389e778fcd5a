"""Benchmarks: plain SQL first (the floor), then fencepost, on the same databases, in one run.

    python -m bench --databases sqlite,postgresql,mysql --jobs 50000

Figures of two machines, or of two moments, say little beside each other; the ratios of one run do.
"""
