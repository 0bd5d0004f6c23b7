"""Sites on machines of their own: NVIDIA FLARE carries the bytes of the protocol, and nothing else.

``carriage`` is how a question becomes an answer although sites compute for minutes and networks fail; it
knows nothing of FLARE. ``controller`` and ``executor`` are the two ends that FLARE runs.
"""

from typing import Final

# The name in the certificate of the coordinator, who alone may give the server commands.
COORDINATOR: Final = "coordinator@capedjica.org"
