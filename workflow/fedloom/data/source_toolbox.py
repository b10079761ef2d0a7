"""Export the functions that a plugin with a source or a partition scheme may call.

A source returns an ImageList, which lists images as Items. A scheme returns the client of every
training image.
"""

from fedloom.common.errors import FedLoomError as FedLoomError
from fedloom.data.image_list import ImageList as ImageList
from fedloom.data.image_list import Item as Item
from fedloom.data.schemes.dealing import deal as deal
from fedloom.data.schemes.dealing import deal_classes as deal_classes
from fedloom.data.schemes.dealing import largest_remainder as largest_remainder
from fedloom.machine.install import matching as matching
from fedloom.machine.install import resource as resource
