"""Count the clients and images that divisions by dominant classes need, however small they are.

The scheme `imbalance` gives each client most of its images from few classes
(fedloom/data/schemes/imbalance.py). It refuses a division in which a client's share of them falls
short.
"""

from math import ceil

# Images that each client needs, so that rounding leaves it the share of its dominant classes: if
# each class dominates equally many clients; and if some classes dominate one client more. Divisions
# of 2 to 62 classes found these numbers.
EVEN_IMAGES = 12
UNEVEN_IMAGES = 100


def count_dominant(share: float, classes: int) -> int:
    """Return how many classes dominate a client: a share of all, rounded, but at least one."""
    return max(1, round(share * classes))


def clients_for_dominance(share: float, classes: int) -> int:
    """Return how many clients it takes that each class is dominant in one or more of them."""
    return ceil(classes / count_dominant(share, classes))


def is_even(clients: int, share: float, classes: int) -> bool:
    """Return True if each class dominates equally many clients."""
    return clients * count_dominant(share, classes) % classes == 0


def images_of_client(clients: int, share: float, classes: int) -> int:
    """Return the training images that each client of the scheme `imbalance` needs."""
    if is_even(clients, share, classes):
        return EVEN_IMAGES
    return UNEVEN_IMAGES
