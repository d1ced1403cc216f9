"""The Kubernetes API, as seen by the operator.

Adapters only: they turn objects into what the domain asks for, and what the domain says into objects.
Nothing here decides when a member is defragmented, and the domain never imports this.
"""
