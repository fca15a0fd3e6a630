"""Checks of the PCI bus: links that run below what they can, and what accelerators share on their way to memory."""

from collections.abc import Iterator
from itertools import groupby

from sglk.backends.finding import Finding, ok, warn
from sglk.doctor.acs import redirects
from sglk.doctor.machine import Machine
from sglk.doctor.pci import DEVICES, PciDevice, accelerators, dangling, has_bus, link

_SHARED = "throughput may halve without any error when both are busy"
_APART = "move one to a slot below another root complex, or measure them together before you trust either alone"


def check_pci_bus(machine: Machine) -> Iterator[Finding]:
    """Say which accelerators are on the bus, and where."""
    if not has_bus(machine):
        yield ok("pci bus", f"/{DEVICES} cannot be read, so links and neighbours of cards are not checked")
        return
    for address in dangling(machine):
        yield warn(
            "pci bus", f"/{DEVICES}/{address} leads nowhere", "the device fell off the bus: see dmesg, restart it"
        )
    found = accelerators(machine)
    if not found:
        yield ok("pci bus", "no accelerator is on the bus")
    for root, devices in groupby(sorted(found, key=lambda device: device.root), key=lambda device: device.root):
        places = ", ".join(f"{device} (port {device.port}, NUMA node {_node(device)})" for device in devices)
        yield ok("pci bus", f"root complex {root or 'unknown'}: {places}")


def check_links(machine: Machine) -> Iterator[Finding]:
    """Compare the width and speed of every link on the way to an accelerator with what its ends can do."""
    found, told = accelerators(machine), set[str]()
    for device in found:
        chain = (*device.above, device.address)
        # Root ports and the lower ports of switches face down; their partner below tells the same link from its end.
        facing_up = [place for place in range(len(chain)) if place % 2 or place == len(chain) - 1]
        # Cards behind one switch have its link in common.
        for place in (place for place in facing_up if chain[place] not in told):
            told.add(chain[place])
            above = _names([each for each in found if chain[place] in each.above])
            where = f"switch {chain[place]} above {above}" if above else str(device)
            yield from _link(machine, where, chain[place], chain[place - 1] if place else None)


def _link(machine: Machine, where: str, address: str, partner: str | None) -> Iterator[Finding]:
    now, best = link(machine, address, "current"), link(machine, address, "max")
    slot = link(machine, partner, "max") if partner else None
    if now.width is None or best.width is None:
        return
    if now.width < best.width:
        if slot and slot.width and slot.width <= now.width:
            todo = f"the slot has {slot.width} lanes; move the card to a wider one"
        else:
            todo = "reseat the card and its riser, and look for bifurcation in the firmware's settings"
        yield warn("pcie link", f"{where} runs on {now.width} of its {best.width} lanes", todo)
        return
    if now.speed and best.speed and now.speed < best.speed:
        yield ok(
            "pcie link",
            f"{where} runs x{now.width} at {now.speed:g} of {best.speed:g} GT/s",
            "look again under load: idle cards slow down; if it stays, the slot or a setting of the firmware limits it",
        )
        return
    yield ok("pcie link", f"{where} runs x{now.width} at {now.speed or 0:g} GT/s, all that it can")


def check_mixed_chips(machine: Machine) -> Iterator[Finding]:
    """Warn where cards of two vendors share a root port or a root complex."""
    found = accelerators(machine)
    makers = {device.maker for device in found}
    if len(makers) < 2:
        return
    by_port = _mixed(found, "port")
    by_root = _mixed(found, "root")
    for port, devices in by_port:
        yield warn("mixed chips", f"{_names(devices)} share root port {port} and its lanes; {_SHARED}", _APART)
    for root, devices in by_root:
        if not any(set(devices) == set(others) for _, others in by_port):
            yield warn("mixed chips", f"{_names(devices)} share root complex {root}; {_SHARED}", _APART)
    if not by_port and not by_root:
        yield ok("mixed chips", f"cards of {' and '.join(sorted(makers))} are below different root complexes")


def _mixed(devices: list[PciDevice], attribute: str) -> list[tuple[str, list[PciDevice]]]:
    """Group `devices` by an attribute that is known; return the groups with several vendors."""

    def place(device: PciDevice) -> str:
        return getattr(device, attribute) or ""

    groups = [(key, list(members)) for key, members in groupby(sorted(devices, key=place), key=place)]
    return [(key, members) for key, members in groups if key and len({member.maker for member in members}) > 1]


def check_iommu(machine: Machine) -> Iterator[Finding]:
    """Say whether an IOMMU is on, and which accelerators share a group."""
    found = accelerators(machine)
    if not found:
        return
    grouped = [device for device in found if device.iommu_group is not None]
    if not grouped:
        yield ok("iommu", "no IOMMU is on (or it is not shown here): cards cannot be passed to virtual machines")
        return
    shared = False
    for group, members in groupby(sorted(grouped, key=_group), key=_group):
        devices = list(members)
        if len({device.maker for device in devices}) > 1:
            shared = True
            yield warn(
                "iommu",
                f"{_names(devices)} are in one IOMMU group ({group}): their drivers can reach into each other's memory",
                "move one to another slot, or turn ACS on in the firmware; both can only go to one virtual machine",
            )
        elif len(devices) > 1:
            shared = True
            yield ok("iommu", f"{_names(devices)} share IOMMU group {group}: they go to a virtual machine together")
    if not shared:
        yield ok("iommu", "every accelerator has an IOMMU group of its own")


def check_peers(machine: Machine) -> Iterator[Finding]:
    """Warn where a switch sends what its cards tell each other up to the root complex and back."""
    switched = [device for device in accelerators(machine) if len(device.above) > 2]
    for switch, members in groupby(sorted(switched, key=_switch), key=_switch):
        devices = list(members)
        ports = sorted({device.above[-1] for device in devices if redirects(machine, device.above[-1])})
        if len(devices) > 1 and ports:
            yield warn(
                "peer access",
                f"switch {switch} redirects what {_names(devices)} tell each other to the root complex"
                f" (ACS of {', '.join(ports)})",
                "on a machine without virtual machines turn ACS off for these ports: cards then talk directly",
            )


def _switch(device: PciDevice) -> str:
    return device.above[-2]


def check_numa(machine: Machine) -> Iterator[Finding]:
    """Say on which NUMA nodes the cards are."""
    nodes = len(machine.glob("sys/devices/system/node/node[0-9]*"))
    found = accelerators(machine)
    if nodes < 2 or not found:
        return
    homeless = [device for device in found if device.numa_node is None]
    if homeless:
        yield warn(
            "numa",
            f"{_names(homeless)} name no NUMA node, on a machine of {nodes}",
            "update the firmware, or bind the server by hand: numactl --cpunodebind",
        )
    for maker, members in groupby(sorted(found, key=lambda device: device.maker), key=lambda device: device.maker):
        places = sorted({device.numa_node for device in members if device.numa_node is not None})
        if len(places) > 1:
            yield ok(
                "numa",
                f"cards of {maker} are on NUMA nodes {', '.join(map(str, places))}",
                "keep the parts of one model (runtime.tp_size) on one node",
            )


def _group(device: PciDevice) -> str:
    return device.iommu_group or ""


def _names(devices: list[PciDevice]) -> str:
    return " and ".join(map(str, devices))


def _node(device: PciDevice) -> str:
    return "unknown" if device.numa_node is None else str(device.numa_node)
