"""Which replica a request goes to: a group by weight or by its session, then a replica of that group."""

from collections.abc import Iterable, Mapping, Sequence

from sglk.cluster.balance import BALANCES
from sglk.cluster.group import DeviceGroup, Replica
from sglk.cluster.smooth import SmoothWeighted
from sglk.cluster.sticky import home_of
from sglk.engine.messages import GenerateRequest


class Choosing:
    """Chooses by the weights in force. Not thread-safe: the router's lock guards it."""

    def __init__(self, groups: Mapping[str, DeviceGroup], shares: Mapping[str, float], policy: str) -> None:
        """`policy` is a key of BALANCES."""
        self._groups = groups
        self._balance = BALANCES[policy]
        self.follow(shares)

    def follow(self, shares: Mapping[str, float]) -> None:
        """Begin a new cycle by other weights."""
        self._shares = shares
        self._smooth = SmoothWeighted(shares)

    def choose(self, request: GenerateRequest, avoid: set[Replica]) -> Replica | None:
        """Return a replica that is not among `avoid`, None where there is none to try."""
        # Where all breakers are open, a group that may fail is better than an answer that surely does.
        for usable in (_ready, _alive):
            replicas = {name: usable(group, avoid) for name, group in self._groups.items()}
            name = self._pick(request.session, [name for name, found in replicas.items() if found])
            if name is not None:
                return self._balance(request, replicas[name])
        return None

    def regular(self, shares: Mapping[str, float], names: Iterable[str] | None = None) -> list[str]:
        """Return those of the groups `names` (None = all) that traffic goes to: on standby only where no other is."""
        weighted = [name for name in (self._groups if names is None else names) if shares[name]]
        return [name for name in weighted if not self._groups[name].standby] or weighted

    def _pick(self, session: str | None, names: Sequence[str]) -> str | None:
        regular = self.regular(self._shares, names)
        return self._smooth.pick(regular) if session is None else home_of(session, self._shares, regular)


def _ready(group: DeviceGroup, avoid: set[Replica]) -> list[Replica]:
    return [] if group.state != "serving" else [each for each in group.replicas if each.ready and each not in avoid]


def _alive(group: DeviceGroup, avoid: set[Replica]) -> list[Replica]:
    return [] if group.state != "serving" else [each for each in group.replicas if each.alive and each not in avoid]
