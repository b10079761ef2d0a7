"""The files on the user's disk that a dataset is made of, without reading them.

Snakemake would compare large inputs by time, and a folder not at all. So the digest of their names
and sizes is part of the dataset's parameters: more, fewer, renamed or longer files make the store
again, touching them does not. (A file of the same name and size with other bytes goes unnoticed.)
"""

from collections.abc import Sequence

from fedloom.common.checkout import matching, resource
from fedloom.common.folders import is_folder, walk
from fedloom.common.receipts import digest, sha256


def listing(dataset: dict, paths: Sequence[str] | None = None) -> dict | None:
    """Return the number and the digest of the files of an entry of the config's `datasets`.

    Of images that lists name, these are the lists with their contents: the images may be a small
    part of a million files. Missing files are no error here: a study can be planned (a dry run)
    where its data is not.

    Args:
        paths: of a plugin's source, the options that name folders, files or patterns of files.

    Returns:
        `files` and `sha256`, or None for a dataset that reads nothing of the user's: one that is
        drawn, ships with a package, or is downloaded by torchvision (which keeps checksums).

    Raises:
        FedLoomError: a folder cannot be listed, or a link leads back up.
    """
    if paths is not None:
        given = [key for key in paths if dataset.get(key)]
        sizes = [[key, *size] for key in given for size in _path_sizes(dataset[key])]
        return {"files": len(sizes), "sha256": digest(sizes)} if paths else None
    if dataset.get("download"):
        return None
    if "class_from" in dataset:
        sizes = _lists(dataset)
    elif "root" in dataset:
        sizes = _sizes(str(resource(dataset["root"])))
    elif "train_files" in dataset:
        sizes = [
            [kind, file.name, file.stat().st_size]
            for kind in ("train_files", "test_files")
            for file in matching(dataset.get(kind, []))
            if file.is_file()
        ]
    else:
        return None
    return {"files": len(sizes), "sha256": digest(sizes)}


def _lists(dataset: dict) -> list[list]:
    """Return the name and the sha256 of every list of images, those that are missing left out."""
    root, digests = resource(dataset["root"]), []
    for half in ("train", "test"):
        given = dataset.get(half, [])
        named = given.values() if isinstance(given, dict) else [given]
        for name in (name for entry in named for name in _several(entry)):
            if (root / name).is_file():
                digests.append([half, name, sha256(root / name)])
    return digests


def _several(entry: str | list[str]) -> list[str]:
    """Return a list as it is, and a text as a list of one."""
    return [entry] if isinstance(entry, str) else entry


def _path_sizes(path: str) -> list[list]:
    """Return name and size of the files of a folder, or of those that a pattern matches."""
    root = resource(path)
    if is_folder(root):
        return _sizes(str(root))
    return [[file.name, file.stat().st_size] for file in matching(path) if file.is_file()]


def _sizes(root: str) -> list[list]:
    """Return name below the root and size of every file that is not hidden, in order of names."""
    if not is_folder(root):
        return []
    sizes = [
        [entry.path.removeprefix(f"{root}/"), entry.stat().st_size]
        for _, _, entries in walk(root)
        for entry in entries
        if entry.is_file()  # no dangling link, no pipe
    ]
    return sorted(sizes, key=lambda item: item[0].split("/"))


def described(dataset: dict, paths: Sequence[str] | None = None) -> str:
    """Return the listing in words, for a store's provenance."""
    found = listing(dataset, paths)
    if found is None:
        return "downloaded by torchvision, which checks its files"
    return f"{found['files']} files, sha256 of names and sizes {found['sha256']}"
