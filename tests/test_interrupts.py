"""SIGTERM ends a block as Ctrl-C would, whatever stands in its way."""

import ctypes
import os
import signal
import time

import pytest

from mirrormax._interrupts import Terminated, terminable


def tell():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0)


def tell_and_wait(through=tell):
    through()
    for _ in range(100):
        time.sleep(0.1)


def test_sigterm_raises_and_the_default_comes_back():
    with pytest.raises(Terminated), terminable():
        tell_and_wait()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_exception_that_c_code_cannot_pass_on_comes_again():
    """As where numba compiles: llvm calls back into Python, and what that raises is dropped."""
    with pytest.raises(Terminated), terminable():
        tell_and_wait(ctypes.CFUNCTYPE(None)(tell))


def test_a_library_that_exits_on_the_signal_is_no_success():
    def exit_on_it():
        try:
            tell()
        except Terminated:
            raise SystemExit from None

    with pytest.raises(Terminated), terminable():
        exit_on_it()


def test_an_exit_without_the_signal_stays_an_exit():
    with pytest.raises(SystemExit), terminable():
        raise SystemExit(2)
