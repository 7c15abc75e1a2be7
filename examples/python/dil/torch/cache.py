"""Keys and values of earlier calls, for decoding row by row."""

import torch


class KeyValueCache:
    """Keys [B, M, H, D] and values [B, M, H, Dv] that grow at the end by what
    `append` is given; one cache for each layer. ValueError where the batch or the
    dtype changes, or where gradients are wanted.

    Room doubles, so that M steps copy M rows a few times and not M * M / 2.
    `center` is the position that XPos counts from, fixed by the first call.
    """

    def __init__(self):
        self.length, self.center = 0, None
        self._keys = self._values = None

    def __len__(self):
        return self.length

    def place(self, rows):
        """The position of the next row, and the center for XPos."""
        if self.center is None:
            self.center = rows // 2
        return self.length, self.center

    @staticmethod
    def _grown(old, new, length, room):
        x = new.new_empty((new.shape[0], room, *new.shape[2:]))
        if old is not None:
            x[:, :length] = old[:, :length]
        return x

    def append(self, k, v):
        """Adds rows and returns all keys and values so far."""
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ValueError("a KeyValueCache is for decoding, without "
                             "gradients: call the model under torch.no_grad()")
        end = self.length + k.shape[1]
        held = self._keys
        if held is not None and (held.shape[0] != k.shape[0]
                                 or held.dtype != k.dtype):
            raise ValueError(f"the cache holds {self._keys.shape[0]} rows of "
                             f"the batch in {self._keys.dtype}, got "
                             f"{k.shape[0]} in {k.dtype}: begin a new cache")
        if self._keys is None or end > self._keys.shape[1]:
            room = max(end, 2 * self.length, 64)
            self._keys = self._grown(self._keys, k, self.length, room)
            self._values = self._grown(self._values, v, self.length, room)
        self._keys[:, self.length:end] = k
        self._values[:, self.length:end] = v
        self.length = end
        return self._keys[:, :end], self._values[:, :end]
