"""A site's process, without a study: ``python -m tests.attacks.flare.guarded_cell KEYS NAME PORT [PARENT]``.

It answers what reaches it, and says so.
"""

import sys
from pathlib import Path

from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellChannel

from capedjica.flare.kit import COMMUNICATION
from capedjica.flare.wire import CHANNEL
from capedjica.site.flare import program

SERVER, SITE = "server", "s1"


def main(keys: Path, name: str, port: int, parent: str | None) -> None:
    program.prepare()
    flare_decomposers.register()
    CommConfigurator._configuration, CommConfigurator._config_loaded = COMMUNICATION, True
    cell = Cell(
        fqcn=name,
        root_url=f"tcp://localhost:{port}",
        secure=True,
        credentials={
            "ca_cert": str(keys / "ca.crt"),
            "client_cert": str(keys / "s1.crt"),
            "client_key": str(keys / "s1.key"),
            "server_cert": str(keys / "s1.crt"),
            "server_key": str(keys / "s1.key"),
            "connection_security": "mtls",
        },
        create_internal_listener=parent is None,
        parent_url=parent,
        parent_resources=None if parent is None else {"connection_security": "mtls"},
        auth_identity=SITE,
        auth_identity_map={SITE: SITE, SERVER: SERVER},
    )

    def answer(request: Message) -> Message:
        print("reached by", request.get_header(MessageHeaderKey.REQ_ID), flush=True)
        # As FLARE hands back cookies.
        return Message(payload=request.payload)

    for channel in (CellChannel.CLIENT_MAIN, CellChannel.CLIENT_COMMAND, CHANNEL):
        cell.register_request_cb(channel, "*", answer)
    cell.start()
    print("listens at", cell.get_internal_listener_url() if parent is None else "nothing", flush=True)
    sys.stdin.read()  # until whoever began it ends


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
