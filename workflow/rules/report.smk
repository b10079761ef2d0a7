TABLE = paths.TABLE.replace("{study}", PLAN.name)
FIGURE = paths.FIGURE.replace("{study}", PLAN.name)


rule table:
    """Numbers of the runs by method, over seeds."""
    input:
        compared,
        results=lambda w: PLAN.shown_files("table", w),
    output:
        **{f: TABLE.replace(".md", f".{f}") for f in paths.TABLE_FORMATS},
    log:
        paths.log("table", TABLE),
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        **described("table"),
    shell:
        stage("table")


rule figure:
    """A figure as PDF (vector) and PNG."""
    input:
        compared,
        results=lambda w: PLAN.shown_files("figure", w),
    output:
        pdf=FIGURE,
        png=FIGURE.replace(".pdf", ".png"),
    log:
        paths.log("figure", FIGURE),
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        **described("figure"),
    shell:
        stage("figure")


rule partition_chart:
    """Who holds what: clients, classes, training images."""
    input:
        **data_of("partition_chart"),
        store_receipt=paths.receipt(paths.STORE),  # for the names of classes
    output:
        png=paths.PARTITION_CHART,
        pdf=paths.PARTITION_CHART.replace(".png", ".pdf"),
    log:
        paths.log("partition_chart", paths.PARTITION_CHART),
    threads: 1
    resources:
        mem_mb=1000,
        runtime=30,
    params:
        **described("partition_chart"),
    shell:
        stage("partition_chart")
