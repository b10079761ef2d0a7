"""Download a published model from Hugging Face's hub."""

import re
from pathlib import Path

from fedloom.common.errors import FedLoomError, in_words
from fedloom.models.published import CARD, read_facts
from fedloom.models.run_folder import CONFIG, TENSORS

# the branch that a name without a revision means
MAIN = "main"


def fetch_model(name: re.Match) -> tuple[Path, str]:
    """Download the three files of a model into the hub's cache, where a later call finds them.

    The environment may set the address of the hub in HF_ENDPOINT, and a token in HF_TOKEN.

    Args:
        name: a match of `fedloom.models.run_folder.HUB_NAME`.

    Returns:
        The folder, and what to do if its files are refused.

    Raises:
        FedLoomError: the hub cannot be reached or does not give the files, or it is no model that
            `fedloom publish` wrote.
    """
    repository = name["repository"]

    # the facts first: the weights of another library's model may be large
    folder = _fetch(name[0], repository, name["revision"] or MAIN, [CONFIG])
    advice = (
        f"delete {folder.parent.parent} and load it again; if that does not help, its owner must "
        "publish it anew"
    )
    read_facts(folder / CONFIG, advice)

    # the others from the same commit, of which the folder has the name
    return _fetch(name[0], repository, folder.name, [CONFIG, TENSORS, CARD]), advice


def _fetch(name: str, repository: str, revision: str, files: list[str]) -> Path:
    """Download files of a repository, and return the folder that holds them.

    Raises:
        FedLoomError: the hub cannot be reached, refuses, or has no such repository, revision or
            file.
    """
    # imported here, since few models come from a hub
    from huggingface_hub import constants, errors, snapshot_download
    from huggingface_hub.utils.logging import disable_propagation

    # the hub's client prints its log lines itself
    disable_propagation()

    where = f"{name}: no such folder here, so taken for a model on the hub {constants.ENDPOINT}, "
    try:
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=files))
    except errors.GatedRepoError:
        raise FedLoomError(
            f"{where}which gives it only to people who accept its terms; accept them at "
            f"{constants.ENDPOINT}/{repository}, and set HF_TOKEN"
        ) from None
    except errors.RepositoryNotFoundError:
        raise FedLoomError(
            f"{where}which has no such model, or hides it; correct the name, or set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise FedLoomError(
            f"{where}which has no revision '{revision}' of it; name a branch, a tag or a commit"
        ) from None
    except Exception as error:
        # The hub's client and the libraries below it raise many kinds of exceptions. The cause of
        # LocalEntryNotFoundError says why the hub was not reached.
        reason = in_words(error.__cause__ or error)
        raise FedLoomError(
            f"{where}which does not give it ({reason}); connect to the network, unset "
            "HF_HUB_OFFLINE, or set HF_ENDPOINT to a hub that can be reached"
        ) from None

    # the model card may be missing
    for file in files:
        if file != CARD and not (folder / file).is_file():
            raise FedLoomError(
                f"{where}which has no file '{file}' of it; name a model that `fedloom publish` "
                "wrote"
            )
    return folder
