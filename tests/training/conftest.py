"""A real S3 server on the loopback: moto's, which keeps its objects in memory."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Its address, which this process and those that it starts find in their environment."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    here = {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1"}
    here |= {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "anything"}
    before = dict(os.environ)
    os.environ |= here
    yield address
    server.stop()
    for name in here:
        os.environ.pop(name)
    os.environ |= {name: before[name] for name in here if name in before}


@pytest.fixture
def bucket(s3_server: str) -> str:
    """The URL of a new bucket."""
    import fsspec

    name = f"bucket-{uuid.uuid4().hex[:12]}"
    fsspec.filesystem("s3", use_listings_cache=False).mkdir(name)
    return f"s3://{name}"
