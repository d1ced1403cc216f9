"""Which etcd releases are refused, and which are warned of (D17)."""

from __future__ import annotations

import pytest

from etcdmaint.defrag.versions import Action, find_hazards


def actions(version: str) -> set[Action]:
    return {action for action, _ in find_hazards(version)}


@pytest.mark.parametrize("version", ["3.5.0", "3.5.5", "3.4.3", "3.3.27", "v3.5.2"])
def test_releases_that_lose_data_are_refused(version: str) -> None:
    """D17: etcd-facts 3.10, action refuse."""
    assert Action.REFUSE in actions(version)


@pytest.mark.parametrize(
    "version", ["3.4.4", "3.4.37", "3.5.6", "3.5.21", "3.5.22", "3.6.0", "3.6.4"]
)
def test_releases_with_a_guarded_defect_are_warned_of(version: str) -> None:
    """D17: action warn."""
    assert actions(version) == {Action.WARN}


@pytest.mark.parametrize(
    "version", ["3.4.38", "3.5.23", "3.5.35", "3.6.5", "3.6.16", "3.7.3", "4.0.0"]
)
def test_good_releases_have_nothing_against_them(version: str) -> None:
    assert find_hazards(version) == ()


def test_the_sentence_names_the_defect_and_the_first_good_release() -> None:
    (sentence,) = [text for action, text in find_hazards("3.5.4") if action is Action.REFUSE]
    assert "etcd#14685" in sentence
    assert "3.5.6" in sentence


@pytest.mark.parametrize("version", ["", "three", "3.7", "3.7.3.4", "\x1b[31m3.7.3" * 10])
def test_a_release_that_cannot_be_read_is_told_as_unknown(version: str) -> None:
    ((action, sentence),) = find_hazards(version)
    assert action is Action.WARN
    assert "not known" in sentence
    assert "\x1b" not in sentence
