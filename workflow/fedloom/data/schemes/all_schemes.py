"""The partition schemes that ship with FedLoom, by the names that a config gives them."""

from fedloom.common.schema import Keys
from fedloom.data.schemes.dirichlet import Dirichlet
from fedloom.data.schemes.disjoint import Disjoint
from fedloom.data.schemes.domain import Domain
from fedloom.data.schemes.iid import Iid
from fedloom.data.schemes.imbalance import Imbalance
from fedloom.data.schemes.pathological import Pathological

KINDS: dict[str, type[Keys]] = {
    "dirichlet": Dirichlet,
    "disjoint": Disjoint,
    "domain": Domain,
    "iid": Iid,
    "imbalance": Imbalance,
    "pathological": Pathological,
}
