"""The aggregator's own carrier forges what comes in a site's name, over real mutual TLS."""

import os
from pathlib import Path

from tests.attacks.flare.attacked import REACHABLE
from tests.faults.flare.flare_faults import SITES, audit, gated

FORGING = Path(__file__).parent / "forging"
KINDS = {"garbage", "cut short", "another's", "first", "latest", "altered"}


def test_replies_forged_in_a_sites_name_are_discarded_and_the_site_stays(tmp_path, monkeypatch):
    """Each question is put again until the site's own reply comes: nothing is lost and nothing charged twice."""
    with gated(tmp_path, started=False, iterations=3) as parties:
        parties.start()
        # The gates of the sites are not wanted in the server.
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join([str(FORGING), REACHABLE]))
            parties.run()
        forged = (parties.federation.server_kit / "forged.txt").read_text().splitlines()
        assert set(forged) == KINDS
        audit(parties)
        assert parties.privacy["lost"] == []
        log = parties.run_folder.log_path.read_text()
        assert log.count("it is asked again") == len(forged)
        for name in SITES:
            with parties.home(name).open_ledger() as ledger:
                assert ledger.totals().overall.n_releases == parties.n_releases
