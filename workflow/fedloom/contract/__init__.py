"""Checks that every method must pass, ours or a third party's: `fedloom check <name>`."""
