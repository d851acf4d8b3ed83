"""For an argument that does not pickle, both kernels raise Parsl's SerializationError. hotlease's kernel accepts only a
HotleaseExecutor."""

import parsl
from parsl.config import Config
from parsl.executors import ThreadPoolExecutor

import hotlease.parsl


@parsl.python_app
def f(x, y=0):
    return x


def error_of(future):
    error = future.exception()
    return type(error).__name__, type(error.__cause__).__name__


def shown():
    print(*error_of(f(each for each in ())), *error_of(f(1, y=(each for each in ()))), f(3).result())
    failed = f(f(each for each in ())).exception()
    print(type(failed).__name__, type(failed.__cause__).__name__)


for executors in ([ThreadPoolExecutor()], [ThreadPoolExecutor(working_dir="/scratch")]):
    try:
        hotlease.parsl.load(Config(executors=executors))
    except parsl.errors.ConfigurationError as error:
        print("refused", "threads (ThreadPoolExecutor)" in str(error))
with hotlease.parsl.load(Config(usage_tracking=0), max_workers=1):
    shown()
parsl.clear()
with parsl.load(Config(executors=[hotlease.parsl.HotleaseExecutor(max_workers=1)])):
    shown()

# Prints:
# refused True
# refused True
# SerializationError TypeError SerializationError TypeError 3
# DependencyError SerializationError
# SerializationError TypeError SerializationError TypeError 3
# DependencyError SerializationError
