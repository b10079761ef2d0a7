"""The page of all recipes, from workflow/recipes."""

from typing import Any

from schema_pages import cell, table

from fedloom.config import recipes
from fedloom.config.recipes import Recipe, RecipeKeys


def recipes_page() -> str:
    """Return a paragraph per recipe, and the keys of a recipe's file."""
    root = RecipeKeys.model_json_schema()
    intro = (
        "# Recipes\n\nEach is one file, `workflow/recipes/<name>.yaml`: the origin of a data"
        " set, the layout of its files, how they are read and the expected counts. [Data]"
        "(../data.md#recipes) shows how a study uses a recipe."
    )
    keys = (
        "## A recipe's file\n\nIt also has the key `source` and the keys of that source, as in"
        " [config.yaml](config.md#datasets); `{root}` in them stands for the folder that a study"
        f" names.\n\n{table(root, root)}"
    )
    return "\n\n".join(
        [intro, *(_entry(recipes.find_recipe(name)) for name in recipes.recipe_names()), keys]
    )


def _entry(recipe: Recipe) -> str:
    """Return the paragraphs of a recipe."""
    papers = ", ".join(f"`{paper}`" for paper in recipe.papers) or "none"
    title = recipe.title if recipe.homepage is None else f"[{recipe.title}]({recipe.homepage})"
    facts = [
        f"{title}; papers: {papers}. {recipe.citation.rstrip('.')}. Licence: {recipe.licence}.",
        f"Counts: {_counts(recipe.counts.plain)}.",
        *recipe.notes,
    ]
    return f"## {recipe.name}\n\n" + "\n\n".join(cell(fact) for fact in facts)


def _counts(counts: dict[str, Any]) -> str:
    """Return counts in words."""
    words = {"train": "training images", "test": "test images"}
    flat = [f"{counts[key]:,} {words.get(key, key)}" for key in counts if _is_number(counts[key])]
    if "at_least" in counts:
        flat.append(f"at least {_counts(counts['at_least'])}")
    if "each_class" in counts:
        flat.append(f"of each class {_counts(counts['each_class'])}")
    cells = counts.get("by_domain", {}) | counts.get("by_class", {})
    flat += [f"of {name} {_counts(inner)}" for name, inner in cells.items()]
    return ", ".join(flat)


def _is_number(value: object) -> bool:
    """Return True for a count."""
    return isinstance(value, int)
