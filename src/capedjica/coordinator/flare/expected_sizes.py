"""Upper bounds on the message sizes of a study, before the run starts."""

from __future__ import annotations

from typing import Final

from capedjica.mechanisms.block import BLOCK_WORDS
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import MAX_SLOTS
from capedjica.securesum.messages import size_limit
from capedjica.securesum.parameters import HASH_BYTES, SumParameters

# Upper bound on all parts of a message that do not grow with the contract, such as a refusal of 1000
# characters of 4 bytes.
_FRAME_BYTES: Final = 1 << 13
# Upper bounds on a slot (a stage and a fraction) and on the name of a site in a message.
_SLOT_BYTES: Final = 16
_NAME_BYTES: Final = 68


def largest_message(contract: Contract, public: int = 0) -> int:
    """Return an upper bound in bytes on all messages of a study, in both directions.

    With ``mechanism="cape"``, the longest message is usually the masked input of a block, which has one
    release or at most ``BLOCK_WORDS`` numbers of 8 bytes; otherwise it is the answer to the largest query.

    Parameters
    ----------
    contract : Contract
        The contract of the study.
    public : int
        Bytes of the largest public state or publication, which is not in the contract.
    """
    n_sites, n_releases = len(contract.roster.sites), sum(stage.count for stage in contract.stages)
    masked_input = SumParameters(bytes(HASH_BYTES), contract.roster, _longest_vector(contract), 0)
    invitation = _SLOT_BYTES * min(n_releases, MAX_SLOTS) + _NAME_BYTES * n_sites
    question = public + _NAME_BYTES * n_sites
    return max(size_limit(masked_input), invitation, question) + _FRAME_BYTES


def _longest_vector(contract: Contract) -> int:
    """Return the largest number of words in one message of a site."""
    largest = max(stage.query.size for stage in contract.stages)
    if contract.mechanism != "cape":
        return largest
    return max(largest, min(BLOCK_WORDS, sum(stage.count * stage.query.size for stage in contract.stages)))
