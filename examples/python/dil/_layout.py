"""_layout.py - how the rows of a call lie: documents packed one after the other
(offsets_q, offsets_k), or a cache of pages. In: arrays, tensors or lists. Out: what
dil takes, with the rows of the longest document where the host can look.
"""

import operator
from typing import NamedTuple

from ._c import Error


class Layout(NamedTuple):
    offsets_q: object = None
    offsets_k: object = None
    longest_q: int = 0
    longest_k: int = 0
    pages: object = None

    def offsets(self):
        """Of a packed call, as the argument names of dil's host."""
        return {} if self.offsets_q is None else dict(
            zip(self._fields[:-1], self))

    def tensors(self):
        """Name and tensor of those that are there."""
        return [(name, getattr(self, name))
                for name in ("offsets_q", "offsets_k", "pages")
                if getattr(self, name) is not None]


PLAIN = Layout()
_MOST = 2 ** 63 - 1  # rows


def counted(offsets, said):
    """The rows of the longest document: 0 stands for those of the offsets, where
    a processor may read them. dil says what is wrong with offsets."""
    shape = getattr(offsets, "shape", ())
    if (said or getattr(offsets, "is_cuda", False) or len(shape) != 1
            or shape[0] < 2):
        return said
    return max(0, int((offsets[1:] - offsets[:-1]).max()))


def _longest(name, offsets, said):
    """What was said, which may be a tensor of one integer, or what a list of
    offsets says; 0: see counted."""
    if said is None:
        if isinstance(offsets, (list, tuple, range)):
            return max((b - a for a, b in zip(offsets, offsets[1:])), default=0)
        if getattr(offsets, "is_cuda", False):
            raise Error("DIL_USAGE", f"{name}, the rows of the longest document, "
                        "must be given where offsets are on a GPU: the host does "
                        "not look at them there")
        return 0
    try:
        rows = said if isinstance(said, int) else operator.index(said)
    except TypeError:
        raise Error("DIL_USAGE", f"{name} must be an integer, got {said!r}"
                    ) from None
    if rows > _MOST:
        raise Error("DIL_USAGE", f"{name} must be an integer of at most {_MOST}, "
                    f"got {rows}")
    return rows


def layout(convert, offsets_q, offsets_k, longest_q, longest_k, pages):
    """The layout of a call. convert(name, x): x as int32 beside q."""
    if offsets_q is None:
        for name, given in (("offsets_k", offsets_k), ("longest_q", longest_q),
                            ("longest_k", longest_k)):
            if given is not None:
                raise Error("DIL_USAGE", f"{name} is given, and offsets_q is not")
        return PLAIN if pages is None else Layout(pages=convert("pages", pages))
    longest = (_longest("longest_q", offsets_q, longest_q),
               _longest("longest_k", offsets_k, longest_k))
    return Layout(convert("offsets_q", offsets_q),
                  None if offsets_k is None else convert("offsets_k", offsets_k),
                  *longest, None if pages is None else convert("pages", pages))
