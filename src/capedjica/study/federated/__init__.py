"""A study whose sites are on machines of their own.

``federation``
    What the coordinator keeps: the sealed study, the server's and its own kit, a kit for each site.
``provisioning``
    How that is made.
``kits``
    What a site received: checked, and put into its folder.
``site_settings``
    What FLARE may do at a site, which the site decides.
``parties``
    The aggregator and a site as NVIDIA FLARE runs them.
``processes``
    The server and the clients as processes of this machine: started, kept running, stopped.
``jobs``
    A study handed to the server, and what became of it.
``running``
    From a sealed study to results.
``progress``
    How far a run is, for those who look at it from another process.
"""
