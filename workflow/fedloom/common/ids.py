"""Numbers of clients, names of test sets and domains, and who an entry of a list option is of."""

from collections.abc import Iterable

# the client id under which the server's own model is evaluated
SERVER_MODEL = -1
# the client id of an image that no client has, as few shots leave some out
UNASSIGNED = -1
# begins the names of the accuracies of a stream's parts in evaluations; their number from 1 follows
STREAM_PART_PREFIX = "part_"
# the round in which images leave that never do
NEVER = 2**31 - 1

# Names of the sets of test images that all clients answer.

# each client's own test images
OWN_IMAGES = "own"
# all test images of the classes that clients train on
BASE_CLASSES = "base"
# the test images of classes that no client trains on
NOVEL_CLASSES = "novel"
# begins the name of the test images of another dataset, whose label follows
OTHER_DATASET_PREFIX = "dataset "

# the domain of test images without one: in a partition by domains they go to clients by class
NO_DOMAIN = ""


def client_domain(domains: Iterable[str]) -> str:
    """Return the name of a client's domain, given those of its images; "+" joins several."""
    return "+".join(sorted(set(domains)))


def entry_of(client: int, clients: int, entries: int) -> int:
    """Return a client's position in a list option; consecutive clients share one."""
    return client * entries // clients
