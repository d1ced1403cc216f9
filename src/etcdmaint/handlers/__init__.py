"""What kopf calls: one file a kind, a few lines a handler, and no decisions.

What is to be done with an object is asked of kube/; here it is only said when kopf should call whom.
"""
