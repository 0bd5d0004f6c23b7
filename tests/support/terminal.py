"""Programs as they meet somebody at a real terminal."""

import codecs
import os
import pty
import select
import signal
import subprocess
import sys
import time


def signals_as_at_a_terminal():
    """Undo what tests below `nohup` or in the background hand on: that these are ignored."""
    for one in (signal.SIGHUP, signal.SIGINT):
        signal.signal(one, signal.SIG_DFL)


class Terminal:
    """A real terminal with the program at its other end."""

    def __init__(self, *arguments, cwd):
        self._own, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "capedjica", *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=cwd,
            preexec_fn=signals_as_at_a_terminal,
        )
        os.close(other)
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def expect(self, words):
        deadline = time.monotonic() + 180
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            if select.select([self._own], [], [], 1)[0]:
                self.text += self._decoder.decode(os.read(self._own, 4096))

    def answer(self, question, text):
        self.expect(question)
        self.text = ""
        os.write(self._own, f"{text}\n".encode())

    def close(self):
        code = self.process.wait(60)
        os.close(self._own)
        return code
