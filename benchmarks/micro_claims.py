"""The claims of the papers that micro studies could test, in one table.

Give the folders in which the studies were run; their claims tables are read, and each claim of
which a study has runs is a line. docs/claims.md shows what it prints.
"""

import argparse
from pathlib import Path

import pandas as pd

from fedloom.common.checkout import ROOT
from fedloom.config.reading import read

CLAIMS = ROOT / "workflow/claims"
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
    return pd.concat(tables) if tables else pd.DataFrame()


def line(claim: pd.Series) -> dict[str, str]:
    """Return a claim as people read it."""
    form = FORMS.get(claim["metric"], "{:+.1f}")
    difference, low, high = (form.format(claim[key]) for key in ("difference", "low", "high"))
    unit = UNITS.get(claim["metric"], "")
    return {
        "claim": claim["says"],
        "in the paper": claim["where"].split(", Section")[0],
        "study": f"`{claim['study']}`",
        "difference [95 %]": f"{difference} [{low}, {high}]{unit}",
        "holds": _within(claim["within_low"], claim["within_high"]),
        "against": claim["rival"] or "",
        "verdict": claim["verdict"] + (f" ({claim['reason']})" if claim["reason"] else ""),
    }


def _within(low: float | None, high: float | None) -> str:
    """Return between which differences a claim holds."""
    ends = [("above", low), ("below", high)]
    return ", ".join(f"{word} {end:g}" for word, end in ends if pd.notna(end))


def main() -> None:
    """Print how many claims there are, how many tests have each verdict, and a table per paper."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    claims = pd.concat([tested(folder) for folder in parser.parse_args().folders])
    written = [claim for file in sorted(CLAIMS.glob("*.yaml")) for claim in read(file)["claims"]]
    untested = sum("untested" in claim for claim in written)
    print(f"{len(written)} claims, {untested} of which no run can test.", end=" ")
    counts = claims["verdict"].value_counts()
    print(", ".join(f"{counts.get(verdict, 0)} {verdict}" for verdict in VERDICTS))
    for paper, rows in claims.groupby("paper", sort=True):
        print(f"\n## {paper}\n")
        table = pd.DataFrame([line(row) for _, row in rows.sort_values("says").iterrows()])
        print(table.to_markdown(index=False))


if __name__ == "__main__":
    main()
