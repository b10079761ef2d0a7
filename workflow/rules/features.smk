rule cache:
    """Run the frozen backbone over every image once, and keep features, or a CLIP's patches."""
    input:
        store=ancient(paths.STORE),
        store_receipt=paths.receipt(paths.STORE),
        weights=ancient(PLAN.weights_file),
    output:
        tensors=paths.CACHE,
        receipt=paths.receipt(paths.CACHE),
    log:
        paths.log_path("{cache}", paths.CACHE),
    threads: 1
    resources:
        mem_mb=estimated("mem_mb", "cache"),
        runtime=estimated("runtime", "cache"),
        gpu=GPU,
    params:
        job=job_of("cache"),
        sources=sources_of("cache"),
    shell:
        job_command("cache", gpu=True)


rule prototypes:
    """Compute the warm start of class prototypes, which some methods need (PEP-FedPT, Eq. 18-19)."""
    input:
        store=ancient(paths.STORE),
        partition=ancient(paths.PARTITION),
        features=ancient(paths.FEATURES),
        store_receipt=paths.receipt(paths.STORE),
        partition_receipt=paths.receipt(paths.PARTITION),
        features_receipt=paths.receipt(paths.FEATURES),
    output:
        tensors=paths.PROTOTYPES,
        receipt=paths.receipt(paths.PROTOTYPES),
    log:
        paths.log_path("prototypes", paths.PROTOTYPES),
    threads: 1
    resources:
        mem_mb=estimated("mem_mb", "prototypes"),
        runtime=estimated("runtime", "prototypes"),
    params:
        job=job_of("prototypes"),
        sources=sources_of("prototypes"),
    shell:
        job_command("prototypes")


rule block_accuracy:
    """Measure how well class prototypes classify test images at every block, before training."""
    input:
        store=ancient(paths.STORE),
        features=ancient(paths.FEATURES),
        store_receipt=paths.receipt(paths.STORE),
        features_receipt=paths.receipt(paths.FEATURES),
    output:
        paths.BLOCK_ACCURACY,
    log:
        paths.log_path("block_accuracy", paths.BLOCK_ACCURACY),
    threads: 1
    resources:
        mem_mb=estimated("mem_mb", "block_accuracy"),
        runtime=estimated("runtime", "block_accuracy"),
    params:
        job=job_of("block_accuracy"),
        sources=sources_of("block_accuracy"),
    shell:
        job_command("block_accuracy")
