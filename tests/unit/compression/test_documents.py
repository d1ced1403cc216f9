"""What the pages say of the frame is so."""

from __future__ import annotations

import re
from pathlib import Path

from etcdmaint.compression import frame

PAGE = Path(__file__).parents[3] / "docs" / "concepts" / "compression-frame.md"


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
