"""Made-up PCI buses, and what is said of them."""

from collections.abc import Callable, Iterable

import pytest

from sglk.backends.finding import Finding
from sglk.doctor import pcie
from sglk.doctor.machine import Machine
from sglk.doctor.pci import accelerators
from tests.doctor.trees import ACCELERATOR, ETHERNET, KUNLUN, NVIDIA, Tree

Check = Callable[[Machine], Iterable[Finding]]

PORT = "pci0000:00/0000:00:01.0"
SWITCH = f"{PORT}/0000:01:00.0"


def only(check: Check, tree: Tree) -> Finding:
    (finding,) = check(tree.machine())
    return finding


def behind_one_port(tree: Tree, groups: tuple[str | None, str | None] = (None, None)) -> None:
    """An NVIDIA card and a Kunlun card behind the switch of one root port."""
    tree.bridge(PORT)
    tree.bridge(SWITCH)
    tree.card(f"{tree.bridge(f'{SWITCH}/0000:02:00.0')}/0000:03:00.0", NVIDIA, group=groups[0])
    tree.card(f"{tree.bridge(f'{SWITCH}/0000:02:01.0')}/0000:04:00.0", KUNLUN, ACCELERATOR, group=groups[1])


def test_cards_of_two_vendors_behind_one_root_port(tree: Tree) -> None:
    behind_one_port(tree)
    finding = only(pcie.check_mixed_chips, tree)
    assert finding.status == "warn"
    assert finding.why.startswith(
        "NVIDIA 0000:03:00.0 and Kunlunxin 0000:04:00.0 share root port 0000:00:01.0 and its lanes"
    )
    assert "another root complex" in finding.todo


def test_cards_of_two_vendors_below_one_root_complex(tree: Tree) -> None:
    tree.card(f"{tree.bridge(PORT)}/0000:01:00.0", NVIDIA)
    tree.card(f"{tree.bridge('pci0000:00/0000:00:03.0')}/0000:02:00.0", KUNLUN, ACCELERATOR)
    assert "share root complex pci0000:00" in only(pcie.check_mixed_chips, tree).why


def test_cards_of_two_vendors_apart(tree: Tree) -> None:
    tree.card(f"{tree.bridge(PORT)}/0000:01:00.0", NVIDIA)
    tree.card(f"{tree.bridge('pci0000:80/0000:80:01.0')}/0000:81:00.0", KUNLUN, ACCELERATOR)
    assert only(pcie.check_mixed_chips, tree).status == "ok"
    roots = [finding.why for finding in pcie.check_pci_bus(tree.machine())]
    assert [why.partition(":")[0] for why in roots] == ["root complex pci0000", "root complex pci0000"]


def test_one_vendor_is_not_mixed(tree: Tree) -> None:
    tree.card(f"{tree.bridge(PORT)}/0000:01:00.0", NVIDIA)
    tree.card(f"{PORT}/0000:01:00.1", NVIDIA, "0x040300")  # the sound of the same card
    assert [device.address for device in accelerators(tree.machine())] == ["0000:01:00.0"]
    assert list(pcie.check_mixed_chips(tree.machine())) == []


def test_a_link_on_fewer_lanes(tree: Tree) -> None:
    tree.card(f"{tree.bridge(PORT)}/0000:01:00.0", NVIDIA, width=(4, 16))
    finding = only(pcie.check_links, tree)
    assert (finding.status, finding.why) == ("warn", "NVIDIA 0000:01:00.0 runs on 4 of its 16 lanes")
    assert finding.todo.startswith("reseat the card")


def test_a_narrow_slot_is_told_from_a_bad_contact(tree: Tree) -> None:
    tree.card(f"{tree.bridge(PORT, width=4)}/0000:01:00.0", NVIDIA, width=(4, 16))
    assert only(pcie.check_links, tree).todo == "the slot has 4 lanes; move the card to a wider one"


def test_a_slow_link_may_just_be_idle(tree: Tree) -> None:
    tree.card(f"{tree.bridge(PORT)}/0000:01:00.0", NVIDIA, speed=(2.5, 16.0))
    finding = only(pcie.check_links, tree)
    assert (finding.status, finding.why) == ("ok", "NVIDIA 0000:01:00.0 runs x16 at 2.5 of 16 GT/s")
    assert finding.todo.startswith("look again under load")


def test_the_link_of_the_switch_above_a_card_counts_too(tree: Tree) -> None:
    behind_one_port(tree)
    tree.write(f"sys/devices/{SWITCH}/current_link_width", "8")
    narrow = [finding.why for finding in pcie.check_links(tree.machine()) if finding.status == "warn"]
    assert narrow == [
        "switch 0000:01:00.0 above NVIDIA 0000:03:00.0 and Kunlunxin 0000:04:00.0 runs on 8 of its 16 lanes"
    ]


@pytest.mark.parametrize("unknown", ["0", "63", "255", "Unknown", ""])
def test_a_width_that_the_kernel_does_not_know_is_no_fault(unknown: str, tree: Tree) -> None:
    tree.card(f"{tree.bridge(PORT)}/0000:01:00.0", NVIDIA)
    tree.write(f"sys/devices/{PORT}/0000:01:00.0/current_link_width", unknown)
    assert list(pcie.check_links(tree.machine())) == []


def test_two_vendors_in_one_iommu_group(tree: Tree) -> None:
    behind_one_port(tree, groups=("14", "14"))
    finding = only(pcie.check_iommu, tree)
    assert finding.status == "warn"
    assert "NVIDIA 0000:03:00.0 and Kunlunxin 0000:04:00.0 are in one IOMMU group (14)" in finding.why


def test_one_vendor_in_one_iommu_group(tree: Tree) -> None:
    tree.bridge(PORT)
    for function in "01":
        tree.card(f"{PORT}/0000:01:00.{function}", NVIDIA, group="7")
    finding = only(pcie.check_iommu, tree)
    assert (finding.status, "share IOMMU group 7" in finding.why) == ("ok", True)


def test_groups_of_their_own_and_no_iommu(tree: Tree) -> None:
    tree.bridge(PORT)
    tree.card(f"{PORT}/0000:01:00.0", NVIDIA, group="7")
    tree.card(f"{PORT}/0000:02:00.0", ETHERNET, ETHERNET, group="7")
    assert only(pcie.check_iommu, tree).why == "every accelerator has an IOMMU group of its own"
    (tree.root / f"sys/devices/{PORT}/0000:01:00.0/iommu_group").unlink()
    assert only(pcie.check_iommu, tree).why.startswith("no IOMMU is on")


@pytest.mark.parametrize(("control", "expected"), [(0b1100, 1), (0b0100, 1), (0b0001, 0)])
def test_a_switch_that_sends_peers_to_the_root(control: int, expected: int, tree: Tree) -> None:
    tree.bridge(PORT)
    tree.bridge(SWITCH)
    for place in "01":
        port = tree.bridge(f"{SWITCH}/0000:02:0{place}.0")
        tree.acs(port, control)
        tree.card(f"{port}/0000:0{3 + int(place)}:00.0", NVIDIA)
    found = list(pcie.check_peers(tree.machine()))
    assert len(found) == expected
    if found:
        assert "switch 0000:01:00.0 redirects what NVIDIA 0000:03:00.0 and NVIDIA 0000:04:00.0" in found[0].why


def test_numa_nodes(tree: Tree) -> None:
    for node in "01":
        tree.write(f"sys/devices/system/node/node{node}/cpulist", "0-3")
    tree.card(f"{tree.bridge(PORT)}/0000:01:00.0", NVIDIA, numa_node=0)
    tree.card(f"{PORT}/0000:02:00.0", NVIDIA, numa_node=1)
    assert only(pcie.check_numa, tree).todo.startswith("keep the parts of one model")
    tree.card(f"{PORT}/0000:03:00.0", KUNLUN, ACCELERATOR, numa_node=-1)
    assert (
        "Kunlunxin 0000:03:00.0 name no NUMA node, on a machine of 2" in next(iter(pcie.check_numa(tree.machine()))).why
    )


def test_a_container_without_sys(tree: Tree) -> None:
    finding = only(pcie.check_pci_bus, tree)
    assert (finding.status, finding.why[:41]) == ("ok", "/sys/bus/pci/devices cannot be read, so l")
    for check in (pcie.check_links, pcie.check_mixed_chips, pcie.check_iommu, pcie.check_peers, pcie.check_numa):
        assert list(check(tree.machine())) == []


def test_links_that_lead_nowhere_or_in_a_circle(tree: Tree) -> None:
    tree.card(f"{tree.bridge(PORT)}/0000:01:00.0", NVIDIA)
    bus = tree.root / "sys/bus/pci/devices"
    (bus / "0000:05:00.0").symlink_to("../../../devices/pci0000:00/0000:05:00.0")
    (bus / "0000:06:00.0").symlink_to("0000:06:00.0")
    lost = [finding.why for finding in pcie.check_pci_bus(tree.machine()) if finding.status == "warn"]
    assert lost == [f"/sys/bus/pci/devices/0000:0{n}:00.0 leads nowhere" for n in "56"]
    assert [device.address for device in accelerators(tree.machine())] == ["0000:01:00.0"]


def test_a_card_of_an_unknown_vendor_is_found_by_its_class(tree: Tree) -> None:
    tree.card(f"{tree.bridge(PORT)}/0000:01:00.0", "0x1e36", ACCELERATOR)
    tree.card(f"{PORT}/0000:02:00.0", "0x1a03", "0x030000")  # the picture of a server's management controller
    assert [str(device) for device in accelerators(tree.machine())] == ["vendor 1e36 0000:01:00.0"]


def test_the_link_of_a_switch_above_several_cards_is_told_once(tree: Tree) -> None:
    tree.bridge(PORT)
    tree.bridge(SWITCH, width=8)
    for place in range(4):
        port = tree.bridge(f"{SWITCH}/0000:02:0{place}.0")
        tree.card(f"{port}/0000:0{place + 3}:00.0", NVIDIA)
    links = [finding.why for finding in pcie.check_links(tree.machine())]
    assert len(links) == 5
    assert sum(why.startswith("switch 0000:01:00.0 above NVIDIA 0000:03:00.0 and ") for why in links) == 1


def test_virtual_functions_are_no_cards_beside_their_own(tree: Tree) -> None:
    card = tree.card(f"{tree.bridge(PORT)}/0000:01:00.0", KUNLUN, ACCELERATOR)
    for number in (1, 2):
        path = tree.card(f"{PORT}/0000:01:00.{number}", KUNLUN, ACCELERATOR, width=(0, 0))
        (tree.root / "sys/devices" / path / "physfn").symlink_to(f"../{card.rpartition('/')[2]}")
    assert [device.address for device in accelerators(tree.machine())] == ["0000:01:00.0"]
    # A virtual machine sees its function alone.
    alone = Tree(tree.root / "guest")
    alone.card(f"{alone.bridge(PORT)}/0000:01:00.1", KUNLUN, ACCELERATOR)
    assert len(accelerators(alone.machine())) == 1
