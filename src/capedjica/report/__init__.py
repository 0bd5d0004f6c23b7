"""Reports and figures: public group reports (``group``) and reports on participants at a site (``local``)."""
