"""Stands in for the runtime of the vendor."""

from collections import OrderedDict

__version__ = OrderedDict(torch_xmlir="2.9.0", xre="5.19")
