"""Objects that `functools` makes from the program's functions are sent to workers and back."""


def test_functions_wrapped_by_functools_run_on_workers(output):
    script = """
        import functools
        import hotlease

        ran = 0

        @functools.cache
        def double(n):
            global ran
            ran += 1
            return 2 * n

        @functools.lru_cache(maxsize=3, typed=True)
        def limited(n):
            return n

        @functools.singledispatch
        def kind(value):
            return "any"

        @kind.register
        def _(value: int):
            return "int"

        kind.register(str, lambda value: "str")

        class Ring:
            @functools.cached_property
            def area(self):
                return 12

            @functools.singledispatchmethod
            def of(self, value):
                return "any"

            @of.register
            def _(self, value: int):
                return "int"

            def plain(self, n):
                return n

            three = functools.partialmethod(plain, 3)

            @functools.lru_cache
            def kept(self):
                return "kept"

        def traced(function):
            @functools.wraps(function)
            def trace(*args):
                return "traced", function(*args)
            return trace

        @traced
        def work(n):
            return n + 1

        def uses(n):
            return double(n) + 1, kind(1), kind("a"), kind(None), limited.cache_parameters()

        def ring(ring):
            return ring.area, ring.area, ring.of(1), ring.of("a"), ring.three(), ring.kept()

        def runs():
            return ran, double.cache_info().currsize

        with hotlease.Executor(1) as executor:
            print(executor.submit(double, 10).result(), executor.submit(double, 10).result(), executor.submit(runs).result())
            print(executor.submit(kind, 1).result(), executor.submit(kind, None).result())
            print(executor.submit(getattr, Ring(), "area").result(), executor.submit(work, 1).result())
            print(executor.submit(uses, 3).result(), executor.submit(runs).result())
            print(executor.submit(ring, Ring()).result())
            returned = executor.submit(lambda: (double, kind, limited)).result()
            print(returned[0] is double, returned[1] is kind, returned[2] is limited)
    """
    assert output(script) == [
        "20 20 (1, 1)",
        "int any",
        "12 ('traced', 2)",
        "(7, 'int', 'str', 'any', {'maxsize': 3, 'typed': True}) (2, 2)",
        "(12, 12, 'int', 'any', 3, 'kept')",
        "True True True",
    ]
