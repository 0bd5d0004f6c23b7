"""Private means over subjects, computed by messages between an aggregator and the sites.

The modules of this package are shared by both sides: the contract, the noise and cost of a release, and the
messages. The subpackages ``site`` and ``aggregator`` hold the two sides and never import each other.
"""
