rule dataset:
    """Write the images, labels and split of a dataset to a memory-mapped Arrow file."""
    input:
        compare_receipts,
    output:
        store=paths.STORE,
        receipt=paths.receipt(paths.STORE),
    log:
        paths.log_path("dataset", paths.STORE),
    threads: 1
    resources:
        mem_mb=estimated("mem_mb", "dataset"),
        runtime=estimated("runtime", "dataset"),
    params:
        job=job_of("dataset"),
        sources=sources_of("dataset"),
    shell:
        job_command("dataset")


rule partition:
    """Divide the images of a dataset over clients."""
    input:
        store=ancient(paths.STORE),
        store_receipt=paths.receipt(paths.STORE),
    output:
        partition=paths.PARTITION,
        receipt=paths.receipt(paths.PARTITION),
    log:
        paths.log_path("partition", paths.PARTITION),
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        job=job_of("partition"),
        sources=sources_of("partition"),
    shell:
        job_command("partition")
