"""Checks that every method must pass, ours or a third party's: `fedloom check <name>`.

Each check trains the method for a few rounds on six tiny clients of random images and raises a
FedLoomError that names the method and what it broke.
"""
