"""The generated messages are those of the .proto beside them, and those of Kubernetes."""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor

from etcdmaint.compression.encryption import proto
from etcdmaint.compression.encryption.proto import kms_pb2

SOURCE = (Path(proto.__file__).parent / "kms.proto").read_text()
TYPES = {
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_ENUM: "DekSourceType",
    FieldDescriptor.TYPE_MESSAGE: "map<string, bytes>",
}


def test_the_checked_in_module_is_what_the_proto_says() -> None:
    """Every message with its fields, numbers and types; every value of the enum."""
    written = {
        name: {
            (field, int(number), kind)
            for kind, field, number in re.findall(r"([\w<>, ]+?) (\w+) = (\d+);", body)
        }
        for name, body in re.findall(r"message (\w+) \{(.*?)\}", SOURCE, re.DOTALL)
    }
    generated = {
        message.name: {(field.name, field.number, TYPES[field.type]) for field in message.fields}
        for message in kms_pb2.DESCRIPTOR.message_types_by_name.values()
    }
    written = {
        name: {(field, number, kind.strip()) for field, number, kind in fields}
        for name, fields in written.items()
    }

    assert generated == written
    assert len(written) == 13
    assert dict(kms_pb2.DekSourceType.items()) == {
        name: int(number)
        for name, number in re.findall(r"(\w+) = (\d);", SOURCE.partition("enum")[2])
    }


def test_the_package_is_our_own() -> None:
    """Two copies of Kubernetes' messages in one process would clash."""
    assert kms_pb2.DESCRIPTOR.package == "etcdmaint.kms"
    assert kms_pb2.DESCRIPTOR.name == "etcdmaint/compression/encryption/proto/kms.proto"


def test_the_stored_message_is_kubernetes_own_on_the_wire() -> None:
    """R29: the example of the page on encryption at rest, field by field."""
    message = kms_pb2.EncryptedObject(
        encrypted_data=b"data",
        key_id="kid1",
        encrypted_dek_source=b"ENCDEK",
        encrypted_dek_source_type=kms_pb2.HKDF_SHA256_XNONCE_AES_GCM_SEED,
    )

    assert message.SerializeToString().hex() == "0a046461746112046b6964311a06454e4344454b2801"
