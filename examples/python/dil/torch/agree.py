"""Agreement of the processes of a ring, before each of its calls.

In: what this process is about to do, or why it cannot. Out: all are about to do
the same; else an error on each that names the process and the difference. The
words go through the store of the process group, by a connection and with a
timeout of the ring's own: a collective of the group would wait as long as the
group does, and come amid other collectives.
"""

import contextlib
import datetime
import itertools
import json
import os
import socket
import weakref

import torch.distributed as dist

from dil import Error


def _unreachable(text):
    return Error("DIL_ENVIRONMENT", text)


@contextlib.contextmanager
def _asking(what):
    """Errors of the store as those of dil; `what` could not be done."""
    try:
        yield
    except dist.DistNetworkError as problem:
        raise _unreachable("the store of the process group is gone, and with it "
                           f"the process that holds it: {what}") from problem
    except (OSError, RuntimeError) as problem:
        raise _unreachable(f"{what}: {problem}") from problem


def _store_of(group):
    """A connection of its own to the group's store."""
    with _asking("a ring's processes cannot agree"):
        store = getattr(group, "get_group_store", lambda: None)()
        if store is not None:
            store.check(["dil ring"])  # a lost one would be sought for long
            store = store.clone()
    if store is None:
        raise _unreachable("the process group has no store, by which a ring's "
                           "processes agree: make it with the backend gloo or "
                           "nccl, of PyTorch 2.11 or later")
    return store


def _host(group):
    """This host, as the other processes may reach it: its address on the way to
    the host that all know; else its name."""
    if dist.get_world_size(group) == 1:
        return "127.0.0.1"
    known = os.environ.get("MASTER_ADDR")
    if not known:
        return socket.gethostname()
    if dist.get_rank() == 0:
        return known
    try:
        kind, *_, place = socket.getaddrinfo(known, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # sends nothing
            return probe.getsockname()[0]
    except OSError as problem:
        raise _unreachable(f"this host has no way to MASTER_ADDR {known}: "
                           f"{problem}") from problem


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


def _set_apart(owned):
    """Raises where two processes have one thing, of which each wants its own."""
    first = {}
    for rank, own in enumerate(owned):
        if own is not None and first.setdefault(own, rank) != rank:
            raise Error("DIL_USAGE", f"rank {first[own]} and rank {rank} are both "
                        f"on {own}: each rank of a ring wants a GPU of its own, "
                        "torch.cuda.set_device() says which")


def _as_error(problem):
    """The word of a process that cannot go on."""
    if isinstance(problem, Error):
        return {"error": str(problem), "status": problem.status}
    return {"error": f"{type(problem).__name__}: {problem}", "status": "DIL_USAGE"}


# ---- coming together ----------------------------------------------------------

_names = itertools.count()               # of the rings that this process opens
_come = weakref.WeakKeyDictionary()      # of groups: how often each rank has come


class _Door:
    """Rank 0 opens a ring and names it, when all have come to make it. A process
    that nobody joined goes again, so that it is never taken for one that comes to
    a later ring."""

    def __init__(self, store, group):
        self._store = store
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._times = _come.setdefault(group, dict.fromkeys(range(self._ranks), 0))

    def _key(self, what, rank):
        return f"dil ring/{what}/{rank}/{self._times[rank]}"

    def _told(self, rank, **word):
        self._store.set(self._key("named", rank), json.dumps(word))
        self._times[rank] += 1

    def _takes(self, rank):
        """Whether a rank is here to stay: one word decides who was first, rank 0
        that takes it or the rank that goes."""
        key = self._key("come", rank)
        return self._store.compare_set(key, "here", "taken") == b"taken"

    def open(self, timeout):
        """On rank 0."""
        name, others = str(next(_names)), range(1, self._ranks)
        coming = [self._key("come", rank) for rank in others]
        with contextlib.suppress(dist.DistStoreError):  # some may be absent
            if coming:
                self._store.wait(coming, datetime.timedelta(seconds=timeout))
        taken = [rank for rank in others if self._takes(rank)]
        if len(taken) == len(others):
            for rank in taken:
                self._told(rank, name=name)
            return name
        absent = ", ".join(str(rank) for rank in others if rank not in taken)
        text = (f"rank {absent} is silent: it has not come to make the ring "
                f"within {timeout:g} s")
        for rank in taken:
            self._told(rank, error=text)
        raise _unreachable(text)

    def come(self, timeout):
        """On any other rank."""
        mine, named = (self._key(x, self._rank) for x in ("come", "named"))
        self._store.set(mine, "here")
        seconds = datetime.timedelta(seconds=timeout)
        try:
            self._store.wait([named], seconds)
        except dist.DistStoreError:
            if self._store.compare_set(mine, "here", "gone") == b"gone":
                self._store.delete_key(mine)
                raise _unreachable(
                    f"rank 0 is silent: it has not opened the ring within "
                    f"{timeout:g} s, or waits for another rank") from None
            self._store.wait([named], seconds)  # taken: the name is on its way
        word = json.loads(self._store.get(named))
        self._times[self._rank] += 1
        for key in (mine, named):
            self._store.delete_key(key)
        if "error" in word:
            raise _unreachable(word["error"])
        return word["name"]


def _leave(store, place, rank, ranks, mine):
    """A ring has ended in this process. The last to leave takes with it what its
    processes have left in the store, since others may read it until then."""
    try:
        store.set(f"{place}/{rank}", json.dumps(mine))
        if store.add(place, 1) < ranks:
            return
        for one in [f"{place}/{other}" for other in range(ranks)]:
            for key in (*json.loads(store.get(one)), one):
                store.delete_key(key)
        store.delete_key(place)
    except (OSError, RuntimeError):  # the store went first, with all of it
        pass


# ---- rounds -------------------------------------------------------------------


class Agreement:
    """The rounds of a ring's processes. They make theirs together, within
    `timeout` seconds."""

    def __init__(self, group, timeout):
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._group, self._timeout, self._round = group, timeout, 0
        self._store, self._mine = _store_of(group), []  # keys, to be deleted
        with _asking("a ring cannot be made"):
            door = _Door(self._store, group)
            self._name = (door.come if self.rank else door.open)(timeout)
        weakref.finalize(self, _leave, self._store, self._key("left"), self.rank,
                         self.ranks, self._mine).atexit = False

    def wait(self, timeout):
        """From now on for so many seconds."""
        self._timeout = timeout

    def _key(self, *parts):
        return "/".join(("dil ring", self._name, *map(str, parts)))

    def _put(self, key, text):
        self._mine.append(key)
        self._store.set(key, text)

    def _words(self):
        keys = [self._key(self._round, rank) for rank in range(self.ranks)]
        try:
            self._store.set_timeout(datetime.timedelta(seconds=self._timeout))
            said = self._store.multi_get(keys)
        except dist.DistStoreError as problem:
            silent = [str(rank) for rank, key in enumerate(keys)
                      if not self._store.check([key])]
            if not silent:
                raise  # they came just now, and this process has waited enough
            raise _unreachable(
                f"rank {', '.join(silent)} is silent: it has not come to call "
                f"{self._round} of the ring within {self._timeout:g} s"
            ) from problem
        # All are in this round: nobody reads what was said before it.
        while self._mine[0] != keys[self.rank]:
            self._store.delete_key(self._mine.pop(0))
        return [json.loads(word) for word in said]

    def _say(self, **said):
        self._round += 1
        with _asking("a ring's processes cannot agree"):
            self._put(self._key(self._round, self.rank), json.dumps(said))

    def reach(self, word, ready=True, offer=None, own=None):
        """Whether all are `ready`, and what rank 0 offers, in a round where all
        say the same word, and none has the `own` of another. It raises on all
        where one process refuses or says another word."""
        self._say(word=word, ready=ready, offer=offer, own=own)
        with _asking("a ring's processes cannot agree"):
            said = self._words()
        _compare([one["word"] for one in said], self.rank)
        _set_apart([one["own"] for one in said])
        return all(one["ready"] for one in said), said[0]["offer"]

    def refuse(self, problem):
        """This process's turn in a round where it cannot go on."""
        self._say(word=_as_error(problem), ready=False, own=None)

    def meeting(self):
        """Where dil's own links meet: a port of the host of rank 0, which
        chooses it."""
        key = self._key("meeting", self._round)
        with _asking("rank 0 does not say where the ring's links meet"):
            if self.rank == 0:
                self._put(key, f"{_host(self._group)}:{_free_port()}")
            return self._store.get(key).decode()
