"""Stores for the case studies. Each is a separate server on loopback of this machine, and ends with the block; the
block gets its link, the environment variables of members, and the command that they are started with.
"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STARTS_WITHIN = 60


class Absent(Exception):
    """Error of a store whose program is not installed; says how to get it."""


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@contextlib.contextmanager
def server(command, port, **options):
    """Runs a server until the end of the block, which begins when the port answers."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        deadline = time.monotonic() + STARTS_WITHIN
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[0]} does not start")
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def nothing():
    yield "direct", {}, []


@contextlib.contextmanager
def tcp():
    yield "tcp", {}, []


@contextlib.contextmanager
def redis():
    if not shutil.which("redis-server"):
        raise Absent("it is not installed (Debian: redis-server)")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        with server(command, port):
            yield f"redis://127.0.0.1:{port}", {}, []


@contextlib.contextmanager
def s3():
    program = ROOT / "target/versitygw/versitygw"
    if not program.is_file():
        raise Absent("there is no versitygw (`make setup-tests` builds it where there is Go)")
    port = free_port()
    # Not secret: the store ends with this block.
    access = {"AWS_ACCESS_KEY_ID": "member", "AWS_SECRET_ACCESS_KEY": "of-this-run", "AWS_REGION": "us-east-1"}
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f"{folder}/data/cases")
        os.mkdir(f"{folder}/attributes")
        roots = {"ROOT_ACCESS_KEY": access["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": access["AWS_SECRET_ACCESS_KEY"]}
        command = [program, "--port", f"127.0.0.1:{port}", "posix", "--sidecar", f"{folder}/attributes", f"{folder}/data"]
        with server(command, port, env={**os.environ, **roots}):
            yield f"s3://cases?endpoint=http://127.0.0.1:{port}", access, []


# This server would listen on all addresses, so it gets a separate network namespace. It ends with its standard input.
DYNAMODB = """
ip link set lo up || exit
cd "$0" || exit
java -Xmx512m -XX:+UseSerialGC -Djava.library.path=. -cp '*' com.amazonaws.services.dynamodbv2.local.main.ServerRunner \\
    -inMemory -disableTelemetry -port 8000 >/dev/null 2>&1 </dev/null &
echo started
read -r _
kill -9 $!
"""


@contextlib.contextmanager
def dynamodb():
    folder = ROOT / "target/dynamodb-local"
    if not (folder / "complete").is_file() or not shutil.which("java"):
        raise Absent("there is no DynamoDB Local, or no Java (`make setup-tests` gets it from Maven Central; Debian: default-jre-headless)")
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = ["unshare", *user, "--net", "sh", "-c", DYNAMODB, folder]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if server.stdout.readline() != "started\n":
            raise Absent("no network of its own can be made for it, by this user")
        user = ["--user", "--preserve-credentials"] if user else []
        inside = ["nsenter", *user, "--net", "--target", str(server.pid)]
        subprocess.run([*inside, sys.executable, __file__], check=True)
        yield "dynamodb://cases?endpoint=http://127.0.0.1:8000&region=us-east-1", {"AWS_ACCESS_KEY_ID": "member", "AWS_SECRET_ACCESS_KEY": "any"}, inside
    finally:
        server.stdin.close()
        server.wait()


def make_table():
    """Creates the table, in the network namespace of DynamoDB Local, as soon as the server answers."""
    keys = {"pk": "HASH", "sk": "RANGE"}
    table = {
        "TableName": "cases", "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"} for key in keys],
        "KeySchema": [{"AttributeName": key, "KeyType": kind} for key, kind in keys.items()],
    }
    signed = "AWS4-HMAC-SHA256 Credential=member/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host;x-amz-date;x-amz-target, Signature=0"
    headers = {
        "Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "DynamoDB_20120810.CreateTable", "X-Amz-Date": "20260101T000000Z",
        "Authorization": signed,
    }
    deadline = time.monotonic() + STARTS_WITHIN
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", 8000), timeout=1):
            break
        if time.monotonic() > deadline:
            sys.exit("DynamoDB Local does not start")
        time.sleep(0.05)
    urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8000/", json.dumps(table).encode(), headers)).close()


# Stores by the name of the link in `hotlease comm plan`; `direct` is shared memory here.
STORES = {"direct": nothing, "tcp": tcp, "redis": redis, "s3": s3, "dynamodb": dynamodb}

if __name__ == "__main__":
    make_table()
