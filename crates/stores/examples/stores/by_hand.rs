//! Exchanges written by hand: for each store its fastest commands, without any safety.

use hotlease_comm::Rank;

use crate::Outcome;

/// A store, as one rank uses it.
pub trait HandExchange: Send {
    /// Writes an object, if `write` has one: its name, its bytes, and the number of ranks that will read it. Then reads
    /// the objects named in `read`, as soon as they exist.
    fn exchange(&mut self, write: Option<(String, &[u8], Rank)>, read: &[String]) -> Outcome<Vec<Vec<u8>>>;
}

/// RPUSH of one copy for each reader, and BLPOP, all in one pipeline on one connection.
pub mod by_redis {
    use super::*;

    pub struct Redis(redis::Connection);

    pub fn open(address: &str) -> Outcome<Redis> {
        Ok(Redis(redis::Client::open(address)?.get_connection()?))
    }

    impl HandExchange for Redis {
        fn exchange(&mut self, write: Option<(String, &[u8], Rank)>, read: &[String]) -> Outcome<Vec<Vec<u8>>> {
            let mut pipe = redis::pipe();
            if let Some((name, bytes, readers)) = write {
                let mut push = redis::cmd("RPUSH");
                push.arg(name);
                for _ in 0..readers {
                    push.arg(bytes);
                }
                pipe.add_command(push).ignore();
            }
            for name in read {
                pipe.cmd("BLPOP").arg(name).arg(0);
            }
            let popped: Vec<(String, Vec<u8>)> = pipe.query(&mut self.0)?;
            Ok(popped.into_iter().map(|(_, bytes)| bytes).collect())
        }
    }
}

/// PUT, then GET of all names at the same time, repeated every 5 ms. Objects that were read remain.
pub mod by_s3 {
    use super::*;
    use futures_util::future::try_join_all;
    use object_store::aws::{AmazonS3, AmazonS3Builder};
    use object_store::path::Path;
    use object_store::{ClientOptions, Error, ObjectStoreExt};
    use std::time::Duration;
    use tokio::runtime::{Builder, Runtime};

    const PAUSE: Duration = Duration::from_millis(5);

    pub struct S3 {
        bucket: AmazonS3,
        runtime: Runtime,
    }

    pub fn open(address: &str) -> Outcome<S3> {
        // The first provider that was installed serves the whole process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (bucket, endpoint) = super::parts(address);
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
        if let Some(endpoint) = endpoint {
            let options = ClientOptions::new().with_allow_http(true);
            builder = builder.with_endpoint(endpoint).with_client_options(options);
        }
        Ok(S3 {
            bucket: builder.build()?,
            runtime: Builder::new_current_thread().enable_all().build()?,
        })
    }

    impl S3 {
        async fn read(&self, name: &str) -> Outcome<Vec<u8>> {
            loop {
                match self.bucket.get(&Path::from(name)).await {
                    Ok(found) => return Ok(found.bytes().await?.into()),
                    Err(Error::NotFound { .. }) => tokio::time::sleep(PAUSE).await,
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    impl HandExchange for S3 {
        fn exchange(&mut self, write: Option<(String, &[u8], Rank)>, read: &[String]) -> Outcome<Vec<Vec<u8>>> {
            self.runtime.block_on(async {
                if let Some((name, bytes, _)) = write {
                    self.bucket.put(&Path::from(name), bytes.to_vec().into()).await?;
                }
                try_join_all(read.iter().map(|name| self.read(name))).await
            })
        }
    }
}

/// PutItem, then GetItem (consistent) of all names at the same time, repeated every 1 ms. Items that were read remain.
pub mod by_dynamodb {
    use super::*;
    use aws_sdk_dynamodb::Client;
    use aws_sdk_dynamodb::primitives::Blob;
    use aws_sdk_dynamodb::types::AttributeValue;
    use futures_util::future::try_join_all;
    use std::time::Duration;
    use tokio::runtime::{Builder, Runtime};

    const PAUSE: Duration = Duration::from_millis(1);

    pub struct DynamoDb {
        client: Client,
        table: String,
        runtime: Runtime,
    }

    pub fn open(address: &str) -> Outcome<DynamoDb> {
        use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
        let (table, endpoint) = super::parts(address);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let http = aws_smithy_http_client::Builder::new()
            .tls_provider(Provider::Rustls(CryptoMode::Ring))
            .build_https();
        let loader = aws_config::defaults(aws_config::BehaviorVersion::latest()).http_client(http);
        let config = runtime.block_on(loader.load());
        let mut builder = aws_sdk_dynamodb::config::Builder::from(&config);
        if let Some(endpoint) = endpoint {
            builder = builder.endpoint_url(endpoint);
        }
        Ok(DynamoDb {
            client: Client::from_conf(builder.build()),
            table: table.to_owned(),
            runtime,
        })
    }

    impl DynamoDb {
        async fn read(&self, name: &str) -> Outcome<Vec<u8>> {
            loop {
                let get = self.client.get_item().table_name(&self.table).consistent_read(true);
                let key = AttributeValue::S(name.to_owned());
                let get = get.key("pk", key.clone()).key("sk", key);
                if let Some(mut item) = get.send().await?.item {
                    return match item.remove("body") {
                        Some(AttributeValue::B(body)) => Ok(body.into_inner()),
                        _ => Err("an item without a body".into()),
                    };
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    impl HandExchange for DynamoDb {
        fn exchange(&mut self, write: Option<(String, &[u8], Rank)>, read: &[String]) -> Outcome<Vec<Vec<u8>>> {
            self.runtime.block_on(async {
                if let Some((name, bytes, _)) = write {
                    let key = AttributeValue::S(name);
                    let put = self.client.put_item().table_name(&self.table);
                    let put = put.item("pk", key.clone()).item("sk", key);
                    let body = AttributeValue::B(Blob::new(bytes));
                    put.item("body", body).send().await?;
                }
                try_join_all(read.iter().map(|name| self.read(name))).await
            })
        }
    }
}

/// Bucket or table, and endpoint, of an address.
fn parts(address: &str) -> (&str, Option<&str>) {
    let (_, rest) = address.split_once("://").unwrap_or(("", address));
    let (name, settings) = rest.split_once('?').unwrap_or((rest, ""));
    let endpoint = settings
        .split('&')
        .find_map(|setting| setting.strip_prefix("endpoint="));
    (name, endpoint)
}
