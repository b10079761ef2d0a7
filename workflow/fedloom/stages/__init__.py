"""One module per rule: `python -m fedloom.stages <stage> --job JSON` calls its `run`.

A stage reads and writes the files that fedloom.study.paths names for its job, and leaves the work
to the library.
"""
