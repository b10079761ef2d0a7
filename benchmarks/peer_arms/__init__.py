"""The arms of benchmarks/peers.py: the same training, written with different tools."""
