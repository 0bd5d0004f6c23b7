"""Names and size limits of the messages carried by FLARE."""

from __future__ import annotations

from typing import Final

# Questions and answers are separate messages: no connection is kept open between them.
TOPIC: Final = "capedjica"
ANSWERS: Final = "capedjica-answers"
PARCEL: Final = "parcel"
# Identifies an answer: random, and known only to the site that was asked.
TICKET: Final = "ticket"
# In the folder ``local`` of a FLARE workspace: the path of a socket.
SETTINGS: Final = "capedjica.json"
# Largest size in bytes of a message without a reply, which must arrive within ten seconds: two seconds at one
# megabit per second, four where a line with a round trip of 200 ms loses 1% of packets (1 MB took more than
# ten, so that sites counted as lost). Longer messages are fetched by a request, whose reply only has to make
# progress.
LARGE: Final = 1 << 18
# Larger messages are refused; a message of 30 MB was measured to take little more than a second.
MAX_MESSAGE: Final = 48 << 20
# FLARE sends long messages in pieces; the whole message also contains names and headers.
MAX_FRAME: Final = MAX_MESSAGE + (1 << 20)
