"""Take every defence of the threat model away, one at a time, and see that its test notices.

``python -m tests.defences [--fast] [NAME ...]`` copies the sources and the tests, runs each test once as
everything is, then once for every defence with the sources changed so that this defence is gone, and writes
``docs/evidence/defences.txt``. A test notices if it fails by itself: not while it is imported, and not
because the changed source is no Python. ``--fast`` leaves out what starts real processes of FLARE or takes
minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

# What every process would import, and takes long to; nothing of ours, which is to be imported from the copy.
import cryptography.hazmat.primitives.ciphers.aead
import msgspec
import numba
import numpy
import pytest
import scipy.optimize
import scipy.stats

__all__ = ["DEFENCES", "REPORT", "cryptography", "msgspec", "numba", "numpy", "scipy"]

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "docs" / "evidence" / "defences.txt"
COPIED = ("benchmarks", "src", "tests")
# Errors of a change that does not fit its source, and not of what it let through.
MISTAKES = (
    "SyntaxError",
    "IndentationError",
    "NameError",
    "UnboundLocalError",
    "ImportError",
    "ModuleNotFound",
)


@dataclass(frozen=True)
class Change:
    """A text that occurs once in a file, and what is put in its place."""

    file: str
    old: str
    new: str

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file.removeprefix('src/capedjica/')}: {old} -> {new or '(nothing)'}"


@dataclass(frozen=True)
class Defence:
    """A statement of the threat model, what takes its defence away, and the test that must notice.

    Several changes are the layers of one defence, any of which is enough.
    """

    name: str
    statement: str
    test: str
    changes: tuple[Change, ...]
    slow: bool = False


def source(file: str, old: str, new: str) -> Change:
    return Change(f"src/capedjica/{file}", old, new)


# Texts that several changes have in common.
SITE, LEDGER, BOOKS = "mechanisms/site.py", "privacy/ledger/ledger.py", "privacy/ledger/books.py"
SUM, CHAIN = "securesum/site.py", "privacy/ledger/chain.py"
JOBS = "tests/federated/test_strange_jobs.py::test_"
STOLEN = "tests/attacks/test_stolen_kit.py::test_"
GUARD = "tests/engines/test_flare_guard.py::test_"
OUR_CLASS = 'path: Literal["capedjica.study.federated.parties.SiteParty"]'
UNPACKING = "tests/engines/test_flare_unpacking.py::test_"
NEIGHBOURS = "tests/attacks/test_flare_neighbours.py::test_"
STREAMS = "tests/engines/test_flare_streams.py::test_"
DISCRETION = "tests/engines/test_flare_discretion.py::test_"
ORIGINS = "tests/engines/test_flare_origins.py::test_"
WRONG_REQUEST = "if entry.request != request or entry.read(Release).participants != participants:"
DIFFERENT_SURVIVORS = "if message.survivors_hash != agreed:"
NOT_SIGNED = "if not site.verify(bytes(signature), _signed_bytes(payload)):"
STORED = """\
            if stored is not None:
                return self._chain.message(stored)
"""
FRESH_OR_REFUSED = "self._chain.books.check_fresh(place, self._incarnation)"
WIPED = "        self.used.update(range(len(self.begin.slots)))\n"
WAITS = """\
        with self._releasing, self._state:
            return self._first_message(begin)"""
OTHER_STUDY = "if message.contract != contract.hash:"
LEAK = """\
    if people.n_unreadable:
        logging.getLogger(f"capedjica.site.{site}")"""
LEAKING = f"""\
    logging.getLogger("capedjica.run").info("%s has read %s", site, people.names)
{LEAK}"""
ONE_CLAIM = """\
    "CREATE UNIQUE INDEX one_claim ON entry (study, block, attempt) WHERE kind = 'claim'",
"""
KEY_CHANGED = (
    'ledger.change_key(storage_key=new.derive_key("ledger"), old=old.public_key, new=new.public_key)'
)
CARD_LAST = """\
_change_ledger(home, old, new)
    home.write_card(new)
    os.replace(coming, place)
"""
HANDED_BACK = "                self._ledger.check_against(self._seal.unseal(hello.head))\n"
NOT_FOUND = "        without=read_withdrawn(home) if withdrawn is None else withdrawn,\n"
NOT_OURS = 'raise ProtocolError("it does not take part; its own log says why") from None'

ONCE = "tests/mechanisms/test_once.py::test_"
AGGREGATOR = "tests/mechanisms/test_aggregator.py::test_"
TRANSCRIPTS = "tests/attacks/test_release_transcripts.py::test_"
AUDIT = "tests/attacks/test_pipeline_audit.py::test_"
VIEWS = "tests/attacks/test_securesum_views.py::test_"
OUTPUTS = "tests/attacks/test_private_outputs.py::test_"
HOSTILE = "tests/attacks/test_hostile_messages.py::test_no_lie_obtains_a_release_or_a_charge"
TRUST = "tests/attacks/test_flare_trust.py::test_"
KITS = "tests/federated/test_kits.py::test_"
WITHDRAWAL = "tests/study/test_withdrawal.py::test_"
ROTATION = "tests/study/test_key_rotation.py::test_"
REVOCATION = "tests/study/test_revocation.py::test_"
HEADS = "tests/mechanisms/test_heads.py::test_"
LEDGER_KEYS = "tests/privacy/test_ledger_keys.py::test_"

EVERY_LAYER = (
    source(LEDGER, STORED, ""),
    source(BOOKS, WRONG_REQUEST, "if False:"),
    source(LEDGER, "if place in self._touched:\n            raise", "if False:\n            raise"),
    source(
        SITE,
        "held[0] if held and ask.slot not in held[0].used else None",
        "held[0] if held else None",
    ),
    source(SITE, "        if slot in self.used:\n", "        if False:\n"),
)

DEFENCES = (
    # 1. The parties
    Defence(
        "policy of a site",
        "a site takes part without protection only if its own policy says so",
        f"{ONCE}a_site_refuses_what_its_policy_does_not_allow",
        (source(SITE, "if not contract.protects and not policy.allow_unprotected:", "if False:"),),
    ),
    Defence(
        "infinite charge",
        "what is released without protection is charged with infinity",
        f"{ONCE}unprotected_releases_charge_infinity",
        (
            source(
                SITE,
                "return plan.mu[self.name] if self.contract.protects else math.inf, make",
                "return plan.mu[self.name], make",
            ),
        ),
    ),
    # 2. What each party sees
    Defence(
        "uniform masks",
        "one answer alone is uniform noise",
        f"{TRANSCRIPTS}a_message_alone_is_uniform",
        (
            source(
                SITE,
                "return site._mask_source.uniform(self._layout.n_words)",
                "return np.zeros(self._layout.n_words, np.uint64)",
            ),
        ),
    ),
    Defence(
        "noise of each site",
        "all answers together shift by exactly the mu that each site claims",
        f"{TRANSCRIPTS}shift_is_the_mu_that_each_site_claimed",
        (
            source(
                SITE,
                "return _gaussian(self._noise, scale, size)",
                "return _gaussian(self._noise, 0.7 * scale, size)",
            ),
        ),
    ),
    Defence(
        "colluders among survivors",
        "the mu that a site claims holds after a lost site too: S_C does not shrink",
        f"{TRANSCRIPTS}shift_after_a_lost_site_and_a_new_block",
        (
            source(
                "mechanisms/release.py",
                """\
                    self.weights,
                    self.contract.roster.n_colluding,
                )
                return cape""",
                """\
                    self.weights,
                    self.contract.roster.n_colluding * (len(self.participants) == 5),
                )
                return cape""",
            ),
        ),
    ),
    Defence(
        "noise of a whole analysis",
        "no adversary reaches more than the epsilon that an analysis states",
        f"{AUDIT}a_small_audit_stays_below_the_claim_and_reaches_a_third_of_it",
        (
            source(
                SITE,
                "return _gaussian(self._noise, scale, size)",
                "return _gaussian(self._noise, 0.7 * scale, size)",
            ),
        ),
    ),
    Defence(
        "silence about scans",
        "the shape of a transcript is the same whatever the scan",
        f"{AUDIT}the_shape_of_a_transcript_says_nothing_about_a_scan",
        (
            source(
                SITE,
                "        return total\n\n    def _burnt",
                "        if self.n_zero:\n"
                '            raise ProtocolError("a scan cannot be used")\n'
                "        return total\n\n    def _burnt",
            ),
        ),
    ),
    Defence(
        "agreement on survivors",
        "shares of secrets are of use to t sites together, for one set of survivors",
        f"{VIEWS}at_most_one_sum_of_all_honest_survivors_is_learnt",
        (source(SUM, DIFFERENT_SURVIVORS, "if False:"),),
    ),
    Defence(
        "certificates of sites",
        "both ends of the wire show certificates of this study",
        f"{TRUST}who_has_no_certificate_of_this_study_gets_not_a_word",
        (
            source(
                "study/federated/provisioning.py",
                '{"fed_learn_port": port, "admin_port": port}',
                '{"fed_learn_port": port, "admin_port": port, "connection_security": "tls"}',
            ),
        ),
        slow=True,
    ),
    Defence(
        "encryption of the wire",
        "who watches the wire sees TLS",
        f"{TRUST}who_has_no_certificate_of_this_study_gets_not_a_word",
        (
            source(
                "study/federated/provisioning.py",
                'props={"api_version": 3}',
                'props={"api_version": 3, "connection_security": "clear"}',
            ),
            source(
                "study/federated/site_settings.py",
                '"connection_security": "mtls",',
                '"connection_security": "clear",',
            ),
            # A third layer: without a certificate nobody gives commands.
            source(
                "engines/flare/origins.py",
                "return certified == COORDINATOR or not is_valid_admin_client_name(name)",
                "return True",
            ),
        ),
        slow=True,
    ),
    Defence(
        "logs stay at a site",
        "sites' logs are not streamed to the server",
        f"{KITS}what_flare_may_do_at_a_site_is_decided_by_the_site",
        (
            source(
                "study/federated/site_settings.py",
                '"allow_log_streaming": False',
                '"allow_log_streaming": True',
            ),
        ),
    ),
    Defence(
        "no commands at a site",
        "a site's FLARE refuses commands that would read its files",
        f"{KITS}what_flare_may_do_at_a_site_is_decided_by_the_site",
        (
            source(
                "study/federated/site_settings.py",
                '"server-predeployed-flwr"), "none"',
                '"server-predeployed-flwr"), "any"',
            ),
        ),
    ),
    Defence(
        "silence of a site that refuses",
        "after a run the server's workspace and logs hold nothing of a subject",
        "tests/federated/test_flare_run.py::test_nothing_of_a_subject_is_with_the_aggregator",
        (source("study/federated/parties.py", NOT_OURS, "raise ProtocolError(str(error)) from None"),),
        slow=True,
    ),
    Defence(
        "masks from the site's own source",
        "no secret of a site is with the aggregator or in a log",
        "tests/federated/test_flare_run.py::test_no_secret_of_a_site_is_with_the_aggregator_or_in_a_log",
        (
            source(
                SITE,
                "return site._mask_source.uniform(self._layout.n_words)",
                "masks = site._mask_source.uniform(self._layout.n_words)\n"
                '            site._log.warning("masks: %s", masks.tobytes().hex())\n'
                "            return masks",
            ),
        ),
        slow=True,
    ),
    Defence(
        "no error depends on data",
        "a scan that cannot be read counts as zero, and the answer looks as always",
        f"{ONCE}no_error_that_depends_on_data_leaves_a_site",
        (
            source(
                "mechanisms/subjects.py",
                "    except ProtocolError:\n        raise\n    except Exception:\n        return\n",
                "    except ProtocolError:\n        raise\n",
            ),
        ),
    ),
    Defence(
        "one subject fails alone",
        "a subject that fails is zero and changes nobody else",
        "tests/mechanisms/test_subjects.py::test_a_subject_that_fails_is_zero_and_changes_nobody_else",
        (
            source(
                "mechanisms/subjects.py",
                "        except Exception:\n            batch = np.empty(0)\n",
                "        except Exception:\n            return\n",
            ),
        ),
    ),
    Defence(
        "clip on integers",
        "replacing one subject moves the sum by at most the sensitivity",
        "tests/mechanisms/test_subjects.py::test_replacing_one_subject_moves_the_sum_by_at_most_the_sensitivity",
        (
            source(
                "mechanisms/subjects.py",
                "factor = scale * longest / norm if norm > longest else scale",
                "factor = scale",
            ),
            source(
                "mechanisms/subjects.py", "if math.sqrt(square) <= bound:", "if math.sqrt(square) <= 1e15:"
            ),
        ),
    ),
    Defence(
        "names stay at a site",
        "what the aggregator receives and writes holds nobody",
        f"{OUTPUTS}nobody_is_in_what_the_aggregator_received_and_wrote",
        (source("study/attending.py", LEAK, LEAKING),),
    ),
    Defence(
        "names stay at a site, images",
        "what the aggregator receives and writes holds nobody",
        f"{OUTPUTS}nobody_is_in_the_results_of_images",
        (source("study/attending.py", LEAK, LEAKING),),
    ),
    Defence(
        "search for numbers",
        "leaks that are planted are found",
        f"{OUTPUTS}the_search_finds_what_is_planted",
        (Change("tests/attacks/leaks.py", "if _overlap(own, windows)}", "if False}"),),
    ),
    Defence(
        "search for names",
        "leaks that are planted are found",
        f"{OUTPUTS}a_real_leak_is_found",
        (Change("tests/attacks/leaks.py", "if any(form in data for form in forms)}", "if False}"),),
    ),
    Defence(
        "enrolment is private",
        "who was left out, and why, is in a file that only its owner can read",
        "tests/study/test_enrolment.py::test_bad_scans_are_left_out_with_reasons_that_stay_here",
        (source("study/private_files.py", "os.O_EXCL, 0o600)", "os.O_EXCL, 0o644)"),),
    ),
    Defence(
        "the enrolled stay enrolled",
        "nothing about a scan changes the number of people or what happens",
        "tests/study/test_enrolment.py::test_somebody_who_vanishes_counts_as_zero_and_stays_enrolled",
        (
            source(
                "study/site_people.py",
                "tuple(present.get(name, Person(name, ())) for name in enrolment.enrolled)",
                "tuple(present[name] for name in enrolment.enrolled if name in present)",
            ),
        ),
    ),
    Defence(
        "hash of public files",
        "public files are refused if they are others",
        "tests/study/test_public_files.py::test_another_file_of_the_same_name_is_refused",
        (source("data/features.py", "if expected is not None and digest != expected.lower():", "if False:"),),
    ),
    # 3. A malicious aggregator
    Defence(
        "stored answers",
        "the same request gets the same bytes, uncharged",
        f"{ONCE}the_same_request_gets_identical_bytes_and_no_charge",
        (source(LEDGER, STORED, ""),),
    ),
    Defence(
        "one request for a slot",
        "any other request under a used slot is refused",
        f"{ONCE}a_changed_question_under_a_used_slot_is_refused",
        (source(BOOKS, WRONG_REQUEST, "if False:"),),
    ),
    Defence(
        "one message under a mask",
        "an aggregator from an old checkpoint gets no second message under a mask",
        f"{ONCE}an_aggregator_from_an_old_checkpoint_gets_no_second_message_under_a_mask",
        (source(BOOKS, WRONG_REQUEST, "if False:"),),
    ),
    Defence(
        "a mask is forgotten once used",
        "masks are overwritten as they are used: a second message would have none",
        f"{ONCE}masks_are_forgotten_once_used_or_replaced",
        (source(SITE, "        mask[:] = 0\n", ""),),
    ),
    Defence(
        "a block in use is waited for",
        "a new block begun while a release is being made waits for it",
        "tests/mechanisms/test_interleaving.py::test_a_block_in_place_of_the_one_in_use_waits",
        (source(SITE, WAITS, WAITS.replace("self._releasing, ", "")),),
    ),
    Defence(
        "a wiped mask serves nothing",
        "a new block begun while a release is being made does not uncover it",
        f"{ONCE}a_block_begun_while_a_release_is_made_does_not_uncover_it",
        (source(SITE, WAITS, WAITS.replace("self._releasing, ", "")), source(SITE, WIPED, "")),
    ),
    Defence(
        "agreed participants",
        "noise is for the participants that t sites signed, not for those in a message",
        f"{ONCE}other_participants_than_agreed_are_refused_for_a_fresh_slot",
        (source(SITE, "if self._sum is not None and participants != self._sum.survivors:", "if False:"),),
    ),
    Defence(
        "agreed part of the budget",
        "a release may use the part of the budget that its block was made with",
        f"{ONCE}other_participants_than_agreed_are_refused_for_a_fresh_slot",
        (source(SITE, " or self.begin.slots[ask.slot] != ask.plan:", ":"),),
    ),
    Defence(
        "worst colluding set",
        "mu is that of the covariance of the view over all colluding sets",
        "tests/mechanisms/test_release.py::test_every_mu_is_that_of_the_adversarys_covariance_and_within_the_budget",
        (
            source(
                "mechanisms/release.py",
                "self.contract.roster.n_colluding,\n                )\n                return cape",
                "0,\n                )\n                return cape",
            ),
        ),
    ),
    Defence(
        "split views",
        "split views uncover nothing",
        f"{VIEWS}split_views_do_not_expose_a_small_group",
        (source(SUM, DIFFERENT_SURVIVORS, "if False:"),),
    ),
    Defence(
        "dead and alive",
        "a site called dead to one and alive to another stops the unmasking",
        "tests/securesum/test_site.py::test_a_site_called_dead_to_one_and_alive_to_another_stops_the_unmasking",
        (
            source(
                SUM, 'self._check_group("agreed on the survivors", signers, within=self._survivors)', "pass"
            ),
        ),
    ),
    Defence(
        "pinned keys",
        "keys are signed by identities that the peers pinned",
        "tests/securesum/test_site.py::test_keys_forged_replayed_or_altered_are_refused",
        (source("securesum/messages.py", NOT_SIGNED, "if False:"),),
    ),
    Defence(
        "cap of the ledger",
        "the ledger stops at the contract's budget",
        f"{ONCE}an_aggregator_that_never_stops_cannot_make_the_guarantee_false",
        (source("privacy/ledger/policy.py", "if total([*counted, asked, -cap.mu2]) > 0:", "if False:"),),
    ),
    Defence(
        "reserved delta",
        "the budget leaves room in delta for what the grid adds",
        f"{ONCE}an_aggregator_that_never_stops_cannot_make_the_guarantee_false",
        (source("mechanisms/contract.py", "return self.delta * (1 - RESERVED_DELTA)", "return self.delta"),),
    ),
    Defence(
        "approval within the contract",
        "an approval for more than the contract promises is not used",
        f"{ONCE}a_study_approved_for_more_than_its_contract_is_not_begun",
        (source(SITE, "if approved is not None and approved.cap.mu2 > cap.mu2:", "if False:"),),
    ),
    Defence(
        "strict reading",
        "bytes of any kind get a refusal, never a crash",
        "tests/attacks/test_release_mutations.py::test_ten_thousand_mutants_get_no_second_message_and_nothing_uncharged",
        (
            source(
                "mechanisms/messages.py",
                "except (ValueError, RecursionError):  # every",
                "except RecursionError:  # every",
            ),
        ),
    ),
    Defence(
        "every layer of a slot",
        "no bytes get a second message under one mask",
        "tests/attacks/test_release_mutations.py::test_ten_thousand_mutants_get_no_second_message_and_nothing_uncharged",
        EVERY_LAYER,
    ),
    Defence(
        "refusals without words",
        "an unexpected error is a refusal, without its words",
        f"{ONCE}an_unexpected_error_is_a_refusal_without_its_words",
        (
            source(
                SITE,
                """\
        except Exception:
            reason = f"site {self.name} cannot answer; its own log says why\"""",
                """\
        except Exception as error:
            reason = str(error)""",
            ),
        ),
    ),
    # On real machines
    Defence(
        "messages are of one study",
        "an altered study obtains nothing",
        HOSTILE,
        (source("mechanisms/messages.py", OTHER_STUDY, "if False:"),),
    ),
    Defence(
        "blocks only grow",
        "a replayed block obtains nothing",
        HOSTILE,
        (
            source(SITE, "if begin.block <= last:", "if False:"),
            source(BOOKS, "if (block, attempt) <= last:", "if False:"),
            source("privacy/ledger/log.py", ONE_CLAIM, ""),
        ),
    ),
    Defence(
        "blocks only grow, by the ledger",
        "the ledger alone refuses a replayed block",
        "tests/privacy/test_ledger.py::test_blocks_only_grow_restarts_included",
        (source(BOOKS, "if (block, attempt) <= last:", "if False:"),),
    ),
    Defence(
        "signatures, end to end",
        "invented peers obtain nothing",
        HOSTILE,
        (source("securesum/messages.py", NOT_SIGNED, "if False:"),),
    ),
    Defence(
        "participants, end to end",
        "other participants than agreed obtain nothing",
        HOSTILE,
        (source(SITE, "if self._sum is not None and participants != self._sum.survivors:", "if False:"),),
    ),
    Defence(
        "budget, end to end",
        "more of the budget than agreed obtains nothing",
        HOSTILE,
        (source(SITE, " or self.begin.slots[ask.slot] != ask.plan:", ":"),),
    ),
    Defence(
        "participants, real sites",
        "a dishonest server obtains nothing from real sites",
        f"{TRUST}a_dishonest_server_obtains_nothing_from_real_sites",
        (source(SITE, "if self._sum is not None and participants != self._sum.survivors:", "if False:"),),
        slow=True,
    ),
    Defence(
        "approval of a study",
        "a study that was not approved, or whose scans changed, is not begun",
        "tests/federated/test_flare_run.py::"
        "test_sites_that_did_not_approve_or_have_other_scans_are_named_and_nothing_is_charged",
        (source("study/federated/parties.py", "        if found:\n", "        if False:\n"),),
        slow=True,
    ),
    Defence(
        "a kit holds the study it names",
        "a study that was changed is not approved",
        f"{KITS}a_kit_whose_study_was_changed_is_refused",
        (source("study/federated/kits.py", "if study.hash.hex() != self.label.study:", "if False:"),),
    ),
    Defence(
        "version of a kit",
        "a kit of another version of the program is refused",
        f"{KITS}a_kit_of_another_version_names_both",
        (source("study/federated/kits.py", "if self.label.capedjica != __version__:", "if False:"),),
    ),
    Defence(
        "one class at a site",
        "a site's kit allows one class",
        f"{KITS}what_flare_may_do_at_a_site_is_decided_by_the_site",
        (
            source(
                "study/federated/site_settings.py",
                '"class_allow_list": [SITE_CLASS]',
                '"class_allow_list": ["*"]',
            ),
        ),
    ),
    Defence(
        "a kit brings no settings",
        "no kit brings code, or settings of FLARE, to a site",
        f"{KITS}a_file_beside_its_place_is_refused",
        (
            source(
                "study/federated/kits.py",
                "beside = member.filename not in _FILES and not public",
                "beside = False",
            ),
        ),
    ),
    Defence(
        "a kit says where the server is",
        "a kit tells FLARE nothing but where the server is",
        f"{KITS}a_kit_that_tells_flare_more_than_where_the_server_is_is_refused",
        (source("study/federated/kits.py", "        if not sound:\n", "        if False:\n"),),
    ),
    Defence(
        "seed against the contract",
        "a seed for noise is refused in a study that promises privacy",
        f"{ONCE}a_site_refuses_seeded_noise_under_a_contract_that_promises_privacy",
        (source(SITE, "if noise.secure == contract.insecure_noise:", "if False:"),),
    ),
    # Strangers
    Defence(
        "identities stay at sites",
        "a site's Ed25519 identity is in no kit",
        "tests/federated/test_provisioning.py::test_no_key_of_a_site_is_with_the_coordinator",
        (
            source(
                "study/federated/provisioning.py",
                'write_study(folder / "study.toml", study.content)',
                'write_study(folder / "study.toml", study.content)\n'
                '    for site in study.folder.glob("sites/*/identity.pem"):\n'
                "        shutil.copyfile(site, folder / site.parent.name)",
            ),
        ),
    ),
    Defence(
        "survivors, end to end",
        "a site called dead to one and alive to another, and split views, are refused by the sites",
        HOSTILE,
        (source(SUM, DIFFERENT_SURVIVORS, "if False:"),),
    ),
    Defence(
        "enough agreements, end to end",
        "nor do such lies succeed when the agreements of others are kept back",
        HOSTILE,
        (source(SUM, "if len(group) < self.parameters.roster.threshold:", "if False:"),),
    ),
    Defence(
        "the study that a job names",
        "a job about another study is refused",
        f"{JOBS}a_job_about_another_study_is_refused_and_nothing_is_charged",
        (source("study/federated/parties.py", "if study.hash.hex() != expected:", "if False:"),),
    ),
    Defence(
        "the study that a job names, real site",
        "a real site refuses a job about another study",
        f"{TRUST}a_job_about_another_study_is_refused_by_a_real_site",
        (source("study/federated/parties.py", "if study.hash.hex() != expected:", "if False:"),),
        slow=True,
    ),
    Defence(
        "the class of a job",
        "a job that names another class than ours is refused unopened",
        f"{GUARD}a_job_of_another_class_is_refused",
        (source("engines/flare/guard.py", OUR_CLASS, "path: str"),),
    ),
    Defence(
        "the class of a job, named twice",
        "a job that names another class besides ours is refused",
        f"{GUARD}a_class_named_twice_is_refused_whichever_counts",
        (source("engines/flare/guard.py", OUR_CLASS, "path: str"),),
    ),
    Defence(
        "one class in a job",
        "a job names one class once",
        f"{GUARD}a_job_that_says_more_than_one_class_with_plain_arguments_is_refused",
        (source("engines/flare/guard.py", "msgspec.Meta(min_length=1, max_length=1)", "msgspec.Meta()"),),
    ),
    Defence(
        "a site's own key",
        "a site's program takes no part with another key than the study names",
        f"{JOBS}a_site_whose_identity_was_exchanged_does_not_take_part",
        (source("study/participation.py", "if pinned.public_key != own.public_key:", "if False:"),),
    ),
    Defence(
        "another identity, honest aggregator",
        "who has a kit and another identity is in no release",
        f"{STOLEN}an_honest_aggregator_goes_on_without_who_has_another_identity",
        (source("securesum/messages.py", NOT_SIGNED, "if False:"),),
    ),
    Defence(
        "another identity, dishonest aggregator",
        "sites refuse who has another identity, also from an aggregator that does not",
        f"{STOLEN}sites_refuse_who_has_another_identity_also_from_an_aggregator_that_does_not",
        (source("securesum/messages.py", NOT_SIGNED, "if False:"),),
    ),
    Defence(
        "another identity, real sites",
        "over the real port, who has a kit and another identity is in no release",
        f"{STOLEN}on_flare_who_has_a_kit_and_another_identity_obtains_nothing",
        (source("securesum/messages.py", NOT_SIGNED, "if False:"),),
        slow=True,
    ),
    Defence(
        "a list that another name completes",
        "another name does not stand in for a withdrawal that was lost",
        f"{WITHDRAWAL}another_name_does_not_stand_in_for_one_that_was_lost",
        (
            source(
                "study/consents.py",
                "lacking = noted - _marks(listed)",
                'lacking = Counter([b""] * (noted.total() - len(listed)))',
            ),
            source(
                "study/consents.py",
                "in (_marks(read_list(home)) - _noted(ledger)).elements():",
                "in list(_marks(read_list(home)).elements())[_noted(ledger).total() :]:",
            ),
        ),
    ),
    Defence(
        "a head is made again on demand only",
        "a lost head is made again only when asked for",
        "tests/test_cli_site.py::test_a_lost_head_is_made_again_only_when_asked_for",
        (source("cli/ledger.py", "        if not yes:\n", "        if False:\n"),),
    ),
    Defence(
        "a head that speaks of more",
        "a head that speaks of a later entry is not replaced, whichever key signed it",
        "tests/privacy/test_ledger_tampering.py::test_a_head_that_speaks_of_more_is_not_replaced_whoever_signed_it",
        (source(CHAIN, "            self._fit(claimed, source)\n", "            pass\n"),),
    ),
    Defence(
        "files are not taken",
        "no file is read for a message, as none that stands for one is taken",
        f"{UNPACKING}no_file_is_read_for_a_message",
        (
            source(
                "engines/flare/unpacking.py", "    _refuse_types(Packer, lambda name: name == _FILE)\n", ""
            ),
        ),
    ),
    Defence(
        "files are not packed",
        "no file is read for a message, as none is packed",
        f"{UNPACKING}no_file_is_read_for_a_message",
        (source("engines/flare/unpacking.py", "    _pack_no_files(DatumManager)\n", ""),),
    ),
    Defence(
        "files do not come back",
        "a file of a site does not come back in an answer",
        f"{NEIGHBOURS}a_file_of_the_site_does_not_come_back_in_an_answer",
        (
            source("engines/flare/party.py", "    unpacking.install()\n", ""),
            source("engines/flare/guard.py", "    unpacking.take_known_types_only()\n", ""),
        ),
        slow=True,
    ),
    Defence(
        "files are not written",
        "no file is written for a message",
        f"{UNPACKING}no_file_is_written_for_a_message",
        (source("engines/flare/unpacking.py", "    lobs.get_datum_dir = _refuse_files\n", ""),),
    ),
    Defence(
        "nothing is fetched",
        "nothing is fetched for a message",
        f"{UNPACKING}nothing_is_fetched_for_a_message",
        (source("engines/flare/unpacking.py", "    lobs.get_dot_handler = lambda kind: None\n", ""),),
    ),
    Defence(
        "kinds of objects",
        "a site unpacks the few kinds of objects that it knows",
        f"{UNPACKING}a_site_unpacks_nothing_else",
        (source("engines/flare/unpacking.py", "is_strange(obj[FOBS_TYPE])", "False"),),
    ),
    Defence(
        "limits before FLARE begins",
        "every process of FLARE is limited before FLARE begins",
        "tests/engines/test_flare_party.py::"
        "test_every_party_is_limited_and_sites_and_server_choose_to_whom_they_listen",
        (source("engines/flare/party.py", "    unpacking.install()\n", ""),),
    ),
    Defence(
        "few jobs",
        "few jobs run at once",
        f"{GUARD}few_jobs_run_at_once",
        (source("engines/flare/guard.py", "len(context.get_all_job_ids()) < MAX_JOBS", "True"),),
    ),
    Defence(
        "few streams",
        "few streams are open at once",
        f"{STREAMS}few_streams_are_open_at_once",
        (source("engines/flare/streams.py", "n_open < MAX_STREAMS", "True"),),
    ),
    Defence(
        "pieces of a large message",
        "a piece of a message that no study sends is refused",
        f"{STREAMS}a_piece_of_a_message_that_no_study_sends_is_refused",
        (source("engines/flare/streams.py", "        if not is_modest(message):", "        if False:"),),
    ),
    Defence(
        "pieces that wait",
        "pieces that wait for others take little memory",
        f"{NEIGHBOURS}pieces_that_wait_for_others_take_little_memory",
        (source("engines/flare/streams.py", '(len(message.payload or b"") <= STREAM_CHUNK_SIZE)', "(1)"),),
        slow=True,
    ),
    Defence(
        "messages that were read",
        "nothing is kept because its sender says so",
        f"{STREAMS}nothing_is_kept_because_its_sender_says_so",
        (
            source(
                "engines/flare/streams.py",
                "        message.set_header(StreamHeaderKey.RELIABLE, False)\n",
                "",
            ),
        ),
    ),
    Defence(
        "why a stream failed",
        "that a stream failed is said without a reason",
        f"{STREAMS}that_a_stream_failed_is_said_without_a_reason",
        (source("engines/flare/streams.py", '"the message did not arrive"', "error_msg"),),
    ),
    Defence(
        "clients take no streams",
        "a client takes no message in pieces",
        f"{GUARD}a_job_takes_large_messages_in_pieces_and_a_client_none",
        (
            source(
                "engines/flare/guard.py",
                "return origin == FQCN.ROOT_SERVER and about in _FOR_CLIENTS",
                "return origin == FQCN.ROOT_SERVER and about in {*_FOR_CLIENTS, _PIECE}",
            ),
        ),
    ),
    Defence(
        "names of what is refused",
        "what is refused is not remembered",
        f"{NEIGHBOURS}what_is_refused_is_not_remembered",
        (source("engines/flare/guard.py", "    _name_what_is_refused(CoreCell)\n", ""),),
        slow=True,
    ),
    Defence(
        "plain words",
        "what is not said in plain words is refused",
        f"{GUARD}what_is_not_said_in_plain_words_is_refused",
        (source("engines/flare/guard.py", "isinstance(word, str) and _WORD.fullmatch(word)", "True"),),
    ),
    Defence(
        "jobs one by one",
        "jobs that are asked for at once are counted one by one",
        f"{GUARD}jobs_that_are_asked_for_at_once_are_counted_one_by_one",
        (source("engines/flare/guard.py", "        with _STARTING:\n", "        if True:\n"),),
    ),
    Defence(
        "a job's folder is new",
        "a job of a name that was there is refused",
        f"{GUARD}a_job_of_a_name_that_was_there_is_refused",
        (source("engines/flare/guard.py", "if is_new and is_plain", "if is_plain"),),
    ),
    Defence(
        "short words about a job",
        "what is written to files about a job is short",
        f"{GUARD}what_is_written_to_files_about_a_job_is_short",
        (source("engines/flare/guard.py", "return len(json.dumps(said)) <= _MOST_BYTES", "return True"),),
    ),
    Defence(
        "no templates",
        "a job that says more than one class with plain arguments is refused: FLARE fills in templates",
        f"{GUARD}a_job_that_says_more_than_one_class_with_plain_arguments_is_refused",
        (
            source("engines/flare/guard.py", "    args: _Arguments\n", "    args: dict[str, str | int]\n"),
            source("engines/flare/guard.py", 'tasks: tuple[Literal["none"]]', "tasks: list[str]"),
        ),
    ),
    Defence(
        "how a job stands",
        "how a job stands is said by the job alone",
        f"{GUARD}how_a_job_stands_is_said_by_the_job_alone",
        (
            source(
                "engines/flare/guard.py", "NOTIFY_JOB_STATUS and not of_family", "NOTIFY_JOB_STATUS and False"
            ),
        ),
    ),
    Defence(
        "short pauses",
        "a job asks again soon however long it is told to wait",
        f"{GUARD}a_job_asks_again_soon_however_long_it_is_told_to_wait",
        (
            source(
                "engines/flare/guard.py",
                "fits = isinstance(pause, int | float) and 0 < pause <= MAX_PAUSE",
                "fits = True",
            ),
        ),
    ),
    Defence(
        "why a command failed",
        "why something failed is not told",
        f"{DISCRETION}why_something_failed_is_not_told",
        (source("engines/flare/discretion.py", '            said.body = "refused"\n', "            pass\n"),),
    ),
    Defence(
        "the machine's address",
        "the address of the machine is not told",
        f"{DISCRETION}the_address_of_the_machine_is_not_told",
        (source("engines/flare/discretion.py", "    authenticator._get_client_ip = lambda: NOWHERE\n", ""),),
    ),
    Defence(
        "the record of a job",
        "a record refers to others in plain words only",
        f"{DISCRETION}a_record_refers_to_others_in_plain_words_only",
        (source("engines/flare/discretion.py", 'ref=ref if is_plain else ""', "ref=ref"),),
    ),
    Defence(
        "the record of commands",
        "the record of commands cannot be written into",
        f"{GUARD}the_record_of_commands_cannot_be_written_into",
        (source("engines/flare/guard.py", "_WORD.fullmatch(said)", "True"),),
    ),
    Defence(
        "frames are limited",
        "nonsense at the port does not swell the server",
        "tests/attacks/test_flare_fuzz.py::test_nonsense_at_the_port_neither_crashes_nor_swells_the_server",
        (source("engines/flare/limits.py", "    socket_conn.MAX_FRAME_SIZE = MAX_FRAME\n", ""),),
        slow=True,
    ),
    Defence(
        "greetings are short",
        "whoever has a certificate cannot swell a party by its greeting",
        f"{NEIGHBOURS}a_greeting_is_short",
        (source("engines/flare/limits.py", "    _limit_greetings(ConnManager)\n", ""),),
        slow=True,
    ),
    Defence(
        "announced messages are limited",
        "announcing a large message takes no memory",
        f"{NEIGHBOURS}announcing_a_large_message_takes_no_memory",
        (
            source("study/federated/site_settings.py", '    "streaming_max_blob_size": MAX_FRAME,\n', ""),
            source("engines/flare/streams.py", " and 0 <= size <= MAX_FRAME", ""),
        ),
        slow=True,
    ),
    Defence(
        "handshakes one beside the other",
        "strangers who say nothing keep nobody out",
        f"{NEIGHBOURS}strangers_who_say_nothing_keep_nobody_out",
        (
            source("engines/flare/limits.py", "server.socket.do_handshake_on_connect = False", "pass"),
            source("engines/flare/limits.py", "            request.settimeout(PATIENCE)\n", ""),
        ),
        slow=True,
    ),
    Defence(
        "no connection for the asking",
        "a site connects to nobody but the server, whatever a message asks for",
        f"{NEIGHBOURS}no_connection_is_made_for_the_asking",
        (source("engines/flare/neighbours.py", "    kind._add_adhoc_connector = refuse\n", ""),),
        slow=True,
    ),
    Defence(
        "names go with connections",
        "whoever has a site's certificate is not a part of the site at the server's end",
        f"{NEIGHBOURS}a_part_of_the_site_is_not_at_the_servers_end",
        (source("engines/flare/neighbours.py", "    _check_names(ConnManager)\n", ""),),
        slow=True,
    ),
    Defence(
        "nothing is carried into a site",
        "a message from outside is not carried on within the site",
        f"{NEIGHBOURS}nothing_is_carried_into_the_site_under_its_own_name",
        (
            source(
                "engines/flare/neighbours.py", "destination != own.fqcn or is_family(own, origin)", "False"
            ),
            source("engines/flare/guard.py", "    _name_what_is_refused(CoreCell)\n", ""),
        ),
        slow=True,
    ),
    Defence(
        "unasked answers",
        "answers that nobody asked for keep nobody waiting",
        f"{NEIGHBOURS}answers_that_nobody_asked_for_keep_nobody_waiting",
        (source("engines/flare/neighbours.py", "    _drop_what_is_not_expected(CoreCell)\n", ""),),
        slow=True,
    ),
    Defence(
        "the folder of a job",
        "a job's folder is not one of the kit's",
        f"{GUARD}the_folder_of_a_job_is_not_one_of_the_kits",
        (source("engines/flare/guard.py", "isinstance(name, str) and _JOB_NAME.fullmatch(name)", "True"),),
    ),
    Defence(
        "what is said of a job",
        "nothing is said of a job that changes how it is run",
        f"{GUARD}nothing_is_said_of_a_job_that_changes_how_it_is_run",
        (source("engines/flare/guard.py", "_KNOWN & meta.keys()", "meta.keys()"),),
    ),
    Defence(
        "events of FLARE",
        "a job is told when it is over, and nothing else about itself",
        f"{GUARD}a_job_is_told_when_it_is_over_and_nothing_else_about_itself",
        (
            source(
                "engines/flare/guard.py",
                "    else:\n        wanted = about in _FOR_JOBS\n",
                "    else:\n        wanted = about[0] in {name for name, _ in _FOR_JOBS}\n",
            ),
        ),
    ),
    Defence(
        "FLARE's commands",
        "a site's processes know no command that no study needs",
        f"{GUARD}commands_that_no_study_needs_are_not_there",
        (source("engines/flare/guard.py", "if set(processor.get_topics()) <= COMMANDS else None", ""),),
    ),
    Defence(
        "the guard at a site's door",
        "neither the server nor a site can read a site's files",
        "tests/attacks/test_flare_trust.py::test_neither_the_server_nor_a_site_can_read_a_sites_files_or_run_code",
        (source("engines/flare/party.py", "        guard.install()", "        pass"),),
        slow=True,
    ),
    Defence(
        "certificates on the machine itself",
        "somebody with an account on the hospital's machine gets nothing",
        "tests/attacks/test_flare_trust.py::test_neither_the_server_nor_a_site_can_read_a_sites_files_or_run_code",
        (
            source(
                "study/federated/site_settings.py",
                '"connection_security": "mtls"}}',
                '"connection_security": "clear"}}',
            ),
        ),
        slow=True,
    ),
    Defence(
        "what a job may bring",
        "a job that brings anything but the settings of one class is refused unopened",
        f"{GUARD}a_job_that_brings_anything_else_is_refused",
        (source("engines/flare/guard.py", "{_SETTINGS} <= set(names) <= _JOB", "{_SETTINGS} <= set(names)"),),
    ),
    Defence(
        "what a job may say",
        "a job that says more than one class with plain arguments is refused",
        f"{GUARD}a_job_that_says_more_than_one_class_with_plain_arguments_is_refused",
        (
            source(
                "engines/flare/guard.py",
                "msgspec.json.decode(packed.read(_SETTINGS), type=_Settings)",
                "msgspec.json.decode(packed.read(_SETTINGS))",
            ),
        ),
    ),
    Defence(
        "messages of other sites",
        "a site cannot play the aggregator to the others",
        f"{GUARD}everything_else_is_refused_also_as_a_stream",
        (source("engines/flare/guard.py", "return origin == aggregator and wanted", "return wanted"),),
    ),
    Defence(
        "who handed a message over",
        "who calls itself a part of a site, or the server, has to come from there",
        f"{GUARD}everything_else_is_refused_also_as_a_stream",
        (
            source(
                "engines/flare/guard.py",
                "return neighbours.is_family(own, neighbour)",
                "return True",
            ),
        ),
    ),
    Defence(
        "what is inside a stream",
        "a stream is judged by what is in it",
        f"{GUARD}everything_else_is_refused_also_as_a_stream",
        (
            source(
                "engines/flare/guard.py",
                "wanted = about[0] == CellChannel.RETURN_ONLY or about in _FOR_JOBS",
                "wanted = True",
            ),
        ),
    ),
    # 4. A malicious site
    Defence(
        "in the server's name, real processes",
        "a site cannot command others in the server's name",
        "tests/attacks/test_flare_trust.py::test_neither_the_server_nor_a_site_can_read_a_sites_files_or_run_code",
        (source("engines/flare/party.py", "        origins.install()", "        pass"),),
        slow=True,
    ),
    Defence(
        "in another's name",
        "a site speaks for itself and to the server alone",
        f"{ORIGINS}a_site_speaks_for_itself_and_to_the_server_alone",
        (source("engines/flare/origins.py", "FQCN.get_root(origin) != root or ", ""),),
    ),
    Defence(
        "to another site",
        "a site speaks for itself and to the server alone",
        f"{ORIGINS}a_site_speaks_for_itself_and_to_the_server_alone",
        (source("engines/flare/origins.py", " or FQCN.get_root(destination) != FQCN.ROOT_SERVER", ""),),
    ),
    Defence(
        "what a server obeys",
        "a site tells the server nothing that no study needs",
        f"{ORIGINS}a_site_tells_the_server_nothing_that_no_study_needs_also_in_pieces",
        (source("engines/flare/origins.py", "return _is_needed(destination, message)", "return True"),),
    ),
    Defence(
        "who gives commands",
        "commands are given under the coordinator's certificate alone",
        f"{ORIGINS}commands_are_given_under_the_coordinators_certificate_alone",
        (
            source(
                "engines/flare/origins.py",
                "return certified == COORDINATOR or not is_valid_admin_client_name(name)",
                "return True",
            ),
        ),
    ),
    Defence(
        "blocks far ahead, aggregator",
        "a site that runs ahead with its blocks takes nobody along",
        f"{AGGREGATOR}a_site_that_runs_ahead_with_its_blocks_takes_nobody_along",
        (
            source(
                "mechanisms/aggregator.py",
                "self._near_each_other(self._conversation.ask(questions, Status))",
                "self._conversation.ask(questions, Status)",
            ),
        ),
    ),
    Defence(
        "blocks far ahead, site",
        "no lie obtains a release or a charge, a block after which none could follow included",
        "tests/attacks/test_hostile_messages.py::test_no_lie_obtains_a_release_or_a_charge",
        (source(SITE, "if begin.block > last + MAX_AHEAD:", "if False:"),),
    ),
    Defence(
        "patience with a site",
        "a site that fails the others twice is left out",
        f"{AGGREGATOR}a_site_that_fails_again_and_again_is_left_out",
        (source("mechanisms/aggregator.py", "if self._failures[name] < PATIENCE)", ")"),),
    ),
    Defence(
        "answers that fit",
        "an honest aggregator ends with a result or an error in words",
        f"{AGGREGATOR}a_lying_site_ends_the_run_in_words_at_worst",
        (source("mechanisms/aggregator.py", " or len(answer.words) != 8 * plan.query.size:", ":"),),
    ),
    Defence(
        "what a site says",
        "what a site says is printed on one harmless line",
        f"{AGGREGATOR}what_a_site_says_is_shown_on_one_short_line",
        (source("mechanisms/conversation.py", "_one_line(reply.reason)", "reply.reason"),),
    ),
    # 5. Lost sites, restarts, damaged disks
    Defence(
        "what was given up stays charged",
        "what was sent and given up stays charged, and is told",
        "tests/faults/test_lost_sites.py::test_a_site_dies",
        (
            source(
                "mechanisms/aggregator.py",
                "                mu=plan.mu,\n",
                "                mu={} if aborted else plan.mu,\n",
            ),
        ),
    ),
    Defence(
        "what is left of the budget",
        "after a lost site the rest is recalibrated within the budget",
        "tests/faults/test_lost_sites.py::test_a_site_dies",
        (
            source(
                "mechanisms/aggregator.py",
                "shrink = min(1.0, (1 - spent) * (1 - HEADROOM) / left)",
                "shrink = 1.0",
            ),
        ),
    ),
    Defence(
        "noise for the survivors",
        "the others go on with noise sized for those that are left less S_C",
        "tests/mechanisms/test_release.py::test_more_colluders_cost_more_noise_and_lost_sites_too",
        (
            source(
                "mechanisms/release.py",
                "targets, site_shift, self.weights, self.contract.roster.n_colluding, self.contract.mask",
                "targets, site_shift, self.weights, 1, self.contract.mask",
            ),
        ),
    ),
    Defence(
        "a repeated question",
        "messages that are repeated are charged once",
        "tests/faults/test_lost_sites.py::test_one_message_goes_astray",
        EVERY_LAYER,
    ),
    Defence(
        "an older answer",
        "messages that are exchanged with older ones are not used",
        "tests/faults/test_lost_sites.py::test_one_message_goes_astray",
        (
            source(
                "mechanisms/aggregator.py",
                "if (answer.block, answer.slot) != (ask.block, ask.slot) or len",
                "if len",
            ),
        ),
    ),
    Defence(
        "a late answer",
        "messages late or overtaken are asked for again, at no cost",
        "tests/faults/test_wire.py::test_a_letter_comes_a_round_late",
        (source("mechanisms/aggregator.py", "REPEATS: Final = 1\n", "REPEATS: Final = 0\n"),),
    ),
    Defence(
        "stored answers after a restart",
        "after a restart stored answers are repeated, unused slots are burnt",
        f"{ONCE}a_restarted_site_repeats_stored_bytes_and_burns_the_rest",
        (source(LEDGER, STORED, ""),),
    ),
    Defence(
        "what is spent is told",
        "a site that stops and starts again knows what it has spent",
        "tests/faults/test_wire.py::test_a_site_stops_and_starts_again",
        (
            source(
                SITE,
                "part = 0.0 if cap == math.inf or not self.contract.protects else spent / cap",
                "part = 0.0",
            ),
        ),
    ),
    Defence(
        "used blocks are told",
        "another aggregator takes over, and no mask serves twice",
        "tests/faults/test_wire.py::test_the_aggregator_stops_and_another_takes_over",
        (source(SITE, "self._ledger.last_block(study), part", "-1, part"),),
    ),
    Defence(
        "record before sending",
        "nothing that left is unrecorded, whenever a process is killed",
        "tests/faults/test_site_kill.py::test_kills_in_the_middle_of_releases",
        (
            source(
                LEDGER,
                'self._chain.append("release", detail, *place, request=request, mu2=asked, message=message)',
                "pass",
            ),
        ),
    ),
    Defence(
        "slots of a dead process",
        "a slot whose process died is stored or burnt",
        "tests/faults/test_ledger_kill.py::test_death_at_any_line_leaves_the_slot_stored_or_burnt",
        (source(BOOKS, "if slot in self.burnt or owner != incarnation:", "if slot in self.burnt:"),),
    ),
    Defence(
        "head before sending",
        "the ledger of a site fails: it falls silent",
        "tests/faults/test_site_storage.py::test_a_ledger_fails_in_the_middle_of_a_study",
        (
            source(
                CHAIN,
                """\
            with self._log.transaction():
                self._settle()

    @contextmanager""",
                """\
            with suppress(StorageError), self._log.transaction():
                self._settle()

    @contextmanager""",
            ),
            source(
                CHAIN,
                "from contextlib import contextmanager",
                "from contextlib import contextmanager, suppress",
            ),
        ),
    ),
    Defence(
        "silence about storage",
        "a site whose ledger fails says nothing about why",
        "tests/faults/test_site_storage.py::test_a_refusal_for_want_of_storage_says_nothing_about_the_storage",
        (
            source(
                SITE,
                """\
            reason = f"site {self.name} cannot answer; its own log says why"
            self._log.error""",
                """\
            reason = str(error)
            self._log.error""",
            ),
        ),
    ),
    Defence(
        "record before sending, real processes",
        "a job killed between charge and answer is taken up, and nothing is uncharged",
        "tests/faults/test_flare_kills.py::test_a_job_killed_at_one_site_is_taken_up_with_all",
        (
            source(
                LEDGER,
                'self._chain.append("release", detail, *place, request=request, mu2=asked, message=message)',
                "pass",
            ),
        ),
        slow=True,
    ),
    Defence(
        "version of a run",
        "a run of another version is refused before a server is started",
        "tests/faults/test_flare_refusals.py::test_a_run_of_another_version_is_refused_before_a_server_is_started",
        (
            source(
                "study/run_folder.py",
                "if state.capedjica != __version__ and not state.complete:",
                "if False:",
            ),
        ),
    ),
    Defence(
        "head in the second place",
        "an older copy of a ledger is noticed by the head in the second place",
        "tests/privacy/test_ledger_tampering.py::test_an_older_copy_is_noticed_by_the_head",
        (
            source(
                CHAIN,
                "            return self.compare(data, source)\n        # The head is first",
                "            return 0\n        # The head is first",
            ),
        ),
    ),
    Defence(
        "head handed back",
        "an older copy of a ledger is noticed by the head that the aggregator hands back",
        f"{ONCE}a_restored_ledger_is_noticed_by_the_head_in_the_last_message",
        (source(SITE, HANDED_BACK, "                pass\n"),),
    ),
    # 6. Withdrawal, revocation, new keys
    Defence(
        "the withdrawn are not found",
        "nothing opens the scans of somebody who withdrew",
        f"{WITHDRAWAL}the_scan_is_not_opened_by_anything",
        (source("study/site_people.py", NOT_FOUND, ""),),
    ),
    Defence(
        "the withdrawn count as zero",
        "a run after a withdrawal counts the person as zero",
        f"{WITHDRAWAL}a_run_after_a_withdrawal_counts_the_person_as_zero",
        (
            source("study/site_people.py", NOT_FOUND, ""),
            source("study/consents.py", "if one.name in withdrawn else one for", "if False else one for"),
        ),
    ),
    Defence(
        "withdrawal during a run",
        "a run under way forgets somebody from its next release on",
        f"{WITHDRAWAL}a_run_under_way_forgets_the_person",
        (source("study/consents.py", "if withdrawn <= self._withdrawn:", "if True:"),),
    ),
    Defence(
        "a list that cannot be read",
        "nobody is read if the list of the withdrawn cannot be",
        f"{WITHDRAWAL}nobody_is_read_if_the_list_cannot_be",
        (
            source(
                "study/consents.py",
                '.exception("nobody is read")\n            raise',
                '.exception("all")\n            return',
            ),
        ),
    ),
    Defence(
        "results of the withdrawn",
        "what was made of somebody's scans is removed",
        f"{WITHDRAWAL}what_was_made_of_the_scans_is_removed",
        (source("study/withdrawal.py", "results = _remove_results(home, name)", "results = 1"),),
    ),
    Defence(
        "series of the withdrawn",
        "what was made of somebody's scans is removed",
        f"{WITHDRAWAL}what_was_made_of_the_scans_is_removed",
        (source("study/withdrawal.py", "series = SeriesCache(home.cache_path).purge()", "series = 1"),),
    ),
    Defence(
        "nobody is named in the ledger",
        "the ledger notes that somebody withdrew, and not who",
        f"{WITHDRAWAL}the_ledger_shows_that_and_not_who",
        (
            source(
                "study/consents.py",
                "ledger.note(NOTE, mark)",
                "ledger.note(NOTE + str(standing(home)), mark)",
            ),
        ),
    ),
    Defence(
        "the withdrawn are not enrolled",
        "nobody enrols the person again",
        f"{WITHDRAWAL}nobody_enrols_the_person_again",
        (source("study/site_people.py", NOT_FOUND, ""),),
    ),
    Defence(
        "revoked keys",
        "a study with a key that a site revoked is refused by that site",
        f"{ROTATION}a_study_with_a_revoked_key_is_refused",
        (source("study/participation.py", "        if home.revokes(peer)\n", "        if False\n"),),
    ),
    Defence(
        "revoked approvals",
        "nothing leaves for a study whose approval was revoked, not even stored bytes",
        "tests/privacy/test_ledger.py::test_nothing_leaves_after_an_approval_was_revoked",
        (source(BOOKS, "        if known.revoked:\n", "        if False:\n"),),
    ),
    Defence(
        "a new key begins no new ledger",
        "what was spent under the old key stays spent under the new one",
        f"{ROTATION}what_was_spent_carries_over",
        (
            source(
                "study/key_rotation.py",
                KEY_CHANGED,
                "home.ledger_path.unlink()\n            home.head_path.unlink()",
            ),
        ),
    ),
    Defence(
        "a key is not changed during a run",
        "a key is not changed while the site takes part in a study",
        f"{ROTATION}not_while_it_takes_part",
        (source("study/key_rotation.py", "    with resting(home):\n", "    if True:\n"),),
    ),
    Defence(
        "the ledger changes first",
        "a change of key that is killed at any line loses nothing",
        "tests/faults/test_rotation_kill.py::test_death_at_any_line",
        (
            source(
                "study/key_rotation.py",
                CARD_LAST,
                f"os.replace(coming, place)\n    {CARD_LAST.partition('    os.')[0]}",
            ),
        ),
    ),
    Defence(
        "the old key is out of force",
        "who stole the old key signs no head of the ledger after the change",
        f"{LEDGER_KEYS}the_old_key_signs_no_head_after_the_change",
        (
            source(
                "privacy/ledger/head.py",
                "if not verifier(head.seq)(data[_BODY.size :], data[: _BODY.size]):",
                "if False:",
            ),
        ),
    ),
    Defence(
        "the old key agrees",
        "a change of key that the old one did not sign is refused",
        f"{LEDGER_KEYS}a_change_that_the_old_key_did_not_sign",
        (
            source(
                "privacy/ledger/keys.py",
                "if not verifies(old, bytes.fromhex(change.signature), statement) or follower",
                "if follower",
            ),
        ),
    ),
    Defence(
        "a new root",
        "kits made anew are under a new root: the earlier ones reach nobody",
        "tests/federated/test_kits_again.py::test_a_new_root_for_the_same_study",
        (
            source(
                "study/federated/provisioning.py", "        _replace(earlier.path, made)\n", "        pass\n"
            ),
        ),
    ),
    # 7. What the protection rests on
    Defence(
        "threshold",
        "2t > S + S_C is enforced",
        "tests/securesum/test_parameters.py::test_thresholds_are_admitted_exactly_above_half_of_all_and_colluding",
        (
            source(
                "securesum/parameters.py",
                "if 2 * t <= n_sites + colluding:",
                "if 2 * t < n_sites + colluding:",
            ),
        ),
    ),
    # 8. What is not covered
    Defence(
        "results about single people",
        "results about single people are for the owner of the site's folder alone",
        "tests/study/test_brain_results.py::test_every_person_has_results_that_only_the_owner_can_read",
        (source("study/local_results.py", "os.O_TRUNC, 0o600)", "os.O_TRUNC, 0o644)"),),
    ),
    # Later additions
    Defence(
        "reasons in the site's own log",
        "why a site does not take part is in its own log alone",
        "tests/federated/test_site_logs.py::test_the_reason_of_a_refusal_is_in_the_sites_own_log_alone",
        (
            source(
                "study/federated/parties.py",
                'self.logger.error("does not take part; %s says why", log_path(home))',
                'self.logger.error("does not take part: %s", error)',
            ),
        ),
    ),
    Defence(
        "no warnings in FLARE's logs",
        "warnings that name the file of a scan go nowhere",
        "tests/federated/test_site_logs.py::test_what_a_site_or_a_library_says_of_a_scan_is_kept_from_flares_logs",
        (source("study/federated/site_settings.py", '"py.warnings": {', '"nobody": {'),),
    ),
    # Added to sections 2, 3 and 6
    Defence(
        "sealed heads",
        "the head of its ledger that a site sends tells nobody what else happens at the site",
        f"{HEADS}what_happens_at_a_site_besides_is_not_in_what_it_sends",
        (
            source(SITE, "return self._seal.seal(self._ledger.head)", "return self._ledger.head"),
            source(SITE, HANDED_BACK, "                self._ledger.check_against(hello.head)\n"),
        ),
    ),
    Defence(
        "heads are bound to study and site",
        "a head that a site sealed comes back to that site in that study only",
        f"{HEADS}a_head_comes_back_to_its_site_only",
        (source("mechanisms/head_seal.py", "_LABEL + contract.hash + name.encode()", "_LABEL"),),
    ),
    Defence(
        "heads of others",
        "a head that the site did not seal is refused",
        f"{HEADS}a_head_that_was_not_sealed_by_the_site_is_refused",
        (
            source(
                "mechanisms/head_seal.py",
                """\
            raise TamperedError("the head that came back was not sealed by this site in this study") from None
""",
                "            return sealed\n",
            ),
            source(
                "privacy/ledger/head.py",
                "if not verifier(head.seq)(data[_BODY.size :], data[: _BODY.size]):",
                "if False:",
            ),
        ),
    ),
    Defence(
        "revoked in the middle of a secure sum",
        "no round of a secure sum is answered after the approval was revoked",
        f"{HEADS}no_round_of_a_secure_sum_is_answered_after_the_approval_was_revoked",
        (source(SITE, "        self._ledger.spent(self.contract.hash)\n", ""),),
    ),
    Defence(
        "kept answers are revoked too",
        "an answer kept in case one gets lost is not handed out after the approval was revoked",
        "tests/federated/test_revoked_answers.py::test_a_kept_answer_is_not_handed_out_after_a_revocation",
        (source("engines/flare/carriage.py", "if not self._stands():", "if False:"),),
    ),
    Defence(
        "revoked in the middle of a run",
        "a run under way loses a site that revokes its approval",
        f"{REVOCATION}a_run_under_way_goes_on_without_a_site_that_revokes",
        (source(BOOKS, "        if known.revoked:\n", "        if False:\n"),),
    ),
    Defence(
        "revoked for good",
        "an approval that was revoked does not come back",
        f"{REVOCATION}what_was_released_stays_charged_and_the_study_cannot_be_approved_again",
        (
            source("study/participation.py", "if known is None or not known.revoked:", "if True:"),
            source(BOOKS, "        if known.revoked:\n", "        if False:\n"),
        ),
    ),
    Defence(
        "at least one colluding site",
        "a site refuses a study that assumes no colluding site",
        "tests/study/test_colluding.py::test_a_site_refuses_a_study_that_assumes_no_colluding_site",
        (
            source(
                "study/participation.py",
                'contract.mechanism == "cape" and not contract.roster.n_colluding',
                "False",
            ),
        ),
    ),
    Defence(
        "a list that was lost",
        "nobody is read if the ledger noted more withdrawals than the list of the withdrawn has names",
        f"{WITHDRAWAL}nobody_is_read_if_the_list_was_lost",
        (source("study/consents.py", "    if lacking:\n", "    if False:\n"),),
    ),
    Defence(
        "a list that is durable",
        "the list of the withdrawn is on the disk before anything else is done",
        f"{WITHDRAWAL}the_list_is_on_the_disk_before_anything_else_is_done",
        (source("study/private_files.py", "        sync_folder(file.parent)\n", ""),),
    ),
    Defence(
        "series written after a withdrawal",
        "what a killed process wrote after somebody withdrew is removed at the next start",
        "tests/faults/test_withdrawal_kill.py::test_no_series_of_somebody_who_withdrew_outlives_the_next_start",
        (source("study/consents.py", "    cache.purge_other_editions()\n", ""),),
    ),
    Defence(
        "results written after a withdrawal",
        "results about somebody that are being written while they withdraw are removed too",
        f"{WITHDRAWAL}results_that_are_being_written_are_removed_too",
        (source("study/local_results.py", "    if person.name not in standing(home):\n", "    if True:\n"),),
    ),
    Defence(
        "the people of the approval",
        "a study that has begun reads the people and the files of its approval and no others",
        "tests/study/test_settled.py::test_once_begun_nobody_in_the_folder_of_the_scans_is_in_the_way",
        (
            source(
                "study/site_people.py",
                "None if home.settings.policy.auto_approve else approved_people(home, study)",
                "None",
            ),
        ),
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.defences", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these defences")
    parser.add_argument("--fast", action="store_true", help="leave out those that take minutes")
    given = parser.parse_args()
    chosen = [one for one in DEFENCES if one.name in given.names or not given.names]
    chosen = [one for one in chosen if not (given.fast and one.slow)]
    if unknown := set(given.names) - {one.name for one in DEFENCES}:
        parser.error(f"there is no defence called {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="defences-") as scratch:
        laboratory, lines = Laboratory(Path(scratch), {one.test for one in chosen}), []
        for defence in chosen:
            lines.append(laboratory.outcome(defence))
            REPORT.write_text(report(defence, lines[-1]), encoding="utf-8")
    return int(any(not line.startswith("noticed") for line in lines))


class Laboratory:
    """A copy of the sources and the tests, in which anything may be changed."""

    def __init__(self, folder: Path, tests: Iterable[str]) -> None:
        self.folder = folder
        for part in COPIED:
            # With its times, so that machine code compiled for unchanged sources is used again.
            shutil.copytree(ROOT / part, folder / part)
        shutil.copy2(ROOT / "pyproject.toml", folder)
        self.fails_as_it_is = self._failures(*sorted(tests))

    def outcome(self, defence: Defence) -> str:
        """Return the line of the report about a defence, and print it."""
        verdict, why = "FAILS AS IT IS", self.fails_as_it_is.get(defence.test)
        if why is None:
            with self._without(defence.changes):
                why = self._failures("-x", defence.test).get(defence.test, "")
            noticed = why and not why.startswith(MISTAKES)
            verdict = "noticed" if noticed else "NOT NOTICED"
        print(f"{defence.name}: {verdict}: {why}", flush=True)
        return f"{verdict} | {described(defence)} | {why}"

    @contextmanager
    def _without(self, changes: Iterable[Change]) -> Iterator[None]:
        """Have sources without a defence."""
        before = {file: (file.read_text("utf-8"), file.stat()) for file in self._files(changes)}
        try:
            for change in changes:
                file = self.folder / change.file
                text = file.read_text("utf-8")
                assert text.count(change.old) == 1, change
                file.write_text(text.replace(change.old, change.new), "utf-8")
            yield
        finally:
            for file, (text, stat) in before.items():
                file.write_text(text, "utf-8")
                os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def _files(self, changes: Iterable[Change]) -> set[Path]:
        return {self.folder / change.file for change in changes}

    def _failures(self, *words: str) -> dict[str, str]:
        """Return which tests fail, and how; of tests with parameters the first that fails."""
        options = ["-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", "-m", "", "-q", "-rfE"]
        code, said = self._run([*options, "--tb=no", *words])
        found = re.findall(r"^(FAILED|ERROR) ([^\s\[]+)(?:\[.*?\])?(?: - (.*))?$", said, re.MULTILINE)
        failures: dict[str, str] = {}
        for kind, test, why in found:
            # What tests share may notice, too; what only fails to begin has not.
            noticed = kind == "FAILED" or why.startswith(("Failed: ", "AssertionError", "assert "))
            told = "" if noticed else "ImportError or the like, before the test: "
            failures.setdefault(test, told + re.sub(r"/\S*/", "", " ".join(why.split()))[:200])
        assert code == (1 if failures else 0), said[-2000:]
        return failures

    def _run(self, words: list[str]) -> tuple[int, str]:
        """Run pytest on the copy in a process of its own; return its exit code and what it said."""
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                self._become_pytest(words)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            return code, said.read().decode("utf-8", "replace")

    def _become_pytest(self, words: list[str]) -> NoReturn:
        """Do in a forked process what ``python -m pytest`` would do there, without importing all again."""
        code = -1
        try:
            os.chdir(self.folder)
            own = [str(self.folder / "src"), str(self.folder)]
            os.environ |= {"PYTHONPATH": os.pathsep.join(own), "PYTHONDONTWRITEBYTECODE": "1"}
            os.environ |= {"COLUMNS": "300", "FUZZ_SECONDS": os.environ.get("FUZZ_SECONDS", "60")}
            sys.dont_write_bytecode = True
            sys.path[:] = own + [
                place for place in sys.path if place not in ("", str(ROOT), str(ROOT / "src"))
            ]
            for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
                del sys.modules[name]
            code = int(pytest.main(words))
            assert sys.modules["capedjica"].__file__.startswith(own[0])
        finally:
            os._exit(code)


def described(defence: Defence) -> str:
    """Return what was done, by which an outcome is known again."""
    changes = "; ".join(map(str, defence.changes))
    return f"{defence.name} | {defence.statement} | {changes} | {defence.test}"


def report(tried: Defence, line: str) -> str:
    """Return the text of the report: a new outcome, and earlier ones of the very same changes and tests."""
    earlier = REPORT.read_text("utf-8").splitlines() if REPORT.exists() else []
    kept = []
    for defence in DEFENCES:
        same = (
            [line] if defence is tried else [old for old in earlier if f" | {described(defence)} | " in old]
        )
        kept += same[:1]
    noticed = sum(line.startswith("noticed") for line in kept)
    head = [
        "Every defence of docs/threat-model.md taken away: does its test notice? (python -m tests.defences)",
        f"{noticed} of {len(DEFENCES)} noticed, {len(DEFENCES) - len(kept)} not tried.",
        "outcome | defence | statement | change | test | how the test fails",
        "",
    ]
    return "\n".join([*head, *kept, ""])


if __name__ == "__main__":
    sys.exit(main())
