"""Run a control plane by hand: ``python -m tests.controlplane``, and Ctrl-C to end it.

Prints how to reach it and stays until it is told to go; everything it started goes with it.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from . import build
from .apiserver import ControlPlane
from .build import ProgramUnavailable
from .etcd import VERSIONS, EtcdCluster
from .processes import NotReady


def main() -> int:
    """Start, say where, wait, end."""
    options = _options()
    end = threading.Event()
    # Both ask for the same orderly end; SIGKILL is the watchdog's affair.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end.set())
    try:
        with _folder(options.folder) as folder, contextlib.ExitStack() as stack:
            etcd = EtcdCluster(folder / "etcd", size=options.members, version=options.etcd)
            stack.enter_context(etcd)
            for member in etcd.members:
                print(f"{member.name}\t{member.client_url}\t{member.log}")
            if not options.etcd_only:
                plane = ControlPlane(
                    folder,
                    etcd=etcd,
                    controllers=True,
                    compaction_interval=options.compaction_interval,
                )
                stack.enter_context(plane)
                print(f"kube-apiserver\t{plane.url}\t{plane.server.log}")
                print(f"export KUBECONFIG={plane.kubeconfig()}")
                print(f"alias kubectl={build.program('kubectl')}")
            print(f"export ETCDCTL_ENDPOINTS={','.join(etcd.client_urls)}", flush=True)
            end.wait()
    except (ProgramUnavailable, NotReady) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.controlplane", description=__doc__)
    parser.add_argument("--members", type=int, default=3, help="etcd members (default 3)")
    parser.add_argument("--etcd", choices=[*VERSIONS], default="3.7", help="etcd's version")
    parser.add_argument("--etcd-only", action="store_true", help="no kube-apiserver")
    parser.add_argument("--compaction-interval", help="kube-apiserver's, for instance 15s")
    parser.add_argument("--folder", type=Path, help="keep the data here (default: thrown away)")
    return parser.parse_args()


@contextlib.contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    if named is not None:
        yield named.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="etcdmaint-") as folder:
        yield Path(folder)


if __name__ == "__main__":
    raise SystemExit(main())
