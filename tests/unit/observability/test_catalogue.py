"""The catalogue is the one place for names, and the reference page says the same."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from etcdmaint.observability.catalogue import CATALOGUE, Definition, Kind

_ROOT = Path(__file__).parents[3]


def test_the_reference_page_is_what_the_catalogue_says() -> None:
    script = runpy.run_path(str(_ROOT / "scripts" / "generate_metrics_reference.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), "run `make docs`"


def test_every_name_is_there_once() -> None:
    names = [each.name for each in CATALOGUE]
    assert len(names) == len(set(names))
    assert len(names) > 20


@pytest.mark.parametrize("definition", CATALOGUE, ids=lambda each: each.name)
def test_a_definition_keeps_to_the_conventions(definition: Definition) -> None:
    if definition.name != "leader_election_master_status":
        assert definition.name.startswith("etcdmaint_")
    assert re.fullmatch(r"[a-z][a-z0-9_]*", definition.name)
    assert definition.name.endswith("_total") == (definition.kind is Kind.COUNTER)
    assert definition.help.endswith(".")
    assert definition.help[0].isupper()
    assert bool(definition.buckets) == (definition.kind is Kind.HISTOGRAM)
    assert list(definition.buckets) == sorted(set(definition.buckets))
    if definition.kind is Kind.HISTOGRAM:
        assert definition.name.endswith("_seconds")


def test_only_gauges_carry_the_name_of_an_object() -> None:
    for definition in CATALOGUE:
        if {"namespace", "member_id"} & set(definition.labels):
            assert definition.kind is Kind.GAUGE, definition.name


def test_the_buckets_of_a_turn_are_etcds_own_as_far_as_those_go() -> None:
    buckets = next(
        each.buckets for each in CATALOGUE if each.name.startswith("etcdmaint_member_defrag_dur")
    )
    etcds = [0.1 * 2**step for step in range(13)]
    assert list(buckets[:13]) == pytest.approx(etcds)
    assert buckets[-1] < 1800 < buckets[-1] * 2
