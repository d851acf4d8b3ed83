"""Resources of tasks beyond their sandbox. On nodes that cannot make sandboxes, these tests are skipped with the
reason."""

import os
import tempfile

import pytest

import hotlease

from conftest import end


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as path:
        if os.geteuid() == 0:
            # The folder gets another owner, because code in a sandbox cannot write root's files.
            os.chown(path, 54321, 54321)
        yield path


def _executor(kind="namespace", **options):
    if os.environ.get("HOTLEASE_TRANSPORT"):
        pytest.skip("a worker without a network is reached through shared memory only")
    try:
        return hotlease.Executor(1, options=hotlease.ExecutorOptions(sandbox=kind, **options))
    except hotlease.Error as error:
        if "no sandbox of kind" not in str(error):
            raise
        pytest.skip(str(error))


def _write(path):
    with open(path, "w") as file:
        file.write("made")
    return os.stat(path).st_uid, os.getuid()


@pytest.mark.parametrize("kind", ["namespace", "container"])
def test_a_task_writes_into_a_directory_that_its_lease_declares(platform, folder, kind):
    executor = _executor(kind, mounts=[f"{folder}:/data:rw"])
    owner, user = executor.submit(_write, "/data/file").result(60)
    assert owner == user
    assert executor.cold_start().why.startswith("it reaches directories")
    end(executor)
    with open(os.path.join(folder, "file")) as file:
        assert file.read() == "made"
    assert os.stat(os.path.join(folder, "file")).st_uid == os.stat(folder).st_uid
    # The next worker, a spare or a new one, does not see the directory.
    executor = _executor(kind)
    assert not executor.submit(os.path.exists, "/data").result(60)
    end(executor)


def test_a_directory_is_read_only_unless_writing_was_requested(platform, folder):
    executor = _executor(mounts=[folder])
    with pytest.raises(OSError, match="Read-only"):
        executor.submit(_write, os.path.join(folder, "file")).result(60)
    end(executor)


def test_an_unreachable_directory_is_refused_by_name(platform, folder):
    end(_executor())
    with pytest.raises(hotlease.Error, match=f"may not reach {folder}/missing"):
        _executor(mounts=[f"{folder}/missing"])
    with pytest.raises(hotlease.Error, match="--sandbox-network"):
        _executor(network=True)
    with pytest.raises(ValueError, match="absolute"):
        _executor(mounts=["scratch"])
    with pytest.raises(TypeError, match="list"):
        _executor(mounts="/scratch")


def test_a_gang_in_sandboxes_without_a_network_says_which_option_it_lacks(platform):
    end(_executor())
    with pytest.raises(ValueError, match="network=True"):
        hotlease.Gang(2, options=hotlease.ExecutorOptions(sandbox="namespace"))
