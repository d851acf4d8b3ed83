//! DynamoDB: an object is an item with up to 31 KiB of the body; longer bodies continue in items of 399 KiB, which are
//! written first.
//!
//! ```text
//! partition (pk)      sort key (sk)                                       items
//! GROUP/TO            m-CONTEXT-NUMBER-FROM                               heads of users' messages to TO
//! GROUP/TO            s-CONTEXT-COLLECTIVE-NUMBER-FROM                    heads of schedules' messages to TO
//! GROUP/p             CONTEXT-COLLECTIVE-KEY-FROM                         published objects
//! GROUP/b             RANK                                                boards: one Query reads all
//! GROUP/x0 to xf      OBJECT.PART                                         parts, which spread the load
//! ```
//!
//! DynamoDB has no blocking read. One Query finds everything that a member waits for in a partition ([`waits`]), and
//! costs one read if nothing is there yet. Reads are consistent: a member finds an object once another member has told
//! it of the object. No write has a condition: each item has a key of its own, so if an answer was lost, writing the
//! item again changes nothing.
//!
//! The items of a group can be found without reading the whole table, which may also have items of other programs: all
//! partitions are known. Items that no member removes, because all members were killed, expire a day later if the table
//! has `expires` as its time to live.
//!
//! Amazon charges for: a write for each KiB, and the same again when the item is removed; a read for each 4 KiB and for
//! each query. The boards cost a write and a read (of all boards, up to 4 KiB) eight times in a failure bound: at 2 s
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

/// Number of bytes of a body that are stored with its head. With head and keys, the item is a bit less than 32 KiB. An
/// answer has room for 32 such items, and a partition takes 31 a second.
const FIRST_BYTES: usize = 31 << 10;
/// Number of bytes of a part. With its keys, it is less than the 400 KiB that an item can have.
const PIECE_BYTES: usize = 399 << 10;
/// Maximum number of objects that are written or read at a time, each over a connection of its own. Boards and queries
/// for heads do not wait for them.
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
            // Reports faults before a deadline applies to any member: the first request may have to fetch credentials,
            // which takes time.
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
