"""Messages of the KMS plugin, generated from kms.proto and checked in; a test compares the two."""
