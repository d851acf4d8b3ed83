"""Log records of tasks reach the program's loggers."""

import logging
import os
import re
import time

import pytest
import talking
import tasks

import hotlease


@pytest.fixture
def all_levels(caplog):
    caplog.set_level(logging.DEBUG)
    return caplog


def test_records_go_to_the_program_s_loggers(platform, all_levels):
    with hotlease.Executor(1) as executor:
        executor.submit(talking.log_levels, "some.name").result(60)
        executor.submit(talking.log_levels, "other").result(60)
    records = [record for record in all_levels.records if record.name == "some.name"]
    assert [(record.levelno, record.getMessage()) for record in records] == [
        (logging.DEBUG, "debug 1"),
        (logging.INFO, "info odd"),
        (logging.WARNING, "100 %"),
        (35, "between"),
        (logging.ERROR, "it went wrong"),
    ]
    warning, error = records[2], records[4]
    assert (warning.function, warning.worker, warning.processName) == ("log_levels", 0, "log_levels worker 0")
    assert (warning.weight, warning.what) == (2.5, "<odd>")
    assert (warning.filename, warning.module, warning.funcName) == ("talking.py", "talking", "log_levels")
    assert warning.pathname == talking.__file__ and warning.process != os.getpid()
    assert abs(warning.created - time.time()) < 60 and 0 <= warning.msecs < 1000
    assert "KeyError: 'missing'" in logging.Formatter().format(error)


def test_the_program_s_configuration_decides_which_records_are_seen(platform, all_levels, monkeypatch):
    monkeypatch.setattr(logging.getLogger("less"), "level", logging.ERROR)
    monkeypatch.setattr(logging.getLogger("less"), "_cache", {})
    with hotlease.Executor(1) as executor:
        executor.submit(talking.log_levels, "less").result(60)
        assert [record.levelno for record in all_levels.records if record.name == "less"] == [logging.ERROR]
    all_levels.clear()
    all_levels.set_level(logging.WARNING)
    with hotlease.Executor(1) as executor:
        executor.submit(talking.log_levels, "more").result(60)
    assert [record.levelno for record in all_levels.records if record.name == "more"] == [30, 35, 40]


def test_records_that_are_odd_or_many(platform, all_levels, capsys):
    with hotlease.Executor(1) as executor:
        executor.submit(talking.log_oddly).result(60)
        (record,) = (record for record in all_levels.records if record.name.startswith("odd"))
        assert record.name == r"odd \udc80" and record.getMessage().startswith(r"a lone one: \udc80, and much: xx")
        assert 8_000 < len(record.getMessage()) < 9_000
        all_levels.clear()
        executor.submit(talking.log_much, 5_000).result(60)
        numbers = [int(record.getMessage().split()[1]) for record in all_levels.records if record.name == "much"]
        assert numbers[0] == 0 and numbers[-1] == 4_999 and 100 < len(numbers) < 600
        assert re.search(r"^\[log_much worker 0\] \.\.\. \d+ bytes \.\.\.$", capsys.readouterr().out, re.M)
        executor.submit(talking.log_wrongly).result(60)
        assert "TypeError" in capsys.readouterr().err, "logging's own complaint"


def test_a_worker_that_configures_logging_has_it_as_it_says(platform, all_levels, capsys):
    with hotlease.Executor(1) as executor:
        executor.submit(talking.configure_and_log).result(60)
    assert capsys.readouterr().err == "[configure_and_log worker 0] configured: by its own hand\n"
    assert not [record for record in all_levels.records if record.name == "mine"]


def test_a_handler_that_logs_of_its_own_tasks_and_submits_more(platform, capsys):
    class Handler(logging.Handler):
        def emit(self, record):
            seen.append((record.getMessage(), executor.submit(tasks.add, 1, 1).result(60)))

    seen, handler = [], Handler()
    with hotlease.Executor(1) as executor:
        logging.getLogger("asks").addHandler(handler)
        try:
            for _ in range(20):
                executor.submit(talking.log_levels, "asks").result(60)
        finally:
            logging.getLogger("asks").removeHandler(handler)
    assert seen == [(text, 2) for text in ("100 %", "between", "it went wrong")] * 20
