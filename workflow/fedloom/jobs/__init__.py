"""One module per rule, which runs a job of that rule.

`python -m fedloom.jobs <rule> --job JSON` calls `run` of the module `<rule>_job`. It reads and
writes the files that fedloom.planning.paths names for the job, and leaves the work to the library.
"""
