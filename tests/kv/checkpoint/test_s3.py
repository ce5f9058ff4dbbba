"""Checkpoints in an object store: against the S3 server that moto brings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kv.checkpoint.errors import (
    CheckpointError,
    CheckpointWriteError,
    DamagedCheckpointError,
)
from tests.kv.checkpoint.jobs import Job, assert_same_rows

pytest.importorskip("s3fs", reason="s3fs is not installed")
server = pytest.importorskip("moto.server", reason="moto[server] is not installed")

# botocore and moto are not ours to mend
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket."""
    import boto3
    import s3fs

    s3 = server.ThreadedMotoServer(port=0, verbose=False)
    s3.start()
    host, port = s3.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3")
    client.create_bucket(Bucket="models")
    client.close()
    yield "s3://models/job"
    s3fs.S3FileSystem.clear_instance_cache()
    s3.stop()


def test_an_object_store_keeps_checkpoints_as_a_folder_does(bucket: str) -> None:
    job, names = Job(bucket, full_every=2), []
    for seed in range(2):
        job.train(seed)
        names.append(job.save())

    again = Job(bucket)

    assert again.load() == names[-1]
    assert_same_rows(again.rows(), job.rows())
    assert again.shelf.names() == names
    assert again.shelf.last_good() == names[-1]
    file = again.shelf.manifest(names[-1]).files()[-1]
    again.shelf.place.publish(f"{names[-1]}/{file.path}", b"something else")
    with pytest.raises(DamagedCheckpointError, match=f"{names[-1]} is damaged"):
        again.load(names[-1])
    assert again.load() == names[-2]


def test_a_bucket_that_is_not_there_is_named(bucket: str) -> None:
    job = Job("s3://nowhere/job")

    with pytest.raises(CheckpointWriteError, match="there is no bucket nowhere"):
        job.save()
    with pytest.raises(CheckpointError, match="there is no bucket nowhere"):
        job.leader.try_place()


def test_a_trial_leaves_no_folder_in_the_bucket(bucket: str) -> None:
    job = Job(f"{bucket}/new")
    assert not job.shelf.place.exists()

    job.leader.try_place()

    assert job.shelf.place.exists()
    assert job.shelf.place.names() == []
