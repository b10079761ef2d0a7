"""Keep the claims that micro studies tested in docs/results/claims, with a table for each paper.

Give the folders in which the studies were run: the claims that they tested take the place of those
that are kept of the same studies. `real_results.py write` then sets the tables into docs/claims.md.
"""

import argparse
from pathlib import Path

import pandas as pd

from fedloom.common.files import write_text
from fedloom.config.reading import read
from fedloom.machine.install import ROOT

PAPERS = ROOT / "workflow/papers"
KEPT = ROOT / "docs/results/claims"
UNITS = {
    "million_params": " million numbers", "params_up": " numbers", "rounds": " rounds",
    "train_loss": " nats",
}  # fmt: skip
FORMS = {"params_up": "{:+,.0f}", "train_loss": "{:+.3f}"}
VERDICTS = ("holds", "does not hold", "undecided")


def tested(folder: Path) -> pd.DataFrame:
    """Return the claims that the studies of a folder have tested, as `fedloom` writes them."""
    tables = []
    for path in sorted(folder.glob("results/tables/*/claims*.parquet")):
        table = pd.read_parquet(path)
        table.insert(0, "study", path.parent.name)
        tables.append(table[table["verdict"].isin(VERDICTS)])
    return pd.concat(tables)


def line(claim: pd.Series) -> dict[str, str]:
    """Return a claim as people read it."""
    form = FORMS.get(claim["metric"], "{:+.1f}")
    difference, low, high = (form.format(claim[key]) for key in ("difference", "low", "high"))
    unit = UNITS.get(claim["metric"], "")
    return {
        "claim": claim["says"],
        "in the paper": claim["where"].split(", Section")[0],
        "setting": claim["setting"],
        "study": f"`{claim['study']}`",
        "seeds": f"{claim['seeds']:.0f}",
        "difference [95 %]": f"{difference} [{low}, {high}]{unit}",
        "holds": _within(claim["within_low"], claim["within_high"]),
        "against": claim["rival"] or "",
        "verdict": claim["verdict"] + (f" ({claim['reason']})" if claim["reason"] else ""),
    }


def _within(low: float | None, high: float | None) -> str:
    """Return between which differences a claim holds."""
    ends = [("above", low), ("below", high)]
    return ", ".join(f"{word} {end:g}" for word, end in ends if pd.notna(end))


def counted(claims: pd.DataFrame) -> str:
    """Say how many claims there are, and how many tests have each verdict."""
    written = [
        claim for file in sorted(PAPERS.glob("*/claims.yaml")) for claim in read(file)["claims"]
    ]
    untested = sum("untested" in claim for claim in written)
    tests, run = claims["verdict"].value_counts(), claims[["paper", "says"]].drop_duplicates()
    return (
        f"Of {len(written)} claims, {untested} can be tested by no run, and the micro studies have "
        f"runs for {len(run)}. These make {len(claims)} tests; "
        + ", ".join(f"{verdict}: {tests.get(verdict, 0)}" for verdict in VERDICTS)
        + ".\n"
    )


def main() -> None:
    """Add the claims of the given folders to those that are kept, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    claims = pd.read_parquet(KEPT / "claims.parquet") if KEPT.exists() else pd.DataFrame()
    for new in map(tested, parser.parse_args().folders):
        kept = claims[~claims["study"].isin(new["study"])] if len(claims) else claims
        claims = pd.concat([kept, new], ignore_index=True)
    # two studies may test a claim by runs that they share
    claims = claims.drop_duplicates(["paper", "says", "setting", "difference", "low", "high"])
    claims = claims.sort_values(["paper", "says", "study"])
    KEPT.mkdir(exist_ok=True)
    claims.to_parquet(KEPT / "claims.parquet", index=False)
    write_text(KEPT / "counts.md", counted(claims))
    for paper, rows in claims.groupby("paper"):
        table = pd.DataFrame([line(row) for _, row in rows.iterrows()])
        write_text(KEPT / f"{paper}.md", table.to_markdown(index=False) + "\n")


if __name__ == "__main__":
    main()
