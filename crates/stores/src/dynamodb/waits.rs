//! Waits for heads, and the one task that looks for all awaited heads. Its pauses between looks are short at first,
//! while a head is likely to arrive soon, and then longer each time.
//!
//! A series has the messages of a communicator, or the objects of one collective. Its heads are looked for with one
//! Query from the first to the last awaited head, which reads at most as many items as are awaited. If other items lie
//! between the awaited heads, the next Query begins at the next awaited head. So items that no call asks for yet are
//! not read repeatedly.

use super::item_key::ItemKey;
use super::table::Table;
use crate::backoff::Backoff;
use crate::lock::lock;
use crate::store::StoreFault;
use futures_util::future::try_join_all;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// First pause between looks, each of which takes some milliseconds.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

type DynamoDbHeadSender = oneshot::Sender<Result<Vec<u8>, StoreFault>>;

/// Waits for heads, by place.
#[derive(Default)]
pub(super) struct DynamoDbWaits {
    senders: Mutex<HashMap<ItemKey, DynamoDbHeadSender>>,
    is_new: Notify,
    /// Reason why no wait is possible any more.
    fault: Mutex<Option<StoreFault>>,
}

impl DynamoDbWaits {
    /// Waits until the item exists.
    pub(super) async fn wait(&self, place: ItemKey) -> Result<Vec<u8>, StoreFault> {
        if let Some(fault) = &*lock(&self.fault) {
            return Err(fault.clone());
        }
        let (found, is_found) = oneshot::channel();
        lock(&self.senders).insert(place, found);
        self.is_new.notify_one();
        is_found.await.unwrap_or_else(|_| {
            let why = "its link has ended".into();
            Err(StoreFault { why })
        })
    }

    /// Looks for awaited heads, as long as the table can be used.
    pub(super) async fn run(self: Arc<Self>, table: Arc<Table>) {
        let mut backoff = Backoff::new(PAUSE, PAUSE_MAX);
        loop {
            lock(&self.senders).retain(|_, found| !found.is_closed());
            if lock(&self.senders).is_empty() {
                self.is_new.notified().await;
                // Heads that are asked for together are looked for together.
                tokio::task::yield_now().await;
                backoff = Backoff::new(PAUSE, PAUSE_MAX);
                continue;
            }
            match self.look(&table).await {
                Ok(false) => {}
                Ok(true) => backoff = Backoff::new(PAUSE, PAUSE_MAX),
                Err(fault) => return self.fail(&fault),
            }
            if lock(&self.senders).is_empty() {
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.pause()) => {}
                () = self.is_new.notified() => backoff = Backoff::new(PAUSE, PAUSE_MAX),
            }
        }
    }

    fn fail(&self, fault: &StoreFault) {
        *lock(&self.fault) = Some(fault.clone());
        for (_, found) in lock(&self.senders).drain() {
            let _ = found.send(Err(fault.clone()));
        }
    }

    /// Looks for all awaited heads once; returns whether at least one was found.
    async fn look(&self, table: &Table) -> Result<bool, StoreFault> {
        let mut all: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for place in lock(&self.senders).keys() {
            let (partition, series) = place.series();
            let series = (partition.to_owned(), series.to_owned());
            all.entry(series).or_default().insert(place.sort.clone());
        }
        let looks = all
            .into_iter()
            .map(|((partition, _), wanted)| self.look_for(table, partition, wanted));
        let found = try_join_all(looks).await?;
        Ok(found.contains(&true))
    }

    async fn look_for(
        &self,
        table: &Table,
        partition: String,
        mut wanted: BTreeSet<String>,
    ) -> Result<bool, StoreFault> {
        let mut is_any = false;
        while let (Some(first), Some(last)) = (wanted.first(), wanted.last()) {
            let (found, next) = table.between(&partition, first, last, wanted.len()).await?;
            for (sort, head) in found {
                is_any |= self.hand(
                    ItemKey {
                        partition: partition.clone(),
                        sort,
                    },
                    head,
                );
            }
            match next {
                Some(next) => wanted.retain(|sort| *sort > next),
                None => break,
            }
        }
        Ok(is_any)
    }

    /// Hands a head to its waiter; returns `false` if there is no waiter.
    fn hand(&self, place: ItemKey, head: Vec<u8>) -> bool {
        let found = lock(&self.senders).remove(&place);
        found.is_some_and(|found| found.send(Ok(head)).is_ok())
    }
}
