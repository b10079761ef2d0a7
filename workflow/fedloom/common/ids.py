"""Define special client ids, names of test sets, and how clients share the entries of a list."""

from collections.abc import Iterable

# the client id under which the server's own model is evaluated
SERVER_MODEL = -1
# the client id of an image that belongs to no client: the key `shots`, for example, leaves some out
UNASSIGNED = -1
# Evaluations have a column of accuracies for each part of a stream. Its name begins with this, and
# the number of the part, from 1, follows.
STREAM_PART_PREFIX = "part_"
# the round in which an image leaves a stream, if it never leaves
NEVER = 2**31 - 1

# Names of the sets of test images on which all clients are tested.

# each client's own test images
OWN_IMAGES = "own"
# all test images of the classes that clients train on
BASE_CLASSES = "base"
# the test images of classes that no client trains on
NOVEL_CLASSES = "novel"
# The name of another dataset's test images begins with this, and the label of the dataset follows.
OTHER_DATASET_PREFIX = "dataset "

# The domain of a test image for which no domain is known. A partition by domains gives such images
# to clients by class.
NO_DOMAIN = ""


def domain_names(domains: Iterable[str]) -> list[str]:
    """Return the different domains of images, in alphabetical order; NO_DOMAIN is none."""
    return sorted({*domains} - {NO_DOMAIN})


def client_domain(domains: Iterable[str]) -> str:
    """Return the name of a client's domain, given those of its images; "+" joins several."""
    return "+".join(domain_names(domains))


def entry_of(client: int, clients: int, entries: int) -> int:
    """Return the position of a client's entry in an option that is a list.

    The clients share the entries evenly: the first ones have the first entry, and so on.

    Args:
        client: the client's id, from 0.
        clients: the number of clients.
        entries: the length of the list.
    """
    return client * entries // clients
