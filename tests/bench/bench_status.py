"""`etcdmaint status` beside the least that a Python program with its libraries can take.

etcdctl's own 20 ms are out of Python's reach: importing gRPC alone takes longer. So the yardstick is a bare
`python -c 'import grpc, rich.table'` in the same run, the two taking turns.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.controlplane.etcd import EtcdCluster

from .page import table

RUNS = 15


def seconds(command: list[str]) -> float:
    """How long the whole process takes."""
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def main() -> None:
    """Print the table."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EtcdCluster(Path(folder)) as cluster,
    ):
        endpoints = "--endpoints=" + ",".join(cluster.client_urls)
        commands = {
            "etcdmaint status": [sys.executable, "-m", "etcdmaint", "status", endpoints],
            "etcdmaint --help": [sys.executable, "-m", "etcdmaint", "--help"],
            "import grpc, rich.table": [sys.executable, "-c", "import grpc, rich.table"],
            "etcdctl endpoint status": cluster.etcdctl_command("endpoint", "status"),
        }
        took: dict[str, list[float]] = {name: [] for name in commands}
        for run in range(RUNS + 1):
            for name, command in commands.items():
                spent = seconds(command)
                if run:
                    took[name].append(spent)
    bare = statistics.median(took["import grpc, rich.table"])
    rows = [
        [
            name,
            f"{statistics.median(values) * 1000:.0f}",
            f"{statistics.median(values) / bare:.2f}",
        ]
        for name, values in took.items()
    ]
    print(table(["command", f"median of {RUNS}, ms", "ratio to the bare imports"], rows))


if __name__ == "__main__":
    main()
