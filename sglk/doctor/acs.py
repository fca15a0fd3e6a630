"""Access control services of a PCI Express bridge, read from its configuration space."""

import struct

from sglk.doctor.machine import Machine
from sglk.doctor.pci import DEVICES

_EXTENDED = 0x100  # where extended capabilities begin: PCI Express Base Specification, 7.9
_ACS = 0x000D
_CONTROL = 6  # offset of the control register in the capability
_REDIRECTS = 0b1100  # request redirect, completion redirect


def redirects(machine: Machine, address: str) -> bool:
    """Return whether a bridge sends traffic between two devices below it to the root complex.

    False too where that cannot be read: the kernel shows extended capabilities to root alone.
    """
    try:
        space = (machine.root / DEVICES / address / "config").read_bytes()
    except OSError:
        return False
    offset, seen = _EXTENDED, set[int]()
    while offset >= _EXTENDED and offset + 8 <= len(space) and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", space, offset)
        if header & 0xFFFF == _ACS:
            (control,) = struct.unpack_from("<H", space, offset + _CONTROL)
            return bool(control & _REDIRECTS)
        offset = header >> 20
    return False
