"""No iterator of hotlease keeps a reference to a result that it has returned."""

import weakref

import hotlease


class Result:
    pass


def result(_):
    return Result()


def is_gone(results):
    gone = []
    for each in results:
        reference = weakref.ref(each)
        del each
        gone.append(reference() is None)
    return gone


with hotlease.Executor(1) as executor:
    print(is_gone(executor.map(result, range(3))))
    print(is_gone(executor.map(result, range(3), buffersize=1)))
    print(is_gone(executor.map(result, range(5), chunksize=2)))
    print(is_gone(executor.map(result, range(5), chunksize=2, buffersize=1)))
    print(is_gone(executor.map(result, range(3), progress=True)))

# Prints:
# [True, True, True]
# [True, True, True]
# [True, True, True, True, True]
# [True, True, True, True, True]
# [True, True, True]
