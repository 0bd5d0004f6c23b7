"""A site's end of FLARE: the kit it was given, what FLARE may do here, whom its processes listen to."""
