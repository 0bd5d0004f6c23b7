"""The agent as a program: ``python -m capedjica.site.agent PLACE CARRIER [UID]``.

``PLACE`` is the folder of a study in the site's own folder, ``CARRIER`` what keeps the carrier from the
site's files, and ``UID`` the user whose processes may connect as the carrier, by default the agent's own.
"""

from __future__ import annotations

import os
import sys

from capedjica.tools.confinement.agent import isolate_agent


def main() -> None:
    """Shut the network out, before anything else is loaded, and serve."""
    apart = len(sys.argv) > 3 and sys.argv[3] not in ("", str(os.getuid()))
    # defence: an-agent-has-no-network
    network = isolate_agent(knows_users=apart)
    from capedjica.errors import CapedjicaError
    from capedjica.flare.launch import FINAL_CODE
    from capedjica.site.agent.serving import serve

    try:
        if serve(network, *sys.argv[1:]):  # type: ignore[arg-type]
            # For its supervisor: nothing is to be started again, and the carrier ends as well.
            sys.stderr.write("the coordinator has ended the study: this site disconnects\n")
            sys.exit(FINAL_CODE)
    except CapedjicaError as error:
        # One line, which `site start` shows; it names a file or a setting, and no person.
        sys.stderr.write(f"{error}\n")
        sys.exit(FINAL_CODE)


if __name__ == "__main__":
    main()
