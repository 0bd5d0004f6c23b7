"""Pages and figures of results: for everybody (``group``), and of people for their own site (``local``)."""
