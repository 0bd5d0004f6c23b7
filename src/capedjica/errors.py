"""Errors that a person can act on: one line, what was given, what was expected."""

from __future__ import annotations


class CapedjicaError(Exception):
    """Base of every error raised on purpose; its text is written for the person who reads it."""

    exit_code = 1


class InputError(CapedjicaError, ValueError):
    """A value given by the user cannot be used; the text names the parameter and the value."""

    exit_code = 2


class BudgetExceededError(CapedjicaError):
    """A release would spend more privacy than allowed; nothing was charged and nothing was sent."""

    exit_code = 3


class ProtocolError(CapedjicaError):
    """A message or a state that the protocol does not allow; the text names the party and never its data."""

    exit_code = 4
