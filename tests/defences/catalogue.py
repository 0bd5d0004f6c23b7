"""What the threat model defends, by which markers in the sources, and the test that must notice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GONE = ""
NEVER = "if False:"


@dataclass(frozen=True)
class Defence:
    """A statement of the threat model, what takes its defence away, and the test that must notice.

    ``changes`` has for markers in the sources what is put in the place of what they mark (see `markers`).
    Several changes are the layers of one defence, any of which is enough.
    """

    name: str
    statement: str
    test: str
    changes: Mapping[str, str]
    slow: bool = False


EVERY_LAYER_OF_A_SLOT = {
    "stored-answers": GONE,
    "one-request-for-a-slot": NEVER,
    "slot-touched-before": NEVER,
    "slot-of-a-held-block": "return held[0] if held else None",
    "slot-used-once": NEVER,
}

DEFENCES = (
    # 1. The parties
    Defence(
        "policy of a site",
        "a site takes part without protection only if its own policy says so",
        "test_a_site_refuses_what_its_policy_does_not_allow",
        {"policy-of-a-site": NEVER},
    ),
    Defence(
        "infinite charge",
        "what is released without protection is charged with infinity",
        "test_unprotected_releases_charge_infinity",
        {"infinite-charge": "return plan.mu[self.name], make_message"},
    ),
    # 2. What each party sees
    Defence(
        "uniform masks",
        "one answer alone is uniform noise",
        "test_a_message_alone_is_uniform",
        {"uniform-masks": "return np.zeros(self._layout.n_words, np.uint64)"},
    ),
    Defence(
        "noise of each site",
        "all answers together shift by exactly the mu that each site claims",
        "test_shift_is_the_mu_that_each_site_claimed",
        {"noise-of-each-site": "return _gaussian(self._noise, 0.7 * scale, size)"},
    ),
    Defence(
        "colluders among survivors",
        "the mu that a site claims holds after a lost site too: S_C does not shrink",
        "test_shift_after_a_lost_site_and_a_new_block",
        {"colluders-among-survivors": "self.contract.roster.n_colluding * (len(self.participants) == 5),"},
    ),
    Defence(
        "noise of a whole analysis",
        "no adversary reaches more than the epsilon that an analysis states",
        "test_a_small_audit_stays_below_the_claim_and_reaches_a_third_of_it",
        {"noise-of-each-site": "return _gaussian(self._noise, 0.7 * scale, size)"},
    ),
    Defence(
        "silence about scans",
        "the shape of a transcript is the same whatever the scan",
        "test_the_shape_of_a_transcript_says_nothing_about_a_scan",
        {
            "silence-about-scans": (
                'if self.n_zero:\n    raise ProtocolError("a scan cannot be used")\nreturn total'
            )
        },
    ),
    Defence(
        "agreement on survivors",
        "shares of secrets are of use to t sites together, for one set of survivors",
        "test_at_most_one_sum_of_all_honest_survivors_is_learnt",
        {"agreement-on-survivors": NEVER},
    ),
    Defence(
        "certificates of sites",
        "both ends of the wire show certificates of this study",
        "test_who_has_no_certificate_of_this_study_gets_not_a_word",
        {
            "certificates-of-sites": (
                'description.set_server(host, ORGANISATION, {"fed_learn_port": port, '
                '"admin_port": port, "connection_security": "tls"})'
            )
        },
        slow=True,
    ),
    Defence(
        "encryption of the wire",
        "who watches the wire sees TLS",
        "test_who_has_no_certificate_of_this_study_gets_not_a_word",
        {
            "encryption-at-the-server": (
                'description = Project(project, "capedjica", props={"api_version": 3, '
                '"connection_security": "clear"})'
            ),
        },
        slow=True,
    ),
    Defence(
        "silence of a site that refuses",
        "why a site takes no part, which may name a patient, is in its own log alone",
        "test_the_reason_of_a_refusal_is_in_the_sites_own_log_alone",
        {"silence-of-a-site-that-refuses": '_SILENT: Final = "it does not take part: sub-03"'},
    ),
    Defence(
        "masks from the site's own source",
        "no secret of a site is with the aggregator or in a log",
        "test_no_secret_of_a_site_is_with_the_aggregator_or_in_a_log",
        {
            "uniform-masks": (
                "masks = site._mask_source.uniform(self._layout.n_words)\n"
                'site._log.warning("masks: %s", masks.tobytes().hex())\n'
                "return masks"
            )
        },
        slow=True,
    ),
    Defence(
        "no error depends on data",
        "a scan that cannot be read counts as zero, and the answer looks as always",
        "test_no_error_that_depends_on_data_leaves_a_site",
        {"no-error-depends-on-data": GONE},
    ),
    Defence(
        "one subject fails alone",
        "a subject that fails is zero and changes nobody else",
        "test_a_subject_that_fails_is_zero_and_changes_nobody_else",
        {"one-subject-fails-alone": "return"},
    ),
    Defence(
        "one row fails alone",
        "one person's scan changes nobody else's row",
        "test_one_persons_scan_changes_nobody_elses_part",
        {"one-row-fails-alone": "raise"},
    ),
    Defence(
        "a line by itself",
        "one person's cell changes nobody else's row of a table",
        "test_one_persons_cell_changes_nobody_elses_row",
        {"a-line-by-itself": 'opened = partial(path.open, encoding="utf-8-sig")'},
    ),
    Defence(
        "covariates fail alone",
        "covariates that cannot be read are nobody's error during a run",
        "test_a_table_that_is_none_fails_nobody_during_a_run",
        {"covariates-fail-alone": "raise"},
    ),
    Defence(
        "covariates of the approval",
        "a participant's row that changed needs another approval, as their scans do",
        "test_a_row_that_changed_needs_another_approval",
        {"covariates-of-the-approval": "rows = ()"},
    ),
    Defence(
        "clip on integers",
        "replacing one subject moves the sum by at most the sensitivity",
        "test_replacing_one_subject_moves_the_sum_by_at_most_the_sensitivity",
        {"clip-on-integers": "factor = scale", "bound-on-integers": "if math.sqrt(square) <= 1e15:"},
    ),
    Defence(
        "names stay at a site",
        "what the aggregator receives and writes holds nobody",
        "test_nobody_is_in_what_the_aggregator_received_and_wrote",
        {
            "names-stay-at-a-site": (
                'logging.getLogger("capedjica.run").info("%s has read %s", site, people.names)\n'
                "if people.n_unreadable:"
            )
        },
    ),
    Defence(
        "names stay at a site, images",
        "what the aggregator receives and writes holds nobody",
        "test_nobody_is_in_the_results_of_images",
        {
            "names-stay-at-a-site": (
                'logging.getLogger("capedjica.run").info("%s has read %s", site, people.names)\n'
                "if people.n_unreadable:"
            )
        },
    ),
    Defence(
        "search for numbers",
        "leaks that are planted are found",
        "test_the_search_finds_what_is_planted",
        {"search-for-numbers": "here |= {who for who, own in self.binary.items() if False}"},
    ),
    Defence(
        "search for names",
        "leaks that are planted are found",
        "test_a_real_leak_is_found",
        {"search-for-names": "here = {who for who, forms in self.words.items() if False}"},
    ),
    Defence(
        "enrolment is private",
        "who was left out, and why, is in a file that only its owner can read",
        "test_bad_scans_are_left_out_with_reasons_that_stay_here",
        {"enrolment-is-private": "write_whole(file, content)"},
    ),
    Defence(
        "the enrolled stay enrolled",
        "nothing about a scan changes the number of people or what happens",
        "test_somebody_who_vanishes_counts_as_zero_and_stays_enrolled",
        {
            "the-enrolled-stay-enrolled": (
                "people = tuple(present[name] for name in enrolment.enrolled if name in present)"
            )
        },
    ),
    Defence(
        "hash of public files",
        "public files are refused if they are others",
        "test_another_file_of_the_same_name_is_refused",
        {"hash-of-public-files": NEVER},
    ),
    # 3. A malicious aggregator
    Defence(
        "stored answers",
        "the same request gets the same bytes, uncharged",
        "test_the_same_request_gets_identical_bytes_and_no_charge",
        {"stored-answers": GONE},
    ),
    Defence(
        "one request for a slot",
        "any other request under a used slot is refused",
        "test_a_changed_question_under_a_used_slot_is_refused",
        {"one-request-for-a-slot": NEVER},
    ),
    Defence(
        "one message under a mask",
        "an aggregator from an old checkpoint gets no second message under a mask",
        "test_an_aggregator_from_an_old_checkpoint_gets_no_second_message_under_a_mask",
        {"one-request-for-a-slot": NEVER},
    ),
    Defence(
        "a mask is forgotten once used",
        "masks are overwritten as they are used: a second message would have none",
        "test_masks_are_forgotten_once_used_or_replaced",
        {"a-mask-is-forgotten-once-used": GONE},
    ),
    Defence(
        "a block in use is waited for",
        "a new block begun while a release is being made waits for it",
        "test_a_block_in_place_of_the_one_in_use_waits",
        {"a-block-in-use-is-waited-for": "with self._state:"},
    ),
    Defence(
        "a wiped mask serves nothing",
        "a new block begun while a release is being made does not uncover it",
        "test_a_block_begun_while_a_release_is_made_does_not_uncover_it",
        {"a-block-in-use-is-waited-for": "with self._state:", "a-wiped-mask-serves-nothing": GONE},
    ),
    Defence(
        "agreed participants",
        "noise is for the participants that t sites signed, not for those in a message",
        "test_other_participants_than_agreed_are_refused_for_a_fresh_slot",
        {"agreed-participants": NEVER},
    ),
    Defence(
        "agreed part of the budget",
        "a release may use the part of the budget that its block was made with",
        "test_other_participants_than_agreed_are_refused_for_a_fresh_slot",
        {"agreed-part-of-the-budget": "if ask.slot >= len(self.begin.slots):"},
    ),
    Defence(
        "worst colluding set",
        "mu is that of the covariance of the view over all colluding sets",
        "test_every_mu_is_that_of_the_adversarys_covariance_and_within_the_budget",
        {"colluders-among-survivors": "0,"},
    ),
    Defence(
        "split views",
        "split views uncover nothing",
        "test_split_views_do_not_expose_a_small_group",
        {"agreement-on-survivors": NEVER},
    ),
    Defence(
        "dead and alive",
        "a site called dead to one and alive to another stops the unmasking",
        "test_a_site_called_dead_to_one_and_alive_to_another_stops_the_unmasking",
        {"dead-and-alive": "pass"},
    ),
    Defence(
        "pinned keys",
        "keys are signed by identities that the peers pinned",
        "test_keys_forged_replayed_or_altered_are_refused",
        {"pinned-keys": NEVER},
    ),
    Defence(
        "cap of the ledger",
        "the ledger stops at the contract's budget",
        "test_an_aggregator_that_never_stops_cannot_make_the_guarantee_false",
        {"cap-of-the-ledger": NEVER},
    ),
    Defence(
        "reserved delta",
        "the budget leaves room in delta for what the grid adds",
        "test_an_aggregator_that_never_stops_cannot_make_the_guarantee_false",
        {"reserved-delta": "return self.delta"},
    ),
    Defence(
        "approval within the contract",
        "an approval for more than the contract promises is not used",
        "test_a_study_approved_for_more_than_its_contract_is_not_begun",
        {"approval-within-the-contract": NEVER},
    ),
    Defence(
        "strict reading",
        "bytes of any kind get a refusal, never a crash",
        "test_ten_thousand_mutants_get_no_second_message_and_nothing_uncharged",
        {"strict-reading": "except RecursionError:  # every error of the decoder is a ValueError"},
    ),
    Defence(
        "every layer of a slot",
        "no bytes get a second message under one mask",
        "test_ten_thousand_mutants_get_no_second_message_and_nothing_uncharged",
        EVERY_LAYER_OF_A_SLOT,
    ),
    Defence(
        "refusals without words",
        "an unexpected error is a refusal, without its words",
        "test_an_unexpected_error_is_a_refusal_without_its_words",
        {
            "refusals-without-words": "except Exception as error:",
            "silence-about-a-failure": "reason = str(error)",
        },
    ),
    # On real machines
    Defence(
        "messages are of one study",
        "an altered study obtains nothing",
        "test_no_lie_obtains_a_release_or_a_charge",
        {"messages-are-of-one-study": NEVER},
    ),
    Defence(
        "blocks only grow",
        "a replayed block obtains nothing",
        "test_no_lie_obtains_a_release_or_a_charge",
        {"blocks-only-grow": NEVER, "blocks-only-grow-by-the-ledger": NEVER, "one-claim-per-block": GONE},
    ),
    Defence(
        "blocks only grow, by the ledger",
        "the ledger alone refuses a replayed block",
        "test_blocks_only_grow_restarts_included",
        {"blocks-only-grow-by-the-ledger": NEVER},
    ),
    Defence(
        "signatures, end to end",
        "invented peers obtain nothing",
        "test_no_lie_obtains_a_release_or_a_charge",
        {"pinned-keys": NEVER},
    ),
    Defence(
        "participants, end to end",
        "other participants than agreed obtain nothing",
        "test_no_lie_obtains_a_release_or_a_charge",
        {"agreed-participants": NEVER},
    ),
    Defence(
        "budget, end to end",
        "more of the budget than agreed obtains nothing",
        "test_no_lie_obtains_a_release_or_a_charge",
        {"agreed-part-of-the-budget": "if ask.slot >= len(self.begin.slots):"},
    ),
    Defence(
        "participants, real sites",
        "a dishonest server obtains nothing from real sites",
        "test_a_dishonest_server_obtains_nothing_from_real_sites",
        {"agreed-participants": NEVER},
        slow=True,
    ),
    Defence(
        "approval of a study",
        "a study that was not approved, or whose scans changed, is not begun",
        "test_sites_that_did_not_approve_or_have_other_scans_are_named_and_nothing_is_charged",
        {"approval-of-a-study": NEVER},
        slow=True,
    ),
    Defence(
        "a kit holds the study it names",
        "a study that was changed is not approved",
        "test_a_kit_whose_study_was_changed_is_refused",
        {"a-kit-holds-the-study-it-names": NEVER},
    ),
    Defence(
        "a kit brings no settings",
        "no kit brings code, or settings of FLARE, to a site",
        "test_a_file_beside_its_place_is_refused",
        {"a-kit-brings-no-settings": "beside = False"},
    ),
    Defence(
        "seed against the contract",
        "a seed for noise is refused in a study that promises privacy",
        "test_a_site_refuses_seeded_noise_under_a_contract_that_promises_privacy",
        {"seed-against-the-contract": NEVER},
    ),
    # Strangers
    Defence(
        "identities stay at sites",
        "a site's Ed25519 identity is in no kit",
        "test_no_key_of_a_site_is_with_the_coordinator",
        {
            "identities-stay-at-sites": (
                'write_study(folder / "study.toml", study.content)\n'
                'for site in study.folder.glob("sites/*/identity.pem"):\n'
                "    shutil.copyfile(site, folder / site.parent.name)"
            )
        },
    ),
    Defence(
        "survivors, end to end",
        "a site called dead to one and alive to another, and split views, are refused by the sites",
        "test_no_lie_obtains_a_release_or_a_charge",
        {"agreement-on-survivors": NEVER},
    ),
    Defence(
        "enough agreements, end to end",
        "nor do such lies succeed when the agreements of others are kept back",
        "test_no_lie_obtains_a_release_or_a_charge",
        {"enough-agreements-end-to-end": NEVER},
    ),
    Defence(
        "a site's own key",
        "a site's program takes no part with another key than the study names",
        "test_a_site_whose_identity_was_exchanged_does_not_take_part",
        {"a-sites-own-key": NEVER},
    ),
    Defence(
        "another identity, honest aggregator",
        "who has a kit and another identity is in no release",
        "test_an_honest_aggregator_goes_on_without_who_has_another_identity",
        {"pinned-keys": NEVER},
    ),
    Defence(
        "another identity, dishonest aggregator",
        "sites refuse who has another identity, also from an aggregator that does not",
        "test_sites_refuse_who_has_another_identity_also_from_an_aggregator_that_does_not",
        {"pinned-keys": NEVER},
    ),
    Defence(
        "another identity, real sites",
        "over the real port, who has a kit and another identity is in no release",
        "test_on_flare_who_has_a_kit_and_another_identity_obtains_nothing",
        {"pinned-keys": NEVER},
        slow=True,
    ),
    Defence(
        "a list that another name completes",
        "another name does not stand in for a withdrawal that was lost",
        "test_another_name_does_not_stand_in_for_one_that_was_lost",
        {
            "marks-that-are-lacking": 'lacking = Counter([b""] * (noted.total() - len(listed)))',
            "marks-that-are-noted": (
                "for mark in list(_marks(read_list(home)).elements())[_noted(ledger).total() :]:"
            ),
        },
    ),
    Defence(
        "a head is made again on demand only",
        "a lost head is made again only when asked for",
        "test_a_lost_head_is_made_again_only_when_asked_for",
        {"a-head-is-made-again-on-demand-only": NEVER},
    ),
    Defence(
        "a head that speaks of more",
        "a head that speaks of a later entry is not replaced, whichever key signed it",
        "test_a_head_that_speaks_of_more_is_not_replaced_whoever_signed_it",
        {"a-head-that-speaks-of-more": "pass"},
    ),
    Defence(
        "certificates on the machine itself",
        "somebody with an account on the hospital's machine gets nothing",
        "test_a_site_and_its_jobs_talk_among_themselves",
        {
            "certificates-on-the-machine-itself": (
                '"internal": {"scheme": "tcp", "resources": {"host": "localhost", '
                '"connection_security": "clear"}},'
            )
        },
        slow=True,
    ),
    # 4. A malicious site
    Defence(
        "blocks far ahead, aggregator",
        "a site that runs ahead with its blocks takes nobody along",
        "test_a_site_that_runs_ahead_with_its_blocks_takes_nobody_along",
        {"blocks-far-ahead-aggregator": "runaways: set[str] = set()"},
    ),
    Defence(
        "replies are signed",
        "what a site did not sign is not believed",
        "test_bytes_that_the_site_did_not_sign_are_forged",
        {"replies-are-signed": NEVER},
    ),
    Defence(
        "replies are bound to questions",
        "a reply to one question is none to another",
        "test_an_answer_to_another_question_is_refused",
        {"replies-are-bound-to-questions": "return _REPLY_LABEL + hashlib.sha256(content).digest()"},
    ),
    Defence(
        "false spending",
        "a site that lies about its spending is left out and named, and costs the others nothing",
        "test_a_site_that_lies_about_its_spending_is_left_out_and_named",
        {"false-spending": NEVER},
    ),
    Defence(
        "false blocks",
        "a site that lies about its blocks is left out and named",
        "test_a_site_that_lies_about_its_blocks_is_left_out_and_named",
        {"false-blocks": NEVER},
    ),
    Defence(
        "what is asked is written down",
        "honest sites stay and a liar goes, whatever is lost",
        "test_honest_sites_stay_and_the_liar_goes_whatever_is_lost",
        {"what-is-asked-is-written-down": GONE},
    ),
    Defence(
        "liars are remembered",
        "who lied in an interrupted run is left out of the rest",
        "test_who_lied_in_an_interrupted_run_is_left_out_of_the_rest_and_named_in_the_results",
        {"liars-are-remembered": "liars=set(),"},
    ),
    Defence(
        "a record that was lost",
        "a run whose record was lost believes its sites",
        "test_a_run_whose_record_was_lost_believes_its_sites",
        {"a-record-that-was-lost": "elif False:"},
    ),
    Defence(
        "blocks far ahead, site",
        "no lie obtains a release or a charge, a block after which none could follow included",
        "test_no_lie_obtains_a_release_or_a_charge",
        {"blocks-far-ahead-site": NEVER},
    ),
    Defence(
        "patience with a site",
        "a site that fails the others twice is left out",
        "test_a_site_that_fails_again_and_again_is_left_out",
        {"patience-with-a-site": "return tuple(name for name in names )"},
    ),
    Defence(
        "answers that fit",
        "an honest aggregator ends with a result or an error in words",
        "test_a_lying_site_ends_the_run_in_words_at_worst",
        {"answers-that-fit": "if (answer.block, answer.slot) != (ask.block, ask.slot):"},
    ),
    Defence(
        "what a site says",
        "what a site says is printed on one harmless line",
        "test_what_a_site_says_is_shown_on_one_short_line",
        {"what-a-site-says": "self.refusals[name] = reply.reason"},
    ),
    # 5. Lost sites, restarts, damaged disks
    Defence(
        "what was given up stays charged",
        "what was sent and given up stays charged, and is told",
        "test_a_site_dies",
        {"what-was-given-up-stays-charged": "mu={} if aborted else plan.mu,"},
    ),
    Defence(
        "what is left of the budget",
        "after a lost site the rest is recalibrated within the budget",
        "test_a_site_dies",
        {"what-is-left-of-the-budget": "shrink = 1.0"},
    ),
    Defence(
        "noise for the survivors",
        "the others go on with noise sized for those that are left less S_C",
        "test_more_colluders_cost_more_noise_and_lost_sites_too",
        {"noise-for-the-survivors": "1,"},
    ),
    Defence(
        "a repeated question",
        "messages that are repeated are charged once",
        "test_one_message_goes_astray",
        EVERY_LAYER_OF_A_SLOT,
    ),
    Defence(
        "an older answer",
        "messages that are exchanged with older ones are not used",
        "test_one_message_goes_astray",
        {"answers-that-fit": "if len(answer.words) != 8 * plan.query.size:"},
    ),
    Defence(
        "a late answer",
        "messages late or overtaken are asked for again, at no cost",
        "test_a_letter_comes_a_round_late",
        {"a-late-answer": "REPEATS: Final = 0"},
    ),
    Defence(
        "stored answers after a restart",
        "after a restart stored answers are repeated, unused slots are burnt",
        "test_a_restarted_site_repeats_stored_bytes_and_burns_the_rest",
        {"stored-answers": GONE},
    ),
    Defence(
        "what is spent is told",
        "a site that stops and starts again knows what it has spent",
        "test_a_site_stops_and_starts_again",
        {"what-is-spent-is-told": "part = 0.0"},
    ),
    Defence(
        "used blocks are told",
        "another aggregator takes over, and no mask serves twice",
        "test_the_aggregator_stops_and_another_takes_over",
        {"used-blocks-are-told": "return Status(*self._header(), -1, part, self._head(), self.carrier)"},
    ),
    Defence(
        "record before sending",
        "nothing that left is unrecorded, whenever a process is killed",
        "test_kills_in_the_middle_of_releases",
        {"record-before-sending": "pass"},
    ),
    Defence(
        "slots of a dead process",
        "a slot whose process died is stored or burnt",
        "test_death_at_any_line_leaves_the_slot_stored_or_burnt",
        {"slots-of-a-dead-process": "if slot in self.burnt:"},
    ),
    Defence(
        "head before sending",
        "the ledger of a site fails: it falls silent",
        "test_a_ledger_fails_in_the_middle_of_a_study",
        {
            "head-before-sending": (
                'with __import__("contextlib").suppress(StorageError), self._log.transaction():'
            )
        },
    ),
    Defence(
        "silence about storage",
        "a site whose ledger fails says nothing about why",
        "test_a_refusal_for_want_of_storage_says_nothing_about_the_storage",
        {"silence-about-storage": "reason = str(error)"},
    ),
    Defence(
        "record before sending, real processes",
        "a job killed between charge and answer is taken up, and nothing is uncharged",
        "test_a_job_killed_at_one_site_is_taken_up_with_all",
        {"record-before-sending": "pass"},
        slow=True,
    ),
    Defence(
        "version of a run",
        "a run of another version is refused before a server is started",
        "test_a_run_of_another_version_is_refused_before_a_server_is_started",
        {"version-of-a-run": NEVER},
    ),
    Defence(
        "head in the second place",
        "an older copy of a ledger is noticed by the head in the second place",
        "test_an_older_copy_is_noticed_by_the_head",
        {"head-in-the-second-place": "return 0"},
    ),
    Defence(
        "head handed back",
        "an older copy of a ledger is noticed by the head that the aggregator hands back",
        "test_a_restored_ledger_is_noticed_by_the_head_in_the_last_message",
        {"head-handed-back": "pass"},
    ),
    # 6. Withdrawal, revocation, new keys
    Defence(
        "the withdrawn are not found",
        "nothing opens the scans of somebody who withdrew",
        "test_the_scan_is_not_opened_by_anything",
        {"the-withdrawn-are-not-found": GONE},
    ),
    Defence(
        "the withdrawn count as zero",
        "a run after a withdrawal counts the person as zero",
        "test_a_run_after_a_withdrawal_counts_the_person_as_zero",
        {
            "the-withdrawn-are-not-found": GONE,
            "the-withdrawn-count-as-zero": (
                "kept = [Person(one.name, ()) if False else one for one in people]"
            ),
        },
    ),
    Defence(
        "withdrawal during a run",
        "a run under way forgets somebody from its next release on",
        "test_a_run_under_way_forgets_the_person",
        {"withdrawal-during-a-run": "if True:"},
    ),
    Defence(
        "a list that cannot be read",
        "nobody is read if the list of the withdrawn cannot be",
        "test_nobody_is_read_if_the_list_cannot_be",
        {"a-list-that-cannot-be-read": "return"},
    ),
    Defence(
        "results of the withdrawn",
        "what was made of somebody's scans is removed",
        "test_what_was_made_of_the_scans_is_removed",
        {"results-of-the-withdrawn": "results = 1"},
    ),
    Defence(
        "series of the withdrawn",
        "what was made of somebody's scans is removed",
        "test_what_was_made_of_the_scans_is_removed",
        {"series-of-the-withdrawn": "series = 1"},
    ),
    Defence(
        "nobody is named in the ledger",
        "the ledger notes that somebody withdrew, and not who",
        "test_the_ledger_shows_that_and_not_who",
        {"nobody-is-named-in-the-ledger": "ledger.note(NOTE + str(standing(home)), mark)"},
    ),
    Defence(
        "the withdrawn are not enrolled",
        "nobody enrols the person again",
        "test_nobody_enrols_the_person_again",
        {"the-withdrawn-are-not-found": GONE},
    ),
    Defence(
        "revoked keys",
        "a study with a key that a site revoked is refused by that site",
        "test_a_study_with_a_revoked_key_is_refused",
        {"revoked-keys": "if False"},
    ),
    Defence(
        "revoked approvals",
        "nothing leaves for a study whose approval was revoked, not even stored bytes",
        "test_nothing_leaves_after_an_approval_was_revoked",
        {"revoked-approvals": NEVER},
    ),
    Defence(
        "a new key begins no new ledger",
        "what was spent under the old key stays spent under the new one",
        "test_what_was_spent_carries_over",
        {"a-new-key-begins-no-new-ledger": ("home.ledger_path.unlink()\nhome.head_path.unlink()")},
    ),
    Defence(
        "a key is not changed during a run",
        "a key is not changed while the site takes part in a study",
        "test_not_while_it_takes_part",
        {"a-key-is-not-changed-during-a-run": "if True:"},
    ),
    Defence(
        "the ledger changes first",
        "a change of key that is killed at any line loses nothing",
        "test_death_at_any_line",
        {
            "the-ledger-changes-first": ("os.replace(coming, place)\n_change_ledger(home, old, new)"),
            "the-identity-changes-last": GONE,
        },
    ),
    Defence(
        "the old key is out of force",
        "who stole the old key signs no head of the ledger after the change",
        "test_the_old_key_signs_no_head_after_the_change",
        {"the-old-key-is-out-of-force": NEVER},
    ),
    Defence(
        "the old key agrees",
        "a change of key that the old one did not sign is refused",
        "test_a_change_that_the_old_key_did_not_sign",
        {"the-old-key-agrees": "if follower not in (None, change.new):"},
    ),
    Defence(
        "a new root",
        "kits made anew are under a new root: the earlier ones reach nobody",
        "test_a_new_root_for_the_same_study",
        {"a-new-root": "pass"},
    ),
    # 7. What the protection rests on
    Defence(
        "threshold",
        "2t > S + S_C is enforced",
        "test_thresholds_are_admitted_exactly_above_half_of_all_and_colluding",
        {"threshold": "if 2 * t < n_sites + colluding:"},
    ),
    # 8. What is not covered
    Defence(
        "results about single people",
        "results about single people are for the owner of the site's folder alone",
        "test_every_person_has_results_that_only_the_owner_can_read",
        {"results-about-single-people": "write_files(draft, files)"},
    ),
    # Later additions
    # Added to sections 2, 3 and 6
    Defence(
        "sealed heads",
        "the head of its ledger that a site sends tells nobody what else happens at the site",
        "test_what_happens_at_a_site_besides_is_not_in_what_it_sends",
        {
            "sealed-heads": "return self._ledger.head",
            "head-handed-back": "self._ledger.check_against(hello.head)",
        },
    ),
    Defence(
        "heads are bound to study and site",
        "a head that a site sealed comes back to that site in that study only",
        "test_a_head_comes_back_to_its_site_only",
        {"heads-are-bound-to-study-and-site": "self._binding = _LABEL"},
    ),
    Defence(
        "heads of others",
        "a head that the site did not seal is refused",
        "test_a_head_that_was_not_sealed_by_the_site_is_refused",
        {"heads-of-others": "return sealed", "the-old-key-is-out-of-force": NEVER},
    ),
    Defence(
        "revoked in the middle of a secure sum",
        "no round of a secure sum is answered after the approval was revoked",
        "test_no_round_of_a_secure_sum_is_answered_after_the_approval_was_revoked",
        {"revoked-in-the-middle-of-a-secure-sum": GONE},
    ),
    Defence(
        "kept answers are revoked too",
        "an answer kept in case one gets lost is not handed out after the approval was revoked",
        "test_a_kept_answer_is_not_handed_out_after_a_revocation",
        {"kept-answers-are-revoked-too": NEVER},
    ),
    Defence(
        "revoked in the middle of a run",
        "a run under way loses a site that revokes its approval",
        "test_a_run_under_way_goes_on_without_a_site_that_revokes",
        {"revoked-approvals": NEVER},
    ),
    Defence(
        "revoked for good",
        "an approval that was revoked does not come back",
        "test_what_was_released_stays_charged_and_the_study_cannot_be_approved_again",
        {"revoked-for-good": "if True:", "revoked-approvals": NEVER},
    ),
    Defence(
        "at least one colluding site",
        "a site refuses a study that assumes no colluding site",
        "test_a_site_refuses_a_study_that_assumes_no_colluding_site",
        {"at-least-one-colluding-site": "if False and not _allows_unprotected(home):"},
    ),
    Defence(
        "a list that was lost",
        "nobody is read if the ledger noted more withdrawals than the list of the withdrawn has names",
        "test_nobody_is_read_if_the_list_was_lost",
        {"a-list-that-was-lost": NEVER},
    ),
    Defence(
        "a list that is durable",
        "the list of the withdrawn is on the disk before anything else is done",
        "test_the_list_is_on_the_disk_before_anything_else_is_done",
        {"a-list-that-is-durable": GONE},
    ),
    Defence(
        "series written after a withdrawal",
        "what a killed process wrote after somebody withdrew is removed at the next start",
        "test_no_series_of_somebody_who_withdrew_outlives_the_next_start",
        {"series-written-after-a-withdrawal": GONE},
    ),
    Defence(
        "results written after a withdrawal",
        "results about somebody that are being written while they withdraw are removed too",
        "test_results_that_are_being_written_are_removed_too",
        {"results-written-after-a-withdrawal": "if True:"},
    ),
    Defence(
        "the people of the approval",
        "a study that has begun reads the people and the files of its approval and no others",
        "test_once_begun_nobody_in_the_folder_of_the_scans_is_in_the_way",
        {"the-people-of-the-approval": "approved = None"},
    ),
    # 3. Two programs on one machine
    Defence(
        "files out of reach",
        "a confined program reads no file of the same user but those that it was granted",
        "test_no_file_of_the_same_user_is_in_reach",
        {"files-out-of-reach": GONE},
    ),
    Defence(
        "secrets are never granted",
        "no path is granted to a program that is a secret or above one",
        "test_nothing_is_granted_that_holds_a_secret",
        {"secrets-are-never-granted": "return list(paths)"},
    ),
    Defence(
        "signals stay inside",
        "a confined program sends no signal to other programs of the same user",
        "test_no_process_of_the_same_user_can_be_signalled",
        {"signals-stay-inside": "scopes = _ABSTRACT_SOCKETS"},
    ),
    Defence(
        "another user",
        "a program with a user of its own reads no file of ours",
        "test_another_user_reads_no_file_of_ours_and_stays_another",
        {"another-user": GONE},
    ),
    Defence(
        "no new privileges",
        "no program that runs as root whoever starts it gives rights back",
        "test_no_program_gives_rights_back",
        {"no-new-privileges": "pass"},
    ),
    Defence(
        "no capabilities",
        "root that executes a program has no capability",
        "test_root_without_capabilities_is_root_by_name_only",
        {"no-capabilities": "pass"},
    ),
    Defence(
        "no network",
        "a program with secrets reaches no network",
        "test_an_agent_has_no_network",
        {"no-network": "pass"},
    ),
    Defence(
        "memory out of sight",
        "other programs of its user do not see the memory of a program with secrets",
        "test_the_memory_of_an_agent_is_hidden_from_its_user",
        {"memory-out-of-sight": "pass"},
    ),
    # The boundary between a carrier and what it must not reach
    Defence(
        "files out of a carrier's reach, FLARE itself",
        "told by a dishonest server or a dishonest site to hand over a site's files, FLARE cannot open them",
        "test_flare_itself_cannot_hand_over_a_sites_files",
        {"files-out-of-reach": GONE, "a-carrier-tries-the-doors": GONE},
        slow=True,
    ),
    Defence(
        "a carrier tries the doors",
        "a carrier that could open a secret does not start",
        "test_a_carrier_that_could_open_a_secret_does_not_start",
        {"a-carrier-tries-the-doors": GONE},
    ),
    Defence(
        "real data need a boundary",
        "people's data are not put beside a carrier that nothing confines, unless their site says so",
        "test_data_of_people_are_not_put_beside_an_unconfined_carrier",
        {"real-data-need-a-boundary": NEVER},
    ),
    Defence(
        "an agent has no network",
        "the process that has the secrets has no network",
        "test_the_agents_process_has_no_network",
        {"an-agent-has-no-network": 'network = "the network as it was"'},
    ),
    Defence(
        "nothing outlives a carrier",
        "what a carrier leaves running is ended, under whatever name",
        "test_what_a_carrier_leaves_running_is_ended",
        {"nothing-outlives-a-carrier": GONE},
    ),
    Defence(
        "no way out by a link",
        "links that a carrier left in its folder lead its owner nowhere",
        "test_a_link_that_a_carrier_left_leads_its_owner_nowhere",
        {
            "no-way-out-by-a-link": (
                "descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags, dir_fd=folder)"
            )
        },
    ),
    Defence(
        "frames over the socket are limited",
        "a frame that is too long is not waited for",
        "test_a_bad_frame_ends_the_connection_and_nothing_else",
        {"frames-over-the-socket-are-limited": NEVER},
    ),
    Defence(
        "strict frames",
        "a frame that cannot be read ends the connection and nothing else",
        "test_a_frame_that_cannot_be_read_is_an_error_of_the_link",
        {"strict-frames": "except KeyError:"},
    ),
    Defence(
        "peer credentials",
        "who connects to an agent is known by the operating system",
        "test_another_user_is_refused_whatever_they_say",
        {"peer-credentials": NEVER},
    ),
    Defence(
        "the owner's token",
        "the owner's commands are for who can read the owner's token",
        "test_without_the_token_or_as_somebody_else_nobody_is_admitted",
        {"the-owners-token": "known = True"},
    ),
    Defence(
        "one carrier at a time",
        "a second carrier is turned away while the first is there",
        "test_one_carrier_at_a_time",
        {"one-carrier-at-a-time": NEVER},
    ),
    Defence(
        "notices are signed",
        "nobody but the coordinator ends a study",
        "test_a_notice_that_the_coordinator_has_not_signed_is_ignored",
        {"notices-are-signed": NEVER},
    ),
    Defence(
        "no warnings on the console",
        "what a library says of a scan is not on the agent's console",
        "test_a_warning_of_a_library_does_not_name_a_scan_on_the_console",
        {"no-warnings-on-the-console": GONE},
    ),
    Defence(
        "forged replies are discarded",
        "what comes in a site's name and is not signed by it is as good as nothing",
        "test_a_forged_reply_is_as_good_as_none_and_the_honest_site_stays",
        {
            "forged-replies-are-discarded": (
                "except ForgedReplyError:\n    raise\nexcept ForgedReplyError as error:"
            )
        },
    ),
    Defence(
        "forged replies are discarded, real processes",
        "a carrier that forges a site's replies loses the site nothing",
        "test_replies_forged_in_a_sites_name_are_discarded_and_the_site_stays",
        {
            "forged-replies-are-discarded": (
                "except ForgedReplyError:\n    raise\nexcept ForgedReplyError as error:"
            )
        },
        slow=True,
    ),
    Defence(
        "kits are signed",
        "a kit that was changed on its way is refused",
        "test_a_kit_that_was_changed_on_its_way_is_refused",
        {"kits-are-signed": NEVER},
    ),
    Defence(
        "the coordinator's key is pinned",
        "a kit of another coordinator does not replace the first",
        "test_the_kit_of_another_coordinator_is_refused_once_one_was_approved",
        {"the-coordinators-key-is-pinned": NEVER},
    ),
    Defence(
        "version of the protocol",
        "a kit of another version of the protocol is refused",
        "test_a_kit_of_another_protocol_names_both",
        {"version-of-the-protocol": NEVER},
    ),
    Defence(
        "the network an agent was started in",
        "an agent that must tell users apart says what keeps it from the network",
        "test_an_agent_of_two_users_is_told_which_network_it_was_started_in",
        {"the-network-it-was-started-in": "if knows_users:"},
    ),
    Defence(
        "bounds of a cross-moment",
        "no row, however hostile, moves a cross-moment beyond its sensitivity",
        "test_hostile_rows_never_move_it_beyond_the_declared_sensitivity",
        {
            "cross-moment-clips-vectors": "vectors = rows[:, 2:]",
            "cross-moment-bounds-on-integers": "within = np.ones(len(y), dtype=bool)",
        },
    ),
    Defence(
        "bounded imbalance of a cross-moment",
        "a person whose row goes missing moves a cross-moment no further than its sensitivity",
        "test_a_missing_neighbour_moves_fixed_factors_no_further_than_declared",
        {"cross-moment-bounds-the-imbalance": "centre = sum_t + sum_k"},
    ),
    Defence(
        "one row of a design fails alone",
        "a person whose row cannot be read contributes zero, and changes nobody else's part",
        "test_a_row_that_cannot_be_read_changes_nobody_elses",
        {"one-row-of-a-design-fails-alone": "raise"},
    ),
    # Web pages
    Defence(
        "the web pages: one-time token",
        "an opening address is valid once, and no other token is",
        "test_the_address_is_valid_once",
        {"web-one-time-token": NEVER},
    ),
    Defence(
        "the web pages: guesses",
        "guessing replaces the opening address",
        "test_guessing_replaces_the_address",
        {"web-guesses-are-limited": NEVER},
    ),
    Defence(
        "the web pages: cookie",
        "nothing is shown without the cookie of the session",
        "test_nothing_is_shown_without_the_cookie",
        {"web-session-cookie": NEVER},
    ),
    Defence(
        "the web pages: host",
        "a stranger's name that leads to the machine is refused",
        "test_another_host_is_refused",
        {"web-host-check": "return True"},
    ),
    Defence(
        "the web pages: origin",
        "a request of another page changes nothing",
        "test_a_request_of_another_page_changes_nothing",
        {"web-origin-check": "same = True"},
    ),
    Defence(
        "the web pages: form token",
        "every action needs the token of a form of the session",
        "test_every_action_needs_the_forms_token",
        {"web-form-token": "return True"},
    ),
    Defence(
        "the web pages: idle lock",
        "pages that are not used are locked",
        "test_idle_pages_are_locked_and_a_new_address_is_announced",
        {"web-idle-lock": NEVER},
    ),
    Defence(
        "the web pages: loopback",
        "the server listens on the loopback interface only",
        "test_it_listens_on_the_loopback_interface_only",
        {"web-loopback-only": 'listener.bind(("", port))'},
    ),
    Defence(
        "the web pages: one action at a time",
        "an action waits for the one under way",
        "test_a_second_action_waits_for_the_first",
        {"web-one-action-at-a-time": NEVER},
    ),
    Defence(
        "the web pages: older pages",
        "a form of a page that is older than the latest action is refused",
        "test_two_pages_at_once",
        {"web-pages-that-are-old": NEVER},
    ),
    Defence(
        "the web pages: names of files",
        "the name of a file that is received leads nowhere",
        "test_files_that_are_no_kit",
        {"web-names-of-files": "wrong = None"},
    ),
    Defence(
        "the web pages: no options by forms",
        "what is typed into a form is never an option of a command",
        "test_a_site_is_made",
        {"web-no-options-by-forms": NEVER},
    ),
    Defence(
        "the web pages: typed confirmation",
        "nothing is approved or revoked without the typed phrase",
        "test_a_study_is_read_compared_approved_and_revoked",
        {"web-typed-confirmation": NEVER},
    ),
)
