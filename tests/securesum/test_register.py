import threading

import pytest

from capedjica.errors import ProtocolError
from capedjica.securesum.register import MemoryBlockRegister

STUDY = bytes(32)


def test_claims_only_grow():
    register = MemoryBlockRegister()
    for claim in [(0, 0), (0, 1), (2, 0), (2, 5), (3, 0)]:
        register.claim(STUDY, *claim)
        for block, attempt in [claim, (0, 0), (claim[0], 0)]:
            with pytest.raises(ProtocolError, match="only grow"):
                register.claim(STUDY, block, attempt)


def test_studies_are_independent():
    register = MemoryBlockRegister()
    register.claim(STUDY, 5, 0)
    register.claim(b"\x01" * 32, 0, 0)


def test_one_of_many_threads_gets_the_claim():
    register, granted, barrier = MemoryBlockRegister(), [], threading.Barrier(8)

    def contend():
        barrier.wait()
        try:
            register.claim(STUDY, 1, 0)
            granted.append(True)
        except ProtocolError:
            pass

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert granted == [True]
