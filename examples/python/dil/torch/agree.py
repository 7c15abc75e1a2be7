"""Agreement of the processes of a ring, before each of its calls.

In: what this process is about to do, or why it cannot. Out: all are about to do
the same; else an error on each that names the process and the difference. The
words go through a store on the host of rank 0, with a timeout of the ring's own:
a collective of the process group would wait as long as the group does, and come
amid other collectives.
"""

import datetime
import json
import os
import socket
import weakref

import torch.distributed as dist

from dil import Error


def _host(group):
    """This host, as the other processes may reach it."""
    if dist.get_rank() == 0 and os.environ.get("MASTER_ADDR"):
        return os.environ["MASTER_ADDR"]
    if dist.get_world_size(group) == 1:
        return "127.0.0.1"
    return socket.gethostname()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def _difference(one, other):
    """The first thing of which two processes say something else."""
    for name, said in one.items():
        if other.get(name) != said:
            return name, said, other.get(name)
    return None


def _compare(words, rank):
    """Raises where another process has an error, or says something else."""
    for other, word in enumerate(words):
        if "error" in word:
            raise Error(word["status"],
                        f"rank {other} refuses the call: {word['error']}")
    for other, word in enumerate(words):
        found = _difference(words[rank], word)
        if found:
            name, mine, its = found
            raise Error("DIL_USAGE", f"{name} must be the same in all processes: "
                        f"rank {rank} has {mine}, and rank {other} has {its}")


def _as_error(problem):
    """The word of a process that cannot go on."""
    if isinstance(problem, Error):
        return {"error": str(problem), "status": problem.status}
    return {"error": f"{type(problem).__name__}: {problem}", "status": "DIL_USAGE"}


_GONE = ("the place where the ring's processes agree is gone, and rank 0 with it")


class _Place:
    """Where the processes of a group agree: a store on the host of rank 0, which
    lives as long as the group. All come here together when they make their
    first ring."""

    def __init__(self, group, wait):
        self.host, self.rings = _host(group), 0
        place = [None]
        if dist.get_rank(group) == 0:
            try:
                self.store = dist.TCPStore(self.host, 0, is_master=True,
                                           wait_for_workers=False, timeout=wait)
                place = [(self.host, self.store.port)]
            except (OSError, RuntimeError) as problem:
                place = [f"rank 0 cannot open a store at {self.host}: {problem}"]
        dist.broadcast_object_list(place, group=group,
                                   src=dist.get_global_rank(group, 0))
        if isinstance(place[0], str):  # on all ranks
            raise Error("DIL_ENVIRONMENT", place[0])
        if dist.get_rank(group):
            self.store = dist.TCPStore(*place[0], is_master=False,
                                       wait_for_workers=False, timeout=wait)


_places = weakref.WeakKeyDictionary()  # of groups


class Agreement:
    """The rounds of a ring's processes, which make theirs in the same order."""

    def __init__(self, group, timeout):
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._timeout, self._round, self._said = timeout, 0, []
        if group not in _places:
            _places[group] = _Place(group, datetime.timedelta(seconds=timeout))
        self._place = _places[group]
        self._place.rings += 1
        self._store, self._number = self._place.store, self._place.rings

    def wait(self, timeout):
        """From now on for so many seconds."""
        self._timeout = timeout

    def _key(self, name, rank=""):
        return f"{self._number}/{name}/{rank}"

    def _words(self):
        keys = [self._key(self._round, rank) for rank in range(self.ranks)]
        try:
            self._store.set_timeout(datetime.timedelta(seconds=self._timeout))
            said = self._store.multi_get(keys)
            # All are in this round: nobody reads what was said before it.
            for number in self._said[:-1]:
                self._store.delete_key(self._key(number, self.rank))
        except dist.DistStoreError as problem:
            silent = [str(rank) for rank, key in enumerate(keys)
                      if not self._store.check([key])]
            raise Error("DIL_ENVIRONMENT", f"rank {', '.join(silent)} is silent: "
                        f"it has not come to call {self._round} of the ring "
                        f"within {self._timeout:g} s") from problem
        except dist.DistNetworkError as problem:
            raise Error("DIL_ENVIRONMENT", _GONE) from problem
        self._said = [self._round]
        return [json.loads(word) for word in said]

    def _say(self, **said):
        self._round += 1
        self._said.append(self._round)
        try:
            self._store.set(self._key(self._round, self.rank), json.dumps(said))
        except dist.DistNetworkError as problem:
            raise Error("DIL_ENVIRONMENT", _GONE) from problem

    def reach(self, word, ready=True, offer=None):
        """Whether all are `ready`, and what rank 0 offers, in a round where all
        say the same word. It raises on all where one process refuses or says
        another one."""
        self._say(word=word, ready=ready, offer=offer)
        said = self._words()
        _compare([one["word"] for one in said], self.rank)
        return all(one["ready"] for one in said), said[0]["offer"]

    def refuse(self, problem):
        """This process's turn in a round where it cannot go on."""
        self._say(word=_as_error(problem), ready=False)

    def meeting(self):
        """Where dil's own links meet: a port of the host of rank 0, which
        chooses it."""
        key = self._key(f"meeting {self._round}")
        try:
            if self.rank == 0:
                self._store.set(key, f"{self._place.host}:{_free_port()}")
            return self._store.get(key).decode()
        except dist.DistError as problem:
            raise Error("DIL_ENVIRONMENT", "rank 0 does not say where the ring's "
                        "links meet") from problem
