"""What the pages say of the frame is so."""

from __future__ import annotations

import re
from pathlib import Path

from etcdmaint.compression import frame
from etcdmaint.compression.metrics import Outcome

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "concepts" / "compression-frame.md"


def test_the_frames_of_the_concept_page_are_frames() -> None:
    """R25: each hexdump of the page decodes to what the page says it holds."""
    dumps = re.findall(r"((?:^[0-9a-f]{8}: .*\n)+)", PAGE.read_text(), re.MULTILINE)
    values = [
        bytes.fromhex("".join(line.partition(": ")[2][:48] for line in dump.splitlines()))
        for dump in dumps
    ]
    assert [frame.decode(value) for value in values] == [b"a" * 1024, b"abc"]
    assert [frame.describe(value).algorithm for value in values] == [1, 0]
    assert f"{frame.describe(values[0]).stored_checksum:#010x}" in PAGE.read_text()


def test_that_a_counter_tells_whether_an_object_compresses_is_said_plainly() -> None:
    """A13."""
    text = PAGE.read_text()
    for outcome in (Outcome.STORED, Outcome.COMPRESSED):
        assert f'`outcome="{outcome}"`' in text
    assert "learns whether a single one was compressible" in text


def test_the_way_back_is_told_step_by_step() -> None:
    """R148, R155, R181, R195: in this order, by an Eager migration; and never delete, go forward."""
    text = " ".join((DOCS / "how-to" / "verify-a-downgrade.md").read_text().split())
    steps = (
        "deselect the resources in the policy of *every* API server and restart",
        "migrate each resource",
        "wait until the migration has succeeded",
        "`rewrite: OnWrite`",
        "`storage verify-downgrade` is what comes then",
        "Never delete an object because its frame cannot be read: go forward",
    )
    places = [text.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)
