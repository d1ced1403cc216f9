#!/usr/bin/env python3
"""Generate the `*_pb2.py` of every .proto; with `--check`, only say whether they are up to date.

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


def main(arguments: list[str]) -> int:
    """Generate, or compare; 0 when every file is (now) what the compiler makes of its .proto."""
    try:
        version = importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if version != COMPILER:
        print(f"needs grpcio-tools {COMPILER}, found {version}: see the head of this script")
        return 2
    # The whole path is the file's name in protobuf's pool, where a bare `etcd.proto` could clash.
    protos = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.proto"))
    return max(one(proto, check="--check" in arguments) for proto in protos)


def one(proto: Path, *, check: bool) -> int:
    """Generate one module, or compare it; 1 when it differs and may not be written."""
    generated = proto.with_name(f"{proto.stem}_pb2.py")
    target = SOURCE / generated
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc"),
                *(f"-I{SOURCE}", f"--python_out={scratch}", str(SOURCE / proto)),
            ],
            check=True,
        )
        fresh = (Path(scratch) / generated).read_text()
    if target.exists() and target.read_text() == fresh:
        print(f"{generated} is up to date")
        return 0
    if check:
        print(f"{generated} is not what {COMPILER} makes of {proto.name}")
        return 1
    target.write_text(fresh)
    print(f"{generated} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
