"""How large the messages of a study become, before the first of them is sent."""

from __future__ import annotations

from typing import Final

from capedjica.mechanisms.block import BLOCK_WORDS
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import MAX_SLOTS
from capedjica.securesum.messages import size_limit
from capedjica.securesum.parameters import HASH_BYTES, SumParameters

# More than any message holds besides what grows with the contract: a refusal of 1000 characters of 4 bytes.
_FRAME_BYTES: Final = 1 << 13
# More than a slot (a stage and a fraction) and the name of a site need in a message.
_SLOT_BYTES: Final = 16
_NAME_BYTES: Final = 68


def largest_message(contract: Contract, public: int = 0) -> int:
    """Return a number of bytes that no message of a study exceeds, in either direction.

    Under ``mechanism="cape"`` the longest is as a rule the masked input of a block, which holds one release
    or at most ``BLOCK_WORDS`` numbers of 8 bytes; otherwise the answer to the largest query.

    Parameters
    ----------
    contract : Contract
        What all parties agreed on.
    public : int
        Bytes of the largest public state or publication, which the contract does not know.
    """
    n_sites, n_releases = len(contract.roster.sites), sum(stage.count for stage in contract.stages)
    masked_input = SumParameters(bytes(HASH_BYTES), contract.roster, _longest_vector(contract), 0)
    invitation = _SLOT_BYTES * min(n_releases, MAX_SLOTS) + _NAME_BYTES * n_sites
    question = public + _NAME_BYTES * n_sites
    return max(size_limit(masked_input), invitation, question) + _FRAME_BYTES


def _longest_vector(contract: Contract) -> int:
    """Return the largest number of words that a site sends at once."""
    largest = max(stage.query.size for stage in contract.stages)
    if contract.mechanism != "cape":
        return largest
    return max(largest, min(BLOCK_WORDS, sum(stage.count * stage.query.size for stage in contract.stages)))
