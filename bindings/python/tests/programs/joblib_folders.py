"""joblib's tasks run in the program's working directory, even after an earlier working directory was removed."""

import os
import tempfile

import joblib

import hotlease.joblib


def folders():
    return set(joblib.Parallel()(joblib.delayed(os.getcwd)() for _ in range(8)))


home = os.getcwd()
with joblib.parallel_config(backend="hotlease", n_jobs=2):
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(folders() == {os.path.realpath(folder)})
        os.chdir(home)
    print(folders() == {home})
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(folders() == {os.path.realpath(folder)})
    # The program's working directory was removed, so tasks cannot get its name. They still run.
    print(joblib.Parallel()(joblib.delayed(abs)(-n) for n in range(3)))
    os.chdir(home)
    print(folders() == {home})

# Prints:
# True
# True
# True
# [0, 1, 2]
# True
