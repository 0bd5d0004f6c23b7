"""Walls between two programs of one machine: what holds secrets has no network, and the other way round.

Nothing here imports more than the standard library, for it is loaded right before a program is executed.
"""
