"""NVIDIA FLARE carries the bytes of the protocol between machines, and nothing else: what both ends share.

The site's end is in ``capedjica.site.flare``, the server's in ``capedjica.coordinator.flare``; nothing else
imports FLARE. How a question becomes an answer although sites compute for minutes and networks fail is in
``parcels``, and at the two ends in ``responder`` and ``transport``, none of which know anything of FLARE.
"""
