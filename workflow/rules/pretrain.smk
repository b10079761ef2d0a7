rule pretrain:
    """Make a shipped micro backbone again, beside the one in workflow/resources that runs use."""
    output:
        weights=paths.PRETRAINED,
        card=paths.PRETRAINED.replace(".safetensors", ".md"),
    log:
        paths.log("pretrain", paths.PRETRAINED),
    wildcard_constraints:
        model="micro_vit|micro_clip",
    threads: 2
    resources:
        mem_mb=4000,
        runtime=120,
    params:
        job=job(PLAN.pretrain_job),
        sources=sources(lambda w: PLAN.pretrain_sources(w.model)),
    shell:
        stage("pretrain")
