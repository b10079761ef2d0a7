rule cache:
    """What the frozen backbone computes of every image, once: features, or a CLIP's patches."""
    input:
        **data_of("cache"),
        weights=ancient(PLAN.weights),
    output:
        tensors=paths.CACHE,
        receipt=paths.receipt(paths.CACHE),
    log:
        paths.log("{cache}", paths.CACHE),
    threads: 1
    resources:
        **requested("cache"),
        gpu=GPU,
    params:
        **described("cache"),
    shell:
        stage("cache", gpu=True)


rule prototypes:
    """The warm start of class prototypes, for methods that need it (PEP-FedPT, Eq. 18-19)."""
    input:
        **data_of("prototypes"),
    output:
        tensors=paths.PROTOTYPES,
        receipt=paths.receipt(paths.PROTOTYPES),
    log:
        paths.log("prototypes", paths.PROTOTYPES),
    threads: 1
    resources:
        **requested("prototypes"),
    params:
        **described("prototypes"),
    shell:
        stage("prototypes")


rule block_accuracy:
    """How well class prototypes tell test images apart at every block, before any training."""
    input:
        **data_of("block_accuracy"),
    output:
        paths.BLOCK_ACCURACY,
    log:
        paths.log("block_accuracy", paths.BLOCK_ACCURACY),
    threads: 1
    resources:
        **requested("block_accuracy"),
    params:
        **described("block_accuracy"),
    shell:
        stage("block_accuracy")
