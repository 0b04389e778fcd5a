"""For tests of programs that use fencepost: a clock that is moved by hand."""

from fencepost.testing.clock import VirtualClock

__all__ = ["VirtualClock"]
