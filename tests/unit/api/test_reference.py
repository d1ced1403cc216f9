from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "generate_crd_reference.py"


def test_the_reference_page_is_what_the_crds_say() -> None:
    specification = importlib.util.spec_from_file_location("generate_crd_reference", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    assert script.PAGE.read_text() == script.render(), "run `make docs`"
