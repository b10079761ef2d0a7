rule dataset:
    """Images, labels and split as a memory-mapped Arrow file."""
    output:
        store=paths.STORE,
        receipt=paths.receipt(paths.STORE),
    log:
        paths.log("dataset", paths.STORE),
    threads: 1
    resources:
        mem_mb=requested("dataset", "mem_mb"),
        runtime=requested("dataset", "runtime"),
    params:
        job=job(PLAN.dataset_job),
        sources=sources("dataset", PLAN.dataset_job),
    shell:
        stage("dataset")


rule partition:
    """The client of every image."""
    input:
        **data_of("partition"),
    output:
        partition=paths.PARTITION,
        receipt=paths.receipt(paths.PARTITION),
    log:
        paths.log("partition", paths.PARTITION),
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        job=job(PLAN.partition_job),
        sources=sources("partition", PLAN.partition_job),
    shell:
        stage("partition")
