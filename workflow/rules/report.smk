# of each partition, the first seed's
PARTITION_CHARTS = expand(
    f"{PARTITION}.png",
    dataset=STUDY["run"]["datasets"],
    partition=STUDY["run"]["partitions"],
    seed=STUDY["study"]["seeds"][0],
)


rule main_table:
    """Accuracy by method, over seeds."""
    input:
        evaluations=[f"results/runs/{run.path}/evaluation.parquet" for run in runs(STUDY)],
        src=sources("evaluation/metrics.py", "report/tables.py"),
    output:
        md=f"results/tables/{STUDY['study']['name']}/main.md",
        csv=f"results/tables/{STUDY['study']['name']}/main.csv",
        tex=f"results/tables/{STUDY['study']['name']}/main.tex",
        parquet=f"results/tables/{STUDY['study']['name']}/main.parquet",
    params:
        spec=canonical(
            {
                "study": {"name": STUDY["study"]["name"]},
                "rounds": reported_rounds(STUDY["study"]),
                "runs": [
                    {
                        "dataset": run.dataset,
                        "partition": run.partition,
                        "backbone": run.backbone,
                        "method": run.method,
                        "title": STUDY["methods"][run.method]["title"],
                        "evaluation": f"results/runs/{run.path}/evaluation.parquet",
                    }
                    for run in runs(STUDY)
                ],
            }
        ),
    log:
        f"results/logs/tables/{STUDY['study']['name']}/main.log",
    benchmark:
        f"results/benchmarks/tables/{STUDY['study']['name']}/main.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    shell:
        "python -m fedloom.cli tables --spec {params.spec:q} --out {output.md} --log {log}"


rule partition_chart:
    """Who holds what: clients, classes, training images."""
    input:
        about="results/datasets/{dataset}/about.json",
        partition=ancient(f"{PARTITION}.parquet"),
        receipt=f"{PARTITION}.json",
        src=sources("report/partition_chart.py"),
    output:
        png=report(
            f"{PARTITION}.png",
            category="Partitions",
            labels={"dataset": "{dataset}", "partition": "{partition}", "seed": "{seed}"},
        ),
        pdf=f"{PARTITION}.pdf",
    log:
        "results/logs/partition_chart/{dataset}/{partition}/seed{seed}.log",
    benchmark:
        "results/benchmarks/partition_chart/{dataset}/{partition}/seed{seed}.tsv"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=30,
    shell:
        "python -m fedloom.cli partition_chart --partition {input.partition}"
        " --about {input.about} --png {output.png} --pdf {output.pdf} --log {log}"
