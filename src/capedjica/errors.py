"""Exceptions raised by this package. Their messages say in one line what was given and what was expected."""

from __future__ import annotations


class CapedjicaError(Exception):
    """Base class of all errors raised by this package; messages are written for the user."""

    exit_code = 1


class InputError(CapedjicaError, ValueError):
    """A value given by the user is invalid; the message names the parameter and the value."""

    exit_code = 2


class BudgetExceededError(CapedjicaError):
    """A release would exceed the privacy budget; nothing was charged and nothing was sent."""

    exit_code = 3


class SensitivityError(CapedjicaError, AssertionError):
    """An analysis claims a sensitivity that a hostile subject exceeds."""


class ProtocolError(CapedjicaError):
    """A message or state violates the protocol; the error message names the party, never its data."""

    exit_code = 4
