//! Requests to the table, each repeated while it is throttled.

use super::fault;
use super::item_key::ItemKey;
use crate::backoff::Backoff;
use crate::store::StoreFault;
use aws_config::BehaviorVersion;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Builder, Region};
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::query::builders::QueryFluentBuilder;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{AttributeValue, DeleteRequest, WriteRequest};
use aws_smithy_http_client::tls;
use futures_util::{StreamExt, TryStreamExt, stream};
use hotlease_comm::StoreAddress;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time to live of an item, seconds: an item that no member removes expires after a day.
const KEPT_S: u64 = 24 * 60 * 60;
/// Number of items that one request removes.
const BATCH: usize = 25;
/// Number of requests to remove items at a time.
const BATCHES_MAX: usize = 4;
/// Number of attempts of a request that gets no answer. The pauses between the attempts sum to less than half a failure
/// bound.
const ATTEMPTS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(25);
/// Time limit of an answer, which has a megabyte at most.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// First pause of a throttled request.
const THROTTLED: Duration = Duration::from_millis(50);
const THROTTLED_MAX: Duration = Duration::from_secs(1);

/// Names of attributes.
pub(super) const PARTITION: &str = "pk";
pub(super) const SORT: &str = "sk";
const BODY: &str = "body";
pub(super) const EXPIRES: &str = "expires";

type Item = HashMap<String, AttributeValue>;

/// Table that the members use.
pub(super) struct Table {
    client: Client,
    name: String,
    /// Arguments by which the program `aws` finds the table.
    arguments: String,
}

/// Sort keys and bodies.
type FoundItems = Vec<(String, Vec<u8>)>;

impl Table {
    pub(super) async fn open(address: StoreAddress, bound: Duration) -> Result<Self, StoreFault> {
        let crypto = tls::rustls_provider::CryptoMode::Ring;
        let http = aws_smithy_http_client::Builder::new()
            .tls_provider(tls::Provider::Rustls(crypto))
            .build_https();
        let retry = RetryConfig::standard()
            .with_max_attempts(ATTEMPTS)
            .with_initial_backoff(PAUSE)
            .with_max_backoff(bound / 16);
        let times = TimeoutConfig::builder()
            .connect_timeout(bound)
            .operation_attempt_timeout(ANSWER_TIMEOUT);
        let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
            .http_client(http)
            .retry_config(retry)
            .timeout_config(times.build());
        if let Some(region) = address.region() {
            loader = loader.region(Region::new(region.to_owned()));
        }
        let config = loader.load().await;
        let Some(region) = config.region() else {
            let why = "it is not known in which region: set AWS_REGION, or say `region=...` behind its name";
            return Err(StoreFault { why: why.into() });
        };
        let mut arguments = format!("--region {region}");
        let mut builder = Builder::from(&config);
        if let Some(endpoint) = address.endpoint() {
            // This is the endpoint of the table only: requests to credential servers do not use it.
            builder = builder.endpoint_url(endpoint);
            arguments = format!("{arguments} --endpoint-url {endpoint}");
        }
        Ok(Self {
            client: Client::from_conf(builder.build()),
            name: address.with_credentials().trim_start_matches("dynamodb://").to_owned(),
            arguments,
        })
    }

    /// Makes a request, and repeats it while it is throttled.
    async fn patient<T, E, F>(&self, request: impl Fn() -> F + Send + Sync) -> Result<T, StoreFault>
    where
        F: Future<Output = Result<T, SdkError<E>>> + Send,
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let mut backoff = Backoff::new(THROTTLED, THROTTLED_MAX);
        loop {
            match request().await {
                Err(error) if fault::is_throttled(&error) => tokio::time::sleep(backoff.pause()).await,
                done => return done.map_err(|error| fault::fault(&error, &self.name, &self.arguments)),
            }
        }
    }

    /// Writes an item.
    pub(super) async fn put(&self, place: ItemKey, body: Vec<u8>) -> Result<(), StoreFault> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let expires = now.as_secs() + KEPT_S;
        let put = self
            .client
            .put_item()
            .table_name(&self.name)
            .item(PARTITION, AttributeValue::S(place.partition))
            .item(SORT, AttributeValue::S(place.sort))
            .item(BODY, AttributeValue::B(Blob::new(body)))
            .item(EXPIRES, AttributeValue::N(expires.to_string()));
        self.patient(|| put.clone().send()).await.map(drop)
    }

    /// Reads an item; returns `None` if it does not exist.
    pub(super) async fn get(&self, place: ItemKey) -> Result<Option<Vec<u8>>, StoreFault> {
        let get = self
            .client
            .get_item()
            .table_name(&self.name)
            .consistent_read(true)
            .set_key(Some(key(place)));
        let found = self.patient(|| get.clone().send()).await?;
        found.item.map(|item| body(item).map(|(_, body)| body)).transpose()
    }

    fn query(&self, partition: &str) -> QueryFluentBuilder {
        let query = self.client.query().table_name(&self.name).consistent_read(true);
        query
            .key_condition_expression("pk = :pk")
            .expression_attribute_values(":pk", AttributeValue::S(partition.to_owned()))
    }

    /// Reads up to `most` items of a partition, or a megabyte. If there are more items, also returns the sort key after
    /// which they follow.
    pub(super) async fn between(
        &self,
        partition: &str,
        first: &str,
        last: &str,
        most: usize,
    ) -> Result<(FoundItems, Option<String>), StoreFault> {
        let query = self
            .query(partition)
            .key_condition_expression("pk = :pk AND sk BETWEEN :first AND :last")
            .expression_attribute_values(":first", AttributeValue::S(first.to_owned()))
            .expression_attribute_values(":last", AttributeValue::S(last.to_owned()))
            .limit(i32::try_from(most).unwrap_or(i32::MAX));
        let page = self.patient(|| query.clone().send()).await?;
        let items = page.items.into_iter().flatten();
        let found = items.map(body).collect::<Result<FoundItems, _>>()?;
        let mut more = page.last_evaluated_key;
        Ok((found, more.as_mut().map(sort).transpose()?))
    }

    async fn pages(&self, query: QueryFluentBuilder) -> Result<Vec<Item>, StoreFault> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let query = query.clone().set_exclusive_start_key(after);
            let page = self.patient(|| query.clone().send()).await?;
            found.extend(page.items.into_iter().flatten());
            after = page.last_evaluated_key;
            if after.is_none() {
                return Ok(found);
            }
        }
    }

    /// Reads a partition.
    pub(super) async fn all(&self, partition: &str) -> Result<FoundItems, StoreFault> {
        let items = self.pages(self.query(partition)).await?;
        items.into_iter().map(body).collect()
    }

    /// Reads the sort keys of a partition.
    pub(super) async fn sort_keys(&self, partition: &str) -> Result<Vec<String>, StoreFault> {
        let items = self.pages(self.query(partition).projection_expression(SORT)).await?;
        items.into_iter().map(|mut item| sort(&mut item)).collect()
    }

    /// Removes these items, as far as they exist.
    pub(super) async fn remove(&self, places: BTreeSet<ItemKey>) -> Result<(), StoreFault> {
        let delete = |place| {
            let delete = DeleteRequest::builder().set_key(Some(key(place))).build();
            let delete = delete.expect("it has a key");
            WriteRequest::builder().delete_request(delete).build()
        };
        let mut places = places.into_iter().map(delete).peekable();
        let batches = std::iter::from_fn(|| {
            places.peek()?;
            Some(places.by_ref().take(BATCH).collect::<Vec<_>>())
        });
        let removals = stream::iter(batches).map(|batch| Ok(self.remove_batch(batch)));
        removals.try_buffer_unordered(BATCHES_MAX).try_collect().await
    }

    /// Removes a batch, in several requests if the table has no throughput for all items at once.
    async fn remove_batch(&self, mut batch: Vec<WriteRequest>) -> Result<(), StoreFault> {
        let mut backoff = Backoff::new(THROTTLED, THROTTLED_MAX);
        loop {
            let removal = self.client.batch_write_item().request_items(&self.name, batch);
            let done = self.patient(|| removal.clone().send()).await?;
            batch = done
                .unprocessed_items
                .into_iter()
                .flatten()
                .flat_map(|(_, left)| left)
                .collect();
            if batch.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(backoff.pause()).await;
        }
    }
}

/// Sort key and body of an item; fails if the item does not have the form that members write.
fn body(mut item: Item) -> Result<(String, Vec<u8>), StoreFault> {
    let sort = sort(&mut item)?;
    match item.remove(BODY) {
        Some(AttributeValue::B(body)) => Ok((sort, body.into_inner())),
        _ => Err(foreign_item(&sort)),
    }
}

fn key(place: ItemKey) -> Item {
    let text = AttributeValue::S;
    let key = [(PARTITION, place.partition), (SORT, place.sort)];
    key.map(|(name, value)| (name.to_owned(), text(value))).into()
}

fn sort(item: &mut Item) -> Result<String, StoreFault> {
    match item.remove(SORT) {
        Some(AttributeValue::S(sort)) => Ok(sort),
        _ => Err(foreign_item("")),
    }
}

fn foreign_item(sort: &str) -> StoreFault {
    let why = format!("its item {sort:?} was not written by a member; does another program write to this table?");
    StoreFault { why }
}
