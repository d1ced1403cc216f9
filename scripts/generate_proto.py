#!/usr/bin/env python3
"""Generate `etcd_pb2.py` from `etcd.proto`; with `--check`, only say whether it is up to date.

The compiler is old on purpose. What protoc 4.25 writes carries no version check and runs on every
protobuf from 4.25 on, whereas what a newer one writes refuses every runtime older than itself.

Run it with a Python that has the compiler, outside the project's own environment::

    python3 -m venv /path/to/venv
    /path/to/venv/bin/pip install 'grpcio-tools==1.62.3' 'setuptools<81'
    /path/to/venv/bin/python scripts/generate_proto.py
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

COMPILER = "1.62.3"
SOURCE = Path(__file__).resolve().parent.parent / "src"
# The whole path is the file's name in protobuf's pool, where a bare `etcd.proto` could clash.
PROTO = Path("etcdmaint", "etcd", "proto", "etcd.proto")


def main(arguments: list[str]) -> int:
    """Generate, or compare; 0 when the file is (now) what the compiler makes of the .proto."""
    try:
        version = importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if version != COMPILER:
        print(f"needs grpcio-tools {COMPILER}, found {version}: see the head of this script")
        return 2
    generated = PROTO.with_name("etcd_pb2.py")
    target = SOURCE / generated
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc"),
                *(f"-I{SOURCE}", f"--python_out={scratch}", str(SOURCE / PROTO)),
            ],
            check=True,
        )
        fresh = (Path(scratch) / generated).read_text()
    if target.exists() and target.read_text() == fresh:
        print(f"{target.name} is up to date")
        return 0
    if "--check" in arguments:
        print(f"{target.name} is not what {COMPILER} makes of etcd.proto")
        return 1
    target.write_text(fresh)
    print(f"{target.name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
