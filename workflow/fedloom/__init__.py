"""FedLoom: federated prompt tuning as one Snakemake workflow."""
