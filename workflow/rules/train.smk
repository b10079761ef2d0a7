CONFUSION = PLAN.settings.study.confusion  # whether runs have the counts of answers


rule train:
    """Train several rounds of a run; a killed job resumes after its last finished round."""
    input:
        store=ancient(paths.STORE),
        partition=ancient(paths.PARTITION),
        features=ancient(if_needed("features", paths.FEATURES)),
        patches=ancient(if_needed("patches", paths.PATCHES)),
        prototypes=ancient(if_needed("prototypes", paths.PROTOTYPES)),
        store_receipt=paths.receipt(paths.STORE),
        partition_receipt=paths.receipt(paths.PARTITION),
        features_receipt=if_needed("features", paths.receipt(paths.FEATURES)),
        patches_receipt=if_needed("patches", paths.receipt(paths.PATCHES)),
        prototypes_receipt=if_needed("prototypes", paths.receipt(paths.PROTOTYPES)),
        weights=ancient(PLAN.weights_file),
        choice=if_tuned(paths.CHOICE),
        start=ancient(lambda wildcards: PLAN.previous_job_file(wildcards, paths.STATE)),
        start_receipt=lambda wildcards: PLAN.previous_job_file(
            wildcards, paths.receipt(paths.STATE)
        ),
    output:
        evaluation=paths.JOB_TABLES["evaluation"],
        rounds=paths.JOB_TABLES["rounds"],
        clients=paths.JOB_TABLES["clients"],
        confusion=paths.JOB_TABLES["confusion"] if CONFUSION else [],
        calibration=paths.JOB_TABLES["calibration"] if CONFUSION else [],
        state=paths.STATE,
        receipt=paths.receipt(paths.STATE),
    log:
        paths.log_path("train", paths.STATE),
    threads: 1
    resources:
        mem_mb=estimated("mem_mb", "train"),
        runtime=estimated("runtime", "train"),
        gpu=GPU,
    params:
        job=job_of("train"),
        sources=sources_of("train"),
    shell:
        job_command("train", gpu=True)


rule choose:
    """Choose the best of a method's trials (study.tune), by accuracy on held-back images."""
    input:
        evaluations=PLAN.trial_files,  # paths.EVALUATION of each trial
    output:
        trials=paths.TRIALS,
        chosen=paths.CHOICE,  # the best one alone: runs do not depend on numbers of the others
    log:
        paths.log_path("choose", paths.CHOICE),
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        job=job_of("choose"),
        sources=sources_of("choose"),
    shell:
        job_command("choose")


rule evaluate:
    """Join the tables of a run's jobs: evaluations, rounds, and updates of clients."""
    input:
        evaluation=lambda wildcards: PLAN.job_files(
            wildcards, paths.JOB_TABLES["evaluation"]
        ),
        rounds=lambda wildcards: PLAN.job_files(wildcards, paths.JOB_TABLES["rounds"]),
        clients=lambda wildcards: PLAN.job_files(wildcards, paths.JOB_TABLES["clients"]),
        confusion=lambda wildcards: (
            PLAN.job_files(wildcards, paths.JOB_TABLES["confusion"])
            if CONFUSION
            else []
        ),
        calibration=lambda wildcards: (
            PLAN.job_files(wildcards, paths.JOB_TABLES["calibration"])
            if CONFUSION
            else []
        ),
        receipts=lambda wildcards: PLAN.job_files(wildcards, paths.receipt(paths.STATE)),
    output:
        evaluation=paths.RUN_TABLES["evaluation"],
        rounds=paths.RUN_TABLES["rounds"],
        clients=paths.RUN_TABLES["clients"],
        confusion=paths.RUN_TABLES["confusion"] if CONFUSION else [],
        calibration=paths.RUN_TABLES["calibration"] if CONFUSION else [],
    log:
        paths.log_path("evaluate", paths.EVALUATION),
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        job=job_of("evaluate"),
        sources=sources_of("evaluate"),
    shell:
        job_command("evaluate")


rule artefact:
    """Compute a method's own table for figures and tables: soft weights, groups, pool sizes, ..."""
    input:
        store=ancient(paths.STORE),
        partition=ancient(paths.PARTITION),
        features=ancient(if_needed("features", paths.FEATURES)),
        patches=ancient(if_needed("patches", paths.PATCHES)),
        prototypes=ancient(if_needed("prototypes", paths.PROTOTYPES)),
        others=ancient(PLAN.other_inputs),  # of other datasets that clients are tested on
        store_receipt=paths.receipt(paths.STORE),
        partition_receipt=paths.receipt(paths.PARTITION),
        features_receipt=if_needed("features", paths.receipt(paths.FEATURES)),
        patches_receipt=if_needed("patches", paths.receipt(paths.PATCHES)),
        prototypes_receipt=if_needed("prototypes", paths.receipt(paths.PROTOTYPES)),
        other_receipts=lambda wildcards: list(
            map(paths.receipt, PLAN.other_inputs(wildcards))
        ),
        weights=ancient(PLAN.weights_file),
        choice=if_tuned(paths.CHOICE),
        state=ancient(lambda wildcards: PLAN.last_job_file(wildcards, paths.STATE)),
        state_receipt=lambda wildcards: PLAN.last_job_file(
            wildcards, paths.receipt(paths.STATE)
        ),
    output:
        paths.ARTEFACT,
    log:
        paths.log_path("artefact", paths.ARTEFACT),
    threads: 1
    resources:
        mem_mb=estimated("mem_mb", "artefact"),
        runtime=estimated("runtime", "artefact"),
        gpu=GPU,
    params:
        job=job_of("artefact"),
        sources=sources_of("artefact"),
    shell:
        job_command("artefact", gpu=True)
