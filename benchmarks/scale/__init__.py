"""Growth of time, memory and bytes with participants, sites, components and features."""
