"""Encryption at rest, byte for byte as kube-apiserver has it, both ways.

`configuration` reads the file, `chain` encrypts and decrypts: docs/concepts/encryption-at-rest.md.
Importing this package loads neither a cipher nor gRPC.
"""
