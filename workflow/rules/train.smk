rule train:
    """A job of several rounds; killed, it resumes after its last finished round."""
    input:
        **RUN_INPUTS,
        start=lambda w: ancient(PLAN.start(w, paths.STATE)),
        start_receipt=lambda w: PLAN.start(w, paths.receipt(paths.STATE)),
    output:
        **{name: paths.JOB_TABLES[name] for name in PLAN.run_tables},
        state=paths.STATE,
        receipt=paths.receipt(paths.STATE),
    log:
        paths.log("train", paths.STATE),
    threads: 1
    resources:
        **requested("train"),
        gpu=GPU,
    params:
        **described("train"),
    shell:
        stage("train", gpu=True)


rule choose:
    """The best of a method's trials (study.tune), by accuracy on images that they held back."""
    input:
        evaluations=PLAN.trials,
    output:
        trials=paths.TRIALS,
        chosen=paths.CHOICE,  # alone, so that runs stay when another trial's number changes
    log:
        paths.log("choose", paths.CHOICE),
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        **described("choose"),
    shell:
        stage("choose")


rule evaluate:
    """The rows of a run's jobs in one file each: evaluations, rounds, and updates of clients."""
    input:
        **{name: tables_of_jobs(name) for name in PLAN.run_tables},
        receipts=lambda w: PLAN.job_files(w, paths.receipt(paths.STATE)),
    output:
        **{name: paths.RUN_TABLES[name] for name in PLAN.run_tables},
    log:
        paths.log("evaluate", paths.EVALUATION),
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        **described("evaluate"),
    shell:
        stage("evaluate")


rule artefact:
    """A method's own table for figures and tables: soft weights, groups, sizes of a pool, ..."""
    input:
        **RUN_INPUTS,
        state=lambda w: ancient(PLAN.last(w, paths.STATE)),
        state_receipt=lambda w: PLAN.last(w, paths.receipt(paths.STATE)),
    output:
        paths.ARTEFACT,
    log:
        paths.log("artefact", paths.ARTEFACT),
    threads: 1
    resources:
        **requested("artefact"),
        gpu=GPU,
    params:
        **described("artefact"),
    shell:
        stage("artefact", gpu=True)
