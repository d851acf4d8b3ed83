"""Object storage of a lease, through boto3. Without a store, or without sandboxes, these tests are skipped with the
reason."""

import contextlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

import hotlease
from hotlease import _programs

from conftest import end

boto3 = pytest.importorskip("boto3")

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_OWN = f"uid:{os.geteuid()}"


def _stores():
    """Returns the benchmarks' module that starts stores."""
    spec = importlib.util.spec_from_file_location("stores", _ROOT / "bench/cases/stores.py")
    stores = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stores)
    return stores


@pytest.fixture(scope="module")
def granted():
    """A separate platform, whose agent grants a prefix of a bucket; returns the site's secret and the runtime
    directory."""
    stores = _stores()
    with contextlib.ExitStack() as stack:
        try:
            link, access, _ = stack.enter_context(stores.s3())
        except stores.Absent as error:
            pytest.skip(str(error))
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        keys = folder / "keys"
        keys.write_text(
            f"[default]\naws_access_key_id={access['AWS_ACCESS_KEY_ID']}\naws_secret_access_key={access['AWS_SECRET_ACCESS_KEY']}\n"
        )
        site = folder / "storage.toml"
        site.write_text(
            f'[[store]]\nendpoint = "{link.split("endpoint=")[1]}"\ncredentials = "keys"\n'
            '[[store.grant]]\nreach = "s3://cases/{tenant}:rw"\n'
        )
        for path in (keys, site):
            path.chmod(0o600)
        runtime = tempfile.mkdtemp(prefix="hotlease-storage-")
        environment = {**os.environ, "HOTLEASE_RUNTIME_DIR": runtime}
        program = _programs.find("hotlease")
        subprocess.run([program, "up", "--detach", "--sandbox-storage", site], env=environment, check=True, timeout=60)
        stack.callback(shutil.rmtree, runtime, ignore_errors=True)
        stack.callback(subprocess.run, [program, "down"], env=environment, capture_output=True, timeout=60)
        yield access["AWS_SECRET_ACCESS_KEY"], runtime


def _executor(runtime, **options):
    if os.environ.get("HOTLEASE_TRANSPORT"):
        pytest.skip("a worker without a network is reached through shared memory only")
    try:
        options = hotlease.ExecutorOptions(sandbox="namespace", runtime_dir=runtime, **options)
        return hotlease.Executor(1, options=options)
    except hotlease.Error as error:
        if "no sandbox of kind" not in str(error):
            raise
        pytest.skip(str(error))


def _use(prefix):
    import io

    import boto3
    from boto3.s3.transfer import TransferConfig

    s3 = boto3.client("s3")
    s3.put_object(Bucket="cases", Key=f"{prefix}/a b/ä", Body=b"small", Metadata={"run": "7"})
    s3.upload_fileobj(io.BytesIO(b"x" * (11 << 20)), "cases", f"{prefix}/large", Config=TransferConfig(multipart_threshold=5 << 20))
    head = s3.head_object(Bucket="cases", Key=f"{prefix}/large")
    part = s3.get_object(Bucket="cases", Key=f"{prefix}/large", Range="bytes=0-9")["Body"].read()
    small = s3.get_object(Bucket="cases", Key=f"{prefix}/a b/ä")
    s3.copy_object(Bucket="cases", Key=f"{prefix}/copy", CopySource={"Bucket": "cases", "Key": f"{prefix}/large"})
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="cases", Prefix=f"{prefix}/", PaginationConfig={"PageSize": 2})
    keys = sorted(one["Key"] for page in pages for one in page["Contents"])
    s3.delete_objects(Bucket="cases", Delete={"Objects": [{"Key": key} for key in keys[1:]]})
    left = [one["Key"] for one in s3.list_objects_v2(Bucket="cases", Prefix=f"{prefix}/")["Contents"]]
    return head["ContentLength"], part, small["Body"].read(), small["Metadata"], keys, left


def _refusal(bucket, key):
    import boto3
    from botocore.exceptions import ClientError

    try:
        boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=b"x")
    except ClientError as error:
        return error.response["Error"]["Code"], error.response["Error"]["Message"]
    return None


def _environment():
    return dict(os.environ)


def test_boto3_works_in_a_task_as_it_is(granted):
    _, runtime = granted
    executor = _executor(runtime, storage=[f"s3://cases/{_OWN}:rw"])
    length, part, small, metadata, keys, left = executor.submit(_use, _OWN).result(120)
    assert (length, part, small, metadata) == (11 << 20, b"x" * 10, b"small", {"run": "7"})
    assert keys == [f"{_OWN}/{name}" for name in ("a b/ä", "copy", "large")]
    assert left == [f"{_OWN}/a b/ä"]
    end(executor)


def test_storage_outside_the_lease_is_refused_with_a_message(granted):
    secret, runtime = granted
    executor = _executor(runtime, storage=[f"s3://cases/{_OWN}/run"])
    for bucket, key in [("cases", f"{_OWN}/run/a"), ("cases", f"{_OWN}/a"), ("other", "a")]:
        code, message = executor.submit(_refusal, bucket, key).result(60)
        assert code == "AccessDenied" and f"s3://{bucket}/{key} to write" in message, message
    environment = executor.submit(_environment).result(60)
    assert secret not in environment.values()
    assert environment["AWS_ENDPOINT_URL_S3"] == "http://127.0.0.1:9000"
    end(executor)
    # A spare worker, or the next one, has neither keys nor access.
    executor = _executor(runtime)
    assert not any(name.startswith("AWS_") for name in executor.submit(_environment).result(60))
    end(executor)


def test_a_lease_that_asks_for_more_is_refused(granted):
    _, runtime = granted
    end(_executor(runtime))
    with pytest.raises(hotlease.Error, match=f"s3://cases/{_OWN}:rw"):
        _executor(runtime, storage=["s3://cases:rw"])
    with pytest.raises(ValueError, match="s3://BUCKET"):
        _executor(runtime, storage=["cases"])
    with pytest.raises(TypeError, match="list"):
        _executor(runtime, storage="s3://cases")
