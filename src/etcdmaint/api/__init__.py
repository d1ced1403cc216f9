"""The custom resources as frozen models: names, vocabulary, specs, statuses, conditions.

Everything that comes from the Kubernetes API is parsed here, once, and refused with the path of the
field at fault; nothing behind this room sees a raw object. It must not know how objects are read or
written, nor what is done with them.
"""
