"""A machine of a deployment that spans several, other than the one with the port."""

from sglk.config.fleet import ReplicaConfig
from sglk.server.announcement import say
from sglk.server.logs import set_up_logging
from sglk.upstream.node import run_node


def serve_node(replica: ReplicaConfig) -> None:
    """Run this machine's part until a signal ends it; raises RunError where it does not start."""
    engine, server = replica.config.engine, replica.config.server
    set_up_logging(server.log_level, server.log_format)
    say([f"machine {engine.node_rank} of {engine.nnodes}: requests are answered at machine 0, {engine.dist_init_addr}"])
    run_node(replica)
