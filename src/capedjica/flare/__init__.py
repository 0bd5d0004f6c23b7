"""Shared code of the NVIDIA FLARE transport, which only carries the protocol's bytes between machines.

The site's end is in ``capedjica.site.flare``, the server's in ``capedjica.coordinator.flare``; nothing else
imports FLARE. The modules ``parcels`` and, at the two ends, ``responder`` and ``transport`` deliver questions
and answers reliably although sites compute for minutes and networks fail. They are independent of FLARE.
"""
