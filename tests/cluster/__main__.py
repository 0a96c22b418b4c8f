"""The test cluster by hand.

python -m tests.cluster up              # then: export SLURM_CONF=..., as it prints
python -m tests.cluster node n2 off     # power loss; also: on, cut, heal (the network cable)
python -m tests.cluster down
"""

from __future__ import annotations

import argparse
import sys

from tests.cluster.cluster import Cluster, ClusterError, exclusive, temporary_root


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start four nodes; takes down what an earlier run has left")
    commands.add_parser("down", help="end everything")
    node = commands.add_parser("node", help="boot a node, cut its power or its cable")
    node.add_argument("name")
    node.add_argument("action", choices=["on", "off", "cut", "heal"])
    arguments = parser.parse_args()
    try:
        _run(arguments)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _run(arguments: argparse.Namespace) -> None:
    if arguments.command == "up":
        with exclusive(wait_s=0):
            fresh = Cluster(temporary_root())
            fresh.up()
        print(f"export SLURM_CONF={fresh.root}/etc/slurm.conf")
        return
    if (cluster := Cluster.current()) is None:
        raise ClusterError("no cluster is up; start it with: python -m tests.cluster up")
    if arguments.command == "down":
        with exclusive(wait_s=0):
            cluster.down()
    else:  # no lock: a person may break the cluster of a test session that runs
        cluster.node(arguments.name, arguments.action)


if __name__ == "__main__":
    sys.exit(main())
