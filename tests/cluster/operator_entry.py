"""Runs the operator as its command does, with the waits of a test: `python -m … OPTIONS.json`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from etcdmaint.compression.walk import Timing as WalkTiming
from etcdmaint.defrag.timing import Timing
from etcdmaint.kube.connections import Pace
from etcdmaint.kube.storage_compression_subject import CompressionPace
from etcdmaint.operator import OperatorOptions, run_operator


def main() -> int:
    given: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    for name in ("kubeconfig", "etcd_address_map"):
        if given.get(name):
            given[name] = Path(given[name])
    given["namespaces"] = tuple(given.get("namespaces", ()))
    timing = given.pop("timing", {})
    member_timeout = timing.pop("member_timeout", None)
    if member_timeout is not None:
        timing["member_timeout"] = lambda size: member_timeout
    given["timing"] = Timing(**timing)
    given["pace"] = Pace(**given.pop("pace", {}))
    compression_pace = given.pop("compression_pace", {})
    if "walk" in compression_pace:
        compression_pace["walk"] = WalkTiming(**compression_pace["walk"])
    given["compression_pace"] = CompressionPace(**compression_pace)
    return asyncio.run(run_operator(OperatorOptions(**given)))


if __name__ == "__main__":
    sys.exit(main())
