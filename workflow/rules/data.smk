rule dataset:
    """Images, labels and split as a memory-mapped Arrow file."""
    input:
        compared,
    output:
        store=paths.STORE,
        receipt=paths.receipt(paths.STORE),
    log:
        paths.log("dataset", paths.STORE),
    threads: 1
    resources:
        **requested("dataset"),
    params:
        **described("dataset"),
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
        **described("partition"),
    shell:
        stage("partition")
