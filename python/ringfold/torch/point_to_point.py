"""torch's point-to-point messages.

A receive takes the oldest message from its peer that has its tag, and does not wait for
collectives. Sends and receives start at once. Their order within a rank does not affect the
matching, except for messages with the same peer and tag.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ringfold.torch.issue import Call, Issuer
from ringfold.torch.options import Terms
from ringfold.torch.tensors import listed, moved


class PointToPoint:
    """A mixin of both process group classes, beside `Collectives`."""

    _issuer: Issuer
    _call: Callable[[str, Terms], Call]
    _timeout_s: float

    def send(self, tensors: Any, dst: int, tag: int = 0) -> dist.Work:
        """Start to send the tensors to rank `dst` of this group. The tensors must not be written
        until the work is done.
        """
        call = self._call("send", Terms(True, self._timeout_s))
        for tensor in listed(tensors):
            call.ask(moved(tensor), tensor.numel(), call.source(tensor), None, root=dst, tag=tag)
        return self._issuer.issue(call)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> dist.Work:
        """Start to fill the tensors with data from rank `src`; type and size must be the same at
        both ends.
        """
        return self._receive(tensors, src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        """Start to fill the tensors with data from any rank; the work's `source_rank` is the
        sender.
        """
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Any, src: int | None, tag: int) -> dist.Work:
        call = self._call("recv", Terms(True, self._timeout_s))
        for tensor in listed(tensors):
            call.ask(moved(tensor), tensor.numel(), None, call.target(tensor), root=src, tag=tag)
            call.outputs.append(tensor)
        return self._issuer.issue(call)
