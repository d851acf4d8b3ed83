"""A Parsl program, which test_parsl_load.py runs on Parsl's kernel and on hotlease's."""

import concurrent.futures
import pathlib

import parsl
from parsl import Config, File, bash_app, join_app, python_app


@python_app
def add(a, b=0):
    return a + b


@python_app
def count_words(inputs=(), outputs=()):
    with open(inputs[0]) as text, open(outputs[0], "w") as out:
        out.write(str(len(text.read().split())))


@python_app
def divide(a, b):
    return a / b


@python_app(cache=True)
def square(n):
    return n * n


@bash_app
def write(text, outputs=(), stdout="log"):
    return f"echo {text} > {outputs[0]}; echo wrote {text}"


@bash_app
def leave(code):
    return f"exit {code}"


@join_app
def squares(numbers):
    return [square(n) for n in numbers]


@python_app
def add_all(numbers, inputs=()):
    return sum(inputs) if inputs else sum(numbers)


@join_app
def tree(inputs=()):
    if len(inputs) == 1:
        return add(inputs[0])
    half = len(inputs) // 2
    return add(tree(inputs=inputs[:half]), tree(inputs=inputs[half:]))


def tell(name, future):
    try:
        print(name, future.result(), future.task_status())
    except Exception as error:
        print(name, type(error).__name__, error, type(error.__cause__).__name__, future.task_status())
        for needed, text in getattr(error, "dependent_exceptions_tids", ()):
            print("   ", type(needed).__name__, text)


with parsl.load(Config(retries=1)):
    tell("plain", add(1, 2))
    total = add(0)
    for n in range(200):
        total = add(total, b=n)
    tell("chain", total)
    numbers = [add(n) for n in range(50)]
    tell("inputs", add_all([], inputs=numbers))
    print("all", sorted(future.result() for future in concurrent.futures.as_completed(numbers))[-1])
    bad = divide(1, 0)
    tell("raises", bad)
    needs = add(bad, 1)
    tell("needs", needs)
    both = add(needs, bad)
    tell("needs both", both)
    far = add_all([], inputs=[add(1), both])
    tell("needs far", far)
    tell("bash fails", leave(7))
    text = write("one two three", outputs=[File("words")])
    tell("bash", text)
    counted = count_words(inputs=[text.outputs[0]], outputs=[File("counted")])
    print("file", pathlib.Path(counted.outputs[0].result().filepath).read_text(), pathlib.Path("log").read_text().split())
    print("promises", text.outputs[0].filename, text.stdout, counted.outputs[0].tid == counted.tid)
    print("memo", [square(4).result() for _ in range(3)])
    joined = squares([1, 2, 3])
    tell("join of a list", joined)
    tell("join of joins", tree(inputs=list(range(9))))
    tell("item", joined[2])
    tell("attribute", add(3 + 4j).imag)
    tell("nested", add([add(1).result()], [2]))
    parsl.wait_for_current_tasks()
    print("loaded", parsl.dfk().config.retries, parsl.dfk().task_count > 0)
parsl.clear()
try:
    add(1)
except Exception as error:
    print(type(error).__name__)
