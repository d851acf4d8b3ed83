"""A module with a state, as a tenant's would be. What it does when it is saved and restored, the state says itself."""

import sys
import time

import hotlease

_state = "nothing"


def put(text):
    global _state
    _state = text


def get():
    return _state


def _save():
    if _state == "saves badly":
        raise ValueError("it cannot be written")
    if _state == "saves for ever":
        time.sleep(600)
    if _state == "saves a number":
        return 7
    if _state == "is large":
        return bytes(192 << 20)
    if _state == "prints":
        print("saving", file=sys.stderr)
    return _state.encode()


def _restore(saved):
    text = saved[:64].decode()
    if text == "restores badly":
        raise ValueError("it cannot be read")
    if text == "restores for ever":
        time.sleep(600)
    put("was large" if len(saved) > 64 else text)


hotlease.state(save=_save, restore=_restore)
