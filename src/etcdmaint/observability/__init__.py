"""What the operator shows of itself: metrics, probes and logs.

Nothing here decides anything; the domain calls in through Protocols that it owns.
"""
