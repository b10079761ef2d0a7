"""Export the names that a plugin with a library of backbones may import."""

from fedloom.backbones.backbone import check_model as check_model
from fedloom.backbones.vit_parts import Transform as Transform
from fedloom.backbones.vit_parts import ViTParts as ViTParts
from fedloom.common.errors import FedLoomError as FedLoomError
from fedloom.machine.install import resource as resource
