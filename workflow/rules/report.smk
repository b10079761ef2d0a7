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
