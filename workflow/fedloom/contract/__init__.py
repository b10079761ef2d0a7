"""The checks that every method must pass, also one of a third party: `fedloom check <name>`."""
