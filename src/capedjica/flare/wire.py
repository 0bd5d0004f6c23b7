"""How FLARE carries our messages: under which names, how large, and for whom."""

from __future__ import annotations

from typing import Final

# Questions and answers are messages of their own: nothing is kept open between them, by anybody.
TOPIC: Final = "capedjica"
ANSWERS: Final = "capedjica-answers"
PARCEL: Final = "parcel"
# By which an answer is known: random, and told to nobody but the site that was asked.
TICKET: Final = "ticket"
# In the folder ``local`` of a workspace of FLARE's: the path of a socket.
SETTINGS: Final = "capedjica.json"
# Bytes that go as a message without a reply: ten seconds' worth of a line of one megabit a second. What is
# longer is asked for by a request, whose reply only has to make progress.
LARGE: Final = 1 << 20
# A message is refused beyond this size; 30 MB were measured to pass in little more than a second.
MAX_MESSAGE: Final = 48 << 20
# FLARE sends long messages in pieces; whole, they carry names and headers besides.
MAX_FRAME: Final = MAX_MESSAGE + (1 << 20)
