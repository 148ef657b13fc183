# SPDX-License-Identifier: Apache-2.0
"""A double of heddle.Update, for the leaders inside engines: it notes its answer."""
import contextlib


class Update:
    """`play`: has the log in which the answer is noted, and says whether it is wanted."""

    def __init__(self, play, phase, version, digest="abc"):
        self.phase, self.adapter, self.version = phase, "policy", version
        self.tag = f"policy@{version}:{digest}"
        self._play, self.answered = play, phase not in ("arrived", "commit")

    @contextlib.contextmanager
    def share(self):
        yield f"memory of {self.version}"

    def _answer(self, *said):
        assert not self.answered
        self.answered = True
        self._play.log.append((*said, self.version))
        return self._play.is_wanted

    def staged(self):
        return self._answer("staged")

    def activate(self):
        return self._answer("activate")

    def reject(self, why):
        return self._answer("reject", str(why))
