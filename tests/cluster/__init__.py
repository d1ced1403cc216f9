"""Tests against a real kube-apiserver and real etcd servers."""
