"""Keeps history short: the compaction election that kube-apiservers hold among themselves, joined.

It knows etcd and time; it must not know Kubernetes objects, nor who asked for a cluster to be compacted.
"""
