"""Run jobs: there is one module for each rule.

`python -m fedloom.jobs <rule> --job JSON` calls the function `run_job` of the module `<rule>_job`.
This function reads and writes the files that fedloom.planning.paths names for the job, and leaves
all other work to the library.
"""
