"""How a mean over people is made private, by messages between an aggregator and sites.

The modules here are what both sides know: the contract, the noise and cost of a release, the messages. What
only one side does is in ``site`` and in ``aggregator``, which never import each other.
"""
