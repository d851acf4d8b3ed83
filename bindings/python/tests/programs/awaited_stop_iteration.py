"""A task that raises StopIteration is awaited: no coroutine can raise it."""

import asyncio

import hotlease


def first():
    return next(iter([]))


async def main():
    with hotlease.Executor(1) as executor:
        try:
            await asyncio.wait_for(executor.submit(first), 30)
        except Exception as error:
            print(type(error).__name__, "because of", type(error.__cause__).__name__)


asyncio.run(main())

# Prints:
# RuntimeError because of StopIteration
