# Patterns of the files of the study's tables and figures, without their suffixes.
TABLE = paths.TABLE.replace("{study}", PLAN.name).removesuffix(".md")
FIGURE = paths.FIGURE.replace("{study}", PLAN.name).removesuffix(".pdf")


rule table:
    """Write a table of the runs' numbers by method, over seeds."""
    input:
        compare_receipts,
        results=lambda wildcards: PLAN.shown_files("table", wildcards),  # as its kind asks
    output:
        md=f"{TABLE}.md",
        csv=f"{TABLE}.csv",
        tex=f"{TABLE}.tex",
        html=f"{TABLE}.html",
        parquet=f"{TABLE}.parquet",
    log:
        paths.log_path("table", f"{TABLE}.md"),
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        job=job_of("table"),
        sources=sources_of("table"),
    shell:
        job_command("table")


rule figure:
    """Draw a figure as PDF (vector) and PNG."""
    input:
        compare_receipts,
        results=lambda wildcards: PLAN.shown_files("figure", wildcards),  # as its kind asks
    output:
        pdf=f"{FIGURE}.pdf",
        png=f"{FIGURE}.png",
    log:
        paths.log_path("figure", f"{FIGURE}.pdf"),
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        job=job_of("figure"),
        sources=sources_of("figure"),
    shell:
        job_command("figure")


rule partition_chart:
    """Draw how many training images of each class every client has."""
    input:
        partition=ancient(paths.PARTITION),
        partition_receipt=paths.receipt(paths.PARTITION),
        store_receipt=paths.receipt(paths.STORE),  # for the names of classes
    output:
        png=paths.PARTITION_CHART,
        pdf=paths.PARTITION_CHART.replace(".png", ".pdf"),
    log:
        paths.log_path("partition_chart", paths.PARTITION_CHART),
    threads: 1
    resources:
        mem_mb=1000,
        runtime=30,
    params:
        job=job_of("partition_chart"),
        sources=sources_of("partition_chart"),
    shell:
        job_command("partition_chart")
