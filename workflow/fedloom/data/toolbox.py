"""What a plugin that brings a source of data, or a partition scheme, may call.

A source returns an ImageList, which lists images as Items; a scheme returns the client of every
image, or Groups that are divided by themselves.
"""

from fedloom.common.checkout import matching, resource
from fedloom.common.errors import FedLoomError
from fedloom.data.image_list import ImageList, Item
from fedloom.data.schemes.base import Group, deal, deal_classes, largest_remainder

__all__ = [
    "FedLoomError",
    "Group",
    "ImageList",
    "Item",
    "deal",
    "deal_classes",
    "largest_remainder",
    "matching",
    "resource",
]
