//! S3, and services with its protocol: a message of up to 8 MiB is one object, a longer message is several. S3 has no
//! blocking read, so an awaited object is asked for repeatedly.
//!
//! Amazon charges for: each message is a write and at least one read; each request for an object that does not exist
//! yet is a read; removing is free. The boards cost a write of the own board and a read of each other board, eight
//! times in a failure bound. A write costs 5 millionths of a dollar, a read 0.4. With a bound of 2 s and 8 members,
//! each member pays 14,400 x (5 + 7 x 0.4) millionths, or 11 cents, an hour; a bound of 30 s costs a fifteenth of this.

use crate::backoff::Backoff;
use crate::link;
use crate::store::{LinkStore, StoreFault, error_text};
use futures_util::{StreamExt, TryStreamExt, stream};
use hotlease_comm::link::StoreOpener;
use hotlease_comm::{LinkKind, StoreAddress};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ClientOptions, Error, ObjectStore, ObjectStoreExt, RetryConfig};
use std::time::Duration;

/// Number of requests for boards, or to remove objects, at a time.
const AT_ONCE: usize = 32;
/// First pause between reads of an object that does not exist yet; a read itself takes some milliseconds.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Opener of links through S3.
pub(crate) const OPENER: StoreOpener = StoreOpener {
    kind: LinkKind::S3,
    open: |join| link::join(join, |address, plan| S3::open(address, plan.bound)),
};

/// Store in a bucket of S3.
pub(crate) struct S3 {
    bucket: AmazonS3,
}

impl S3 {
    pub(crate) async fn open(address: StoreAddress, bound: Duration) -> Result<Self, StoreFault> {
        // Fails if an earlier caller in this process has chosen the provider, which then serves all.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let name = address
            .with_credentials()
            .trim_start_matches("s3://")
            .trim_end_matches('/');
        let retry = RetryConfig {
            retry_timeout: bound,
            ..RetryConfig::default()
        };
        // Requests have no time limit. The exchange of boards has one, and detects a store that does not answer.
        let client = ClientOptions::new().with_connect_timeout(bound).with_timeout_disabled();
        let mut builder = AmazonS3Builder::from_env();
        if let Some(endpoint) = address.endpoint() {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = address.region() {
            builder = builder.with_region(region);
        }
        let builder = builder.with_bucket_name(name).with_retry(retry);
        let plain = builder
            .get_config_value(&object_store::aws::AmazonS3ConfigKey::Endpoint)
            .is_some_and(|endpoint| endpoint.starts_with("http://"));
        let bucket = builder.with_client_options(client.with_allow_http(plain)).build();
        Ok(Self {
            bucket: bucket.map_err(fault)?,
        })
    }
}

/// Makes a fault of an error: the error and advice.
fn fault(error: Error) -> StoreFault {
    let next = match &error {
        Error::NotFound { .. } => "there is no such bucket: make it, or correct its name",
        Error::PermissionDenied { .. } => {
            "let this user get, put, delete and list objects of the bucket, or name another in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        }
        Error::Unauthenticated { .. } => "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to those of a user of it",
        _ => "look whether it is well and can be reached from here, and whether there are credentials",
    };
    let said = error_text(&error);
    StoreFault {
        why: format!("{said}; {next}"),
    }
}

fn path(key: &str) -> Result<Path, StoreFault> {
    Path::parse(key).map_err(|error| fault(error.into()))
}

impl S3 {
    async fn read(&self, key: &str) -> Result<Option<Vec<u8>>, StoreFault> {
        match self.bucket.get(&path(key)?).await {
            Ok(found) => Ok(Some(found.bytes().await.map_err(fault)?.into())),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(fault(error)),
        }
    }
}

impl LinkStore for S3 {
    const PIECE_BYTES: usize = 8 << 20;
    const HEADS_ARE_TAKEN: bool = false;
    const IS_POLLED: bool = true;

    fn first_bytes(_readers: u32) -> usize {
        8 << 20
    }

    async fn put_head(&self, key: &str, head: Vec<u8>, _readers: u32) -> Result<(), StoreFault> {
        self.put(key, head).await
    }

    async fn take_head(&self, key: &str) -> Result<Vec<u8>, StoreFault> {
        let mut backoff = Backoff::new(PAUSE, PAUSE_MAX);
        loop {
            if let Some(found) = self.read(key).await? {
                return Ok(found);
            }
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    async fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), StoreFault> {
        let written = self.bucket.put(&path(key)?, bytes.into()).await;
        written.map(drop).map_err(fault)
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreFault> {
        self.read(key).await
    }

    async fn exchange(&self, keys: &[String], own: usize, board: Vec<u8>) -> Result<Vec<Option<Vec<u8>>>, StoreFault> {
        let reads: Vec<_> = keys.iter().map(|key| self.read(key)).collect();
        let boards = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        self.put(&keys[own], board).await?;
        Ok(boards)
    }

    async fn remove(&self, keys: &[String]) -> Result<(), StoreFault> {
        let paths: Result<Vec<_>, _> = keys.iter().map(|key| path(key)).collect();
        // One request removes up to a thousand objects.
        let mut removed = self.bucket.delete_stream(stream::iter(paths?).map(Ok).boxed());
        while let Some(result) = removed.next().await {
            match result {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(fault(error)),
            }
        }
        Ok(())
    }

    async fn clear(&self, group: &str) -> Result<(), StoreFault> {
        let prefix = path(group.trim_end_matches('/'))?;
        let found = self
            .bucket
            .list(Some(&prefix))
            .map_ok(|object| object.location.to_string());
        let left: Vec<String> = found.try_collect().await.map_err(fault)?;
        self.remove(&left).await
    }
}
