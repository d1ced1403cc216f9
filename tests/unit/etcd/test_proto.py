"""The wire messages carry etcd's own numbers, and the generated module is the .proto's."""

from __future__ import annotations

import json
from pathlib import Path

import etcdmaint.etcd.proto
from etcdmaint.etcd.proto import etcd_pb2 as pb
from tests.unit.etcd.proto_text import Field, plain, read

PROTO = Path(etcdmaint.etcd.proto.__file__).with_name("etcd.proto").read_text()
# From rpc.proto and kv.proto of etcd v3.7.3, whose numbers never change; made with `read`.
ETCD = {
    name: Field(*field)
    for name, field in json.loads(Path(__file__).with_name("etcd_fields.json").read_text()).items()
}


def described() -> dict[str, Field]:
    """What the generated module has, in the form of `read`."""
    found: dict[str, Field] = {}
    descriptor = pb.DESCRIPTOR
    for message in descriptor.message_types_by_name.values():
        for field in message.fields:
            by_name = field.message_type or field.enum_type
            kind = by_name.name if by_name else SCALARS[field.type]
            name = f"{plain(message.name)}.{plain(field.name)}"
            found[name] = Field(field.number, kind, field.is_repeated)
        for enum in message.enum_types:
            found |= values(enum)
    for enum in descriptor.enum_types_by_name.values():
        found |= values(enum)
    return found


SCALARS = {3: "int64", 4: "uint64", 8: "bool", 9: "string", 12: "bytes"}


def values(enum) -> dict[str, Field]:
    return {
        f"{plain(enum.name)}.{plain(value.name)}": Field(value.number, "enum value", False)
        for value in enum.values
    }


def test_every_field_has_the_number_and_the_type_that_etcd_gives_it() -> None:
    ours = read(PROTO)
    assert len(ours) > 150
    assert {name: field for name, field in ours.items() if ETCD.get(name) != field} == {}


def test_the_generated_module_is_what_the_proto_file_says() -> None:
    assert described() == read(PROTO)


def test_the_messages_of_a_status_are_not_short_of_a_field_that_etcd_has() -> None:
    """D21, D16: quota, downgrade and sizes are all there."""
    fields = {name for name in ETCD if name.startswith(("statusresponse.", "downgradeinfo."))}
    assert fields <= read(PROTO).keys()


def test_our_copy_does_not_clash_with_other_copies_of_etcds_messages_in_one_process() -> None:
    assert pb.DESCRIPTOR.package == "etcdmaint.etcd.v3"
    assert pb.DESCRIPTOR.name == "etcdmaint/etcd/proto/etcd.proto"


def test_the_generated_module_checks_no_version_of_the_runtime() -> None:
    generated = Path(pb.__file__).read_text()
    assert "runtime_version" not in generated
