"""Confinement of programs on one machine: a process with secrets has no network, and vice versa.

These modules import only the standard library, because they are loaded right before a program is executed.
"""
