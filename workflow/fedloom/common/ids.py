"""Numbers of clients, names of test sets, and which client an entry of a list option is of."""

# the client id under which the server's own model is evaluated
SERVER_MODEL = -1
# the client id of an image that no client has, as few shots leave some out
UNASSIGNED = -1
# begins the names of the accuracies of a stream's parts in evaluations; their number from 1 follows
STREAM_PART_PREFIX = "part_"
# the round in which an image leaves that stays
NEVER = 2**31 - 1

# sets of test images, each answered by all clients: their own, those of all classes that clients
# train on, of those that none does, and, before its label, of another dataset
OWN = "own"
BASE = "base"
NOVEL = "novel"
OTHER = "dataset "

# the domain of test images without one: in a partition by domains they go to clients by class
NO_DOMAIN = ""


def entry_of(client: int, clients: int, entries: int) -> int:
    """Return a client's position in a list option; consecutive clients share one."""
    return client * entries // clients
