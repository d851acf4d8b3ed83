//! DynamoDB: an object is an item, up to 31 KiB in one; longer bodies go on in items of 399 KiB, which are written
//! first.
//!
//! ```text
//! partition (pk)      sort key (sk)                                       items
//! GROUP/TO            m-CONTEXT-NUMBER-FROM                               heads of messages, where their reader looks
//! GROUP/TO            s-CONTEXT-COLLECTIVE-NUMBER-FROM                    heads of what a schedule sends, likewise
//! GROUP/p             CONTEXT-COLLECTIVE-KEY-FROM                         what is published
//! GROUP/b             RANK                                                boards: one Query reads all
//! GROUP/x0 to xf      OBJECT.PART                                         parts, so that no partition has all of the load
//! ```
//!
//! DynamoDB has no blocking read. One Query finds all that a member waits for in a partition ([`waits`]), and costs one
//! read where there is nothing yet. Reads are consistent: a member finds what another member told it of. No write has a
//! condition: an item is written once, with a key of its own, so that writing it again, when an answer was lost,
//! changes nothing.
//!
//! The items of a group can be found without reading the whole table, which may have items of other programs as well:
//! all partitions are known. What no member removes, because all were killed, expires a day later where the table has
//! `expires` as its time to live.
//!
//! Amazon charges for: a write for each KiB, and as much again when it is removed; a read for each 4 KiB and for
//! each question. The boards cost a write and a read (of all, up to 4 KiB) eight times in a failure bound: at 2 s
//! 14,400 times 0.75 millionths of a dollar an hour, which is 1.1 cents for each member.

mod fault;
mod item_key;
mod table;
mod waits;

use crate::courier::CourierPlan;
use crate::link;
use crate::store::{LinkStore, StoreFault};
use hotlease_comm::link::StoreOpener;
use hotlease_comm::{LinkKind, Rank, StoreAddress};
use item_key::ItemKey;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use table::Table;
use tokio::sync::Semaphore;
use waits::DynamoDbWaits;

/// Bytes of a body that travel with its head. With head and keys the item is a bit less than 32 KiB; an answer has room
/// for 32 such items, and a partition takes 31 a second.
const FIRST_BYTES: usize = 31 << 10;
/// Bytes of a part: with its keys less than the 400 KiB that an item can have.
const PIECE_BYTES: usize = 399 << 10;
/// Objects that are written or read at a time, each over a connection of its own. Boards and questions do not wait for
/// them.
const AT_ONCE: usize = 64;

/// Opener of links through DynamoDB.
pub(crate) const OPENER: StoreOpener = StoreOpener {
    kind: LinkKind::DynamoDb,
    open: |join| link::join(join, DynamoDb::open),
};

/// Store in a table of DynamoDB.
pub(crate) struct DynamoDb {
    table: Arc<Table>,
    waits: Arc<DynamoDbWaits>,
    turns: Semaphore,
    size: Rank,
}

impl DynamoDb {
    pub(crate) fn open(
        address: StoreAddress,
        plan: &CourierPlan,
    ) -> impl Future<Output = Result<Self, StoreFault>> + use<> {
        let (bound, size) = (plan.bound, plan.size);
        let boards = ItemKey::of(&format!("{}/b/{}", plan.group, plan.me)).partition;
        async move {
            let table = Arc::new(Table::open(address, bound).await?);
            // Shows faults before any member has to be in time: credentials may have to be fetched for the first
            // request.
            table.sort_keys(&boards).await?;
            let waits = Arc::new(DynamoDbWaits::default());
            tokio::spawn(Arc::clone(&waits).run(Arc::clone(&table)));
            let turns = Semaphore::new(AT_ONCE);
            Ok(Self {
                table,
                waits,
                turns,
                size,
            })
        }
    }
}

impl LinkStore for DynamoDb {
    const PIECE_BYTES: usize = PIECE_BYTES;
    const HEADS_ARE_TAKEN: bool = false;
    const IS_POLLED: bool = true;

    fn first_bytes(_readers: u32) -> usize {
        FIRST_BYTES
    }

    async fn put_head(&self, key: &str, head: Vec<u8>, _readers: u32) -> Result<(), StoreFault> {
        self.put(key, head).await
    }

    async fn take_head(&self, key: &str) -> Result<Vec<u8>, StoreFault> {
        self.waits.wait(ItemKey::of(key)).await
    }

    async fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), StoreFault> {
        let _turn = self.turns.acquire().await;
        self.table.put(ItemKey::of(key), bytes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreFault> {
        let _turn = self.turns.acquire().await;
        self.table.get(ItemKey::of(key)).await
    }

    async fn exchange(&self, keys: &[String], own: usize, board: Vec<u8>) -> Result<Vec<Option<Vec<u8>>>, StoreFault> {
        let mut places: Vec<ItemKey> = keys.iter().map(|key| ItemKey::of(key)).collect();
        let mut found: HashMap<String, Vec<u8>> = HashMap::new();
        for (sort, body) in self.table.all(&places[own].partition).await? {
            found.insert(sort, body);
        }
        let boards = places.iter().map(|place| found.remove(&place.sort)).collect();
        self.table.put(places.swap_remove(own), board).await?;
        Ok(boards)
    }

    async fn remove(&self, keys: &[String]) -> Result<(), StoreFault> {
        self.table
            .remove(keys.iter().map(|key| ItemKey::of(key)).collect())
            .await
    }

    async fn clear(&self, group: &str) -> Result<(), StoreFault> {
        for partition in item_key::partitions(group, self.size) {
            let left = self.table.sort_keys(&partition).await?.into_iter();
            let left: BTreeSet<ItemKey> = left
                .map(|sort| ItemKey {
                    partition: partition.clone(),
                    sort,
                })
                .collect();
            self.table.remove(left).await?;
        }
        Ok(())
    }
}
