"""What a person names is read whole only as far as there is an end to it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from etcdmaint.errors import InvalidInput
from etcdmaint.etcd.endpoint import AddressMap
from etcdmaint.files import MOST_OF_A_FILE, read_whole
from etcdmaint.kube.access import load_access

ENDLESS = Path("/dev/zero")


def test_a_file_is_read_to_its_last_byte(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\0" * 10 + b"\n")
    assert read_whole(path, field="--x", most=11) == b"\0" * 10 + b"\n"
    assert read_whole(io.BytesIO(b"ab"), field="--x", most=2) == b"ab"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (ENDLESS, "--x: the-name is larger than 4 MiB"),
        (io.BytesIO(bytes(MOST_OF_A_FILE + 1)), "--x: the-name is larger than 4 MiB"),
        (Path("/nowhere/at/all"), "--x: the-name cannot be read: No such file"),
        (Path("/"), "--x: the-name cannot be read: Is a directory"),
        (Path("a\0b"), "--x: the-name cannot be read: it is no name"),
    ],
    ids=["device", "stream", "missing", "folder", "no-name"],
)
def test_what_cannot_be_read_whole_is_told_with_its_name_and_the_bound(
    source: Path | io.BytesIO, told: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_whole(source, field="--x", name="the-name")
    assert str(refused.value).startswith(told)


def test_an_address_map_without_an_end_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--etcd-address-map: /dev/zero: is larger than 4 MiB"):
        AddressMap.load(ENDLESS, field="--etcd-address-map")


async def test_a_kubeconfig_that_is_far_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.touch()
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidInput, match=r"--kubeconfig: .*kubeconfig is larger than 4 MiB"):
        await load_access(str(path))
