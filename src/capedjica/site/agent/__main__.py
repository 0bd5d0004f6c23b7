"""The agent as a program: ``python -m capedjica.site.agent PLACE CARRIER [UID]``.

``PLACE`` is the folder of a study in the site's own folder, ``CARRIER`` the confinement of the carrier, and
``UID`` the user whose processes may connect as the carrier, by default the agent's own.
"""

from __future__ import annotations

import os
import sys

from capedjica.tools.confinement.agent import isolate_agent


def main() -> None:
    """Give up network access before anything else is loaded, then serve."""
    apart = len(sys.argv) > 3 and sys.argv[3] not in ("", str(os.getuid()))
    # defence: an-agent-has-no-network
    network = isolate_agent(knows_users=apart)
    from capedjica.errors import CapedjicaError
    from capedjica.flare.launch import FINAL_CODE
    from capedjica.site.agent.serving import serve

    try:
        if serve(network, *sys.argv[1:]):  # type: ignore[arg-type]
            # The exit code makes the supervisor end the carrier and restart nothing.
            sys.stderr.write("the coordinator has ended the study; this site disconnects\n")
            sys.exit(FINAL_CODE)
    except CapedjicaError as error:
        # One line, shown by `site start`; it names a file or a setting, but no participant.
        sys.stderr.write(f"{error}\n")
        sys.exit(FINAL_CODE)


if __name__ == "__main__":
    main()
