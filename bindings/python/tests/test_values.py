"""Functions, classes and globals of the program are sent to workers and back: each process has one object of each."""

import sys

import pytest


def test_a_result_of_the_programs_class_leaves_the_class_as_it_is(output):
    script = """
        import hotlease

        scale, count = 1, 0

        class Point:
            made = 0

            def __init__(self, x):
                self.x = x

            def scaled(self):
                return scale * self.x

            def tally(self):
                global count
                count += 1

        def make(x):
            return Point(x)

        with hotlease.Executor(1) as executor:
            future = executor.submit(make, 5)
            Point.made, scale = 7, 10
            point = future.result()
        print(type(point) is Point, Point.made, point.scaled(), Point(5).scaled())
        point.tally(), Point(1).tally()
        print(count)
    """
    assert output(script) == ["True 7 50 50", "2"]


def test_results_have_the_programs_own_classes_functions_and_globals(output):
    script = """
        import abc, collections, dataclasses, enum, functools, typing
        import hotlease

        step = 1

        class Color(enum.Enum):
            RED = 1
            GREEN = "green"

        class Flags(enum.Flag):
            A = 1
            B = 2

        @dataclasses.dataclass(frozen=True)
        class Pair:
            left: int
            right: list = dataclasses.field(default_factory=list)

        Named = collections.namedtuple("Named", "a b")

        class Typed(typing.NamedTuple):
            a: int

        class Base(abc.ABC):
            known = []

            def __init_subclass__(cls):
                Base.known.append(cls)

            @abc.abstractmethod
            def run(self): ...

        class Derived(Base):
            __slots__ = ("n",)

            def run(self):
                return __class__ is Derived and step

        class Failed(Exception):
            pass

        class Outer:
            class Inner:
                pass

            def method(self):
                return step

        def helper():
            return step

        def adder(n):
            def add(m):
                return n + m + step
            return add

        def counter():
            global step
            step += 1
            return step

        def everything():
            return (
                Color.RED, Flags.A | Flags.B, Pair(1), Named(1, 2), Typed(3), Derived(), Outer.Inner(), helper, counter,
                functools.partial(helper), adder(10), lambda: step, Outer().method, Color, Outer.method,
            )

        def fail():
            raise Failed("no")

        with hotlease.Executor(1) as executor:
            got = executor.submit(everything).result()
            error = executor.submit(fail).exception()
        step = 100
        red, flags, pair, named, typed, derived, inner, own, count, partial, add, anonymous, bound, kind, plain = got
        print(red is Color.RED, flags is Flags.A | Flags.B, pair == Pair(1), type(pair) is Pair, type(named) is Named, type(typed) is Typed)
        print(type(derived) is Derived, Base.known == [Derived], derived.run(), type(inner) is Outer.Inner, type(error) is Failed)
        print(own is helper, count is counter, partial.func is helper, kind is Color, plain is Outer.method)
        print(add(1), anonymous(), bound(), type(bound.__self__) is Outer)
        count()
        print(step, helper(), add(1), anonymous())
    """
    assert output(script) == [
        "True True True True True True",
        "True True 100 True True",
        "True True True True True",
        "111 100 100 True",
        "101 101 112 101",
    ]


def test_a_function_that_the_program_has_replaced_comes_back_as_it_was_sent(output):
    script = """
        import hotlease

        def f():
            return "first"

        def get():
            return f

        with hotlease.Executor(1) as executor:
            future = executor.submit(get)

            def f():
                return "second"

            print(future.result()(), f(), executor.submit(get).result() is f)
    """
    assert output(script) == ["first second True"]


def test_a_worker_keeps_one_of_each_class_and_its_caches(output):
    script = """
        import hotlease

        class Model:
            cache = {}
            loads = 0

            def __init__(self, name):
                self.name = name

            def load(self):
                if self.name not in Model.cache:
                    Model.loads += 1
                    Model.cache[self.name] = self.name.upper()
                return Model.loads

        def load(model):
            return model.load(), type(model) is Model

        def loads():
            return Model.loads, sorted(Model.cache)

        with hotlease.Executor(1) as executor:
            print([executor.submit(load, Model(name)).result() for name in "aabba"])
            print(executor.submit(loads).result(), executor.submit(Model.load, Model("a")).result())
            print(Model.loads, Model.cache)
            Model.cache = {"c": "C"}
            print(executor.submit(load, Model("c")).result(), executor.submit(loads).result())
    """
    assert output(script) == [
        "[(1, True), (1, True), (2, True), (2, True), (2, True)]",
        "(2, ['a', 'b']) 2",
        "0 {}",
        "(0, True) (0, ['c'])",
    ]


def test_functions_of_the_program_share_their_globals_in_a_worker(output):
    script = """
        import hotlease

        cache = {}
        alias = cache
        total = 0
        model = None

        class Config:
            level = 1

        class Solver:
            def __init__(self, config):
                self.config = config

            def add(self, n):
                global total
                total += n
                cache[n] = n
                return total

        config = Config()
        solver = Solver(config)

        def init():
            global model, made
            model, made = "loaded", "made"

        def add(n):
            return solver.add(n)

        def look():
            return total, sorted(cache), alias is cache, model, made

        def change(level):
            config.level = level
            return solver.config.level

        def level():
            return solver.config.level

        with hotlease.Executor(1, initializer=init) as executor:
            print(executor.submit(add, 1).result(), executor.submit(look).result())
            print(executor.submit(add, 2).result(), executor.submit(look).result())
            print(executor.submit(change, 5).result(), executor.submit(level).result())
            config.level = 9
            print(executor.submit(level).result())
            print(total, cache, model)
    """
    assert output(script) == [
        "1 (1, [1], True, 'loaded', 'made')",
        "3 (3, [1, 2], True, 'loaded', 'made')",
        "5 5",
        "9",
        "0 {} None",
    ]


def test_each_task_sees_the_program_as_it_was_when_it_was_submitted(output):
    script = """
        import hotlease

        factor = 1

        class Config:
            level = 1

        def helper():
            return factor

        def f(n):
            return n * factor, helper(), Config.level

        def g(n):
            return n + factor

        with hotlease.Executor(1) as executor:
            futures = []
            for factor in (1, 3, 1, 3, 2):
                Config.level = factor
                futures += [executor.submit(f, 1), executor.submit(g, 1)]
            factor = 100
            print([future.result() for future in futures])
    """
    expected = [value for n in (1, 3, 1, 3, 2) for value in ((n, n, n), n + 1)]
    assert output(script) == [str(expected)]


def test_classes_that_need_each_other_arrive(output):
    script = """
        import hotlease

        class Node:
            kinds = []
            def child(self):
                return Leaf(self)

        class Leaf(Node):
            def __init__(self, parent=None):
                self.parent = parent
            def up(self):
                return type(self.parent) is Node and isinstance(self, Node)

        class Meta(type):
            def __call__(cls, *args):
                made = super().__call__(*args)
                made.by = cls.__name__
                return made

        class Made(metaclass=Meta):
            pass

        Node.kinds += [Node, Leaf]
        Node.first = Leaf()
        table = {"self": None}
        table["self"] = table

        def look(node):
            return node.child().up(), Node.kinds == [Node, Leaf], type(Node.first) is Leaf, Made().by, table["self"] is table

        with hotlease.Executor(1) as executor:
            print(executor.submit(look, Node()).result())
            # The result of one task goes to the other without the program.
            made = executor.submit(Node)
            print(executor.submit(look, made).result(), executor.submit(type, made).result() is Node)
    """
    assert output(script) == ["(True, True, True, 'Made', True)", "(True, True, True, 'Made', True) True"]


def test_joblib_and_dask_return_the_programs_own_classes(output):
    pytest.importorskip("joblib")
    pytest.importorskip("dask")
    script = """
        import dask, joblib
        import hotlease.dask, hotlease.joblib

        count = 0

        class Point:
            made = 0
            def tally(self):
                global count
                count += 1

        def make():
            return Point()

        with joblib.parallel_config(backend="hotlease"):
            points = joblib.Parallel(n_jobs=2)(joblib.delayed(make)() for _ in range(3))
        Point.made = 3
        points.append(dask.delayed(make)().compute(scheduler="hotlease"))
        [point.tally() for point in points]
        print(all(type(point) is Point for point in points), Point.made, count)
    """
    assert output(script) == ["True 3 4"]


def test_a_checkpoint_holds_results_of_the_programs_classes(output):
    script = """
        import hotlease

        class Point:
            def __init__(self, x):
                self.x = x

        def make(x):
            open("ran", "a").write("x")
            return Point(x)

        options = hotlease.ExecutorOptions(checkpoint="kept", memo=True)
        with hotlease.Executor(1, options=options) as executor:
            point = executor.submit(make, 5).result()
        print(type(point) is Point, point.x, open("ran").read())
    """
    assert output(script) == ["True 5 x"]
    assert output(script) == ["True 5 x"]


def test_a_class_that_is_only_an_annotation_or_an_owner_is_sent_as_it_is(output):
    script = """
        import hotlease

        class Settings:
            level = 1
            calls = []

            def look(self):
                Settings.calls.append(1)
                return Settings.level, len(Settings.calls)

            @staticmethod
            def level_of():
                return Settings.level

        def annotated(settings: Settings):
            return settings.look()

        with hotlease.Executor(1) as executor:
            for level in (1, 1, 2, 1):
                Settings.level = level
                print(executor.submit(annotated, Settings()).result(), executor.submit(Settings.look, Settings()).result())
                print(executor.submit(Settings.level_of).result())
    """
    # A class with other content is a different class, and starts with its initial values.
    expected = ["(1, 1) (1, 2)", "1", "(1, 3) (1, 4)", "1", "(2, 1) (2, 2)", "2", "(1, 1) (1, 2)", "1"]
    assert output(script) == expected


def test_classes_that_no_task_keeps_arrive_again_and_again(output):
    script = """
        import gc
        import hotlease

        class Inner:
            pass

        def local(n):
            class Local:
                inner = Inner()
                number = n
            return Local

        def look(local):
            gc.collect()
            return local.number, type(local.inner) is Inner

        with hotlease.Executor(1) as executor:
            one = local(-1)
            for n in range(1100):
                assert executor.submit(look, local(n)).result() == (n, True)
                if n % 500 == 0:
                    assert executor.submit(look, one()).result() == (-1, True)
            print(executor.submit(look, one()).result())
    """
    assert output(script) == ["(-1, True)"]


def test_an_open_file_is_refused_in_both_directions(executor, tmp_path):
    path = tmp_path / "file"
    path.write_text("text\n")
    with open(path) as file:
        with pytest.raises(TypeError, match="an open file .*pass its path"):
            executor.submit(str, file).result(60)
    # cloudpickle would send a `StringIO` instead.
    with pytest.raises(TypeError, match="cannot pickle"):
        executor.submit(open, str(path)).result(60)
    assert executor.submit(lambda: sys.stdout is not None).result(60)
