"""A map pickles its function, and the globals that the function uses, only once, and not for each call."""

import hotlease

pickled = []


class Factor:
    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        pickled.append(self.value)
        return Factor, (self.value,)


def scaled(number):
    return factor.value * number


factor = Factor(2)
with hotlease.Executor(1) as executor:
    print(sum(executor.map(scaled, range(100))), pickled)
    factor = Factor(3)
    print(sum(executor.map(scaled, range(100))), pickled)
    later = executor.map(scaled, range(4), buffersize=1)
    first = next(later)
    factor = Factor(5)
    print([first, *later], executor.submit(scaled, 1).result())

# Prints:
# 9900 [2]
# 14850 [2, 3]
# [0, 3, 6, 9] 5
