//! Redis: a head is a list with one copy for each reader, and reading removes a copy, so that heads with several
//! readers need no counting; pieces are strings.
//!
//! Heads are awaited on a connection of their own, which blocks ([`waits`]): the server reports when a head is written,
//! and nothing is polled. (Streams would keep objects that were read; publishing loses objects for which no client
//! listens yet.) No command is repeated: a lost connection may mean a lost message, so it ends the link.

mod waits;

use crate::courier::CourierPlan;
use crate::link;
use crate::store::{LinkStore, StoreFault};
use hotlease_comm::link::StoreOpener;
use hotlease_comm::{LinkKind, StoreAddress};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, RedisError};
use std::sync::Arc;
use waits::RedisWaits;

/// Time to live of a key, seconds: a key that no member removes, because all were killed, expires after a day.
const KEPT_S: u64 = 24 * 60 * 60;
/// Number of bytes of a body that are stored with the heads of an object with several readers, summed over all copies.
const COPIES_BYTES: usize = 64 * 1024;
/// Number of bytes of a body that are stored with the head for one reader.
const FIRST_BYTES: usize = 1 << 20;

/// Opener of links through Redis.
pub(crate) const OPENER: StoreOpener = StoreOpener {
    kind: LinkKind::Redis,
    open: |join| link::join(join, |address, plan| Redis::open(&address, plan)),
};

/// Store in a Redis server.
pub(crate) struct Redis {
    commands: MultiplexedConnection,
    waits: Arc<RedisWaits>,
}

impl Redis {
    pub(crate) fn open(
        address: &StoreAddress,
        plan: &CourierPlan,
    ) -> impl Future<Output = Result<Self, StoreFault>> + use<> {
        let (address, bell) = (
            address.with_credentials().to_owned(),
            format!("{}/w/{}", plan.group, plan.me),
        );
        async move {
            let client = client(&address)?;
            // Requests have no time limit. The exchange of boards has one, and detects a store that does not answer.
            let config = AsyncConnectionConfig::new()
                .set_response_timeout(None)
                .set_connection_timeout(None);
            let connect = || client.get_multiplexed_async_connection_with_config(&config);
            let commands = connect().await.map_err(fault)?;
            let waiting = connect().await.map_err(fault)?;
            let waits = RedisWaits::start(waiting, commands.clone(), bell);
            Ok(Self { commands, waits })
        }
    }
}

fn client(address: &str) -> Result<Client, StoreFault> {
    let wrong = |_| StoreFault {
        why: "its address makes no sense; it is redis://host:port/database".into(),
    };
    let info = address.into_connection_info().map_err(wrong)?;
    let mut settings = info.redis_settings().clone();
    let of_environment = |name| std::env::var(name).ok().filter(|text: &String| !text.is_empty());
    if settings.password().is_none() {
        if let Some(password) = of_environment("REDIS_PASSWORD") {
            settings = settings.set_password(password);
        }
        if let Some(user) = of_environment("REDIS_USERNAME").filter(|_| settings.username().is_none()) {
            settings = settings.set_username(user);
        }
    }
    Client::open(info.set_redis_settings(settings)).map_err(fault)
}

/// Makes a fault of an error: the server's message, which begins with a code word, and advice.
fn fault(error: RedisError) -> StoreFault {
    const NEXT: [(&str, &str); 9] = [
        ("NOAUTH", PASSWORD),
        ("WRONGPASS", PASSWORD),
        ("Password authentication failed", PASSWORD),
        (
            "NoPerm",
            "let this user read and write keys of the prefix, with the commands of strings, lists and keys",
        ),
        ("ReadOnly", "this is a replica; name its primary"),
        ("Moved", "this is a cluster; name a server that is none"),
        ("CrossSlot", "this is a cluster; name a server that is none"),
        ("BusyLoading", "it is starting; try again when it has"),
        ("OOM", "give it more memory, or send less at a time"),
    ];
    const PASSWORD: &str = "set REDIS_USERNAME and REDIS_PASSWORD to those of a user of it";
    let said = error.to_string();
    let known = NEXT.iter().find(|(word, _)| said.contains(word));
    let next = known.map_or("look whether it is well and can be reached from here", |(_, next)| next);
    StoreFault {
        why: format!("{said}; {next}"),
    }
}

impl LinkStore for Redis {
    const PIECE_BYTES: usize = 4 << 20;
    const HEADS_ARE_TAKEN: bool = true;
    const IS_POLLED: bool = false;

    fn first_bytes(readers: u32) -> usize {
        if readers == 1 {
            FIRST_BYTES
        } else {
            COPIES_BYTES / readers.max(1) as usize
        }
    }

    async fn put_head(&self, key: &str, head: Vec<u8>, readers: u32) -> Result<(), StoreFault> {
        let mut push = redis::cmd("RPUSH");
        push.arg(key);
        for _ in 0..readers {
            push.arg(&head[..]);
        }
        let mut both = redis::pipe();
        both.add_command(push).ignore().expire(key, KEPT_S as i64).ignore();
        both.query_async(&mut self.waits.connection()).await.map_err(fault)
    }

    async fn take_head(&self, key: &str) -> Result<Vec<u8>, StoreFault> {
        self.waits.wait(key.to_owned()).await
    }

    async fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), StoreFault> {
        let set = redis::cmd("SET").arg(key).arg(bytes).arg("EX").arg(KEPT_S).to_owned();
        set.query_async(&mut self.commands.clone()).await.map_err(fault)
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreFault> {
        let get = redis::cmd("GET").arg(key).to_owned();
        get.query_async(&mut self.commands.clone()).await.map_err(fault)
    }

    async fn exchange(&self, keys: &[String], own: usize, board: Vec<u8>) -> Result<Vec<Option<Vec<u8>>>, StoreFault> {
        let mut both = redis::pipe();
        both.cmd("MGET").arg(keys);
        both.cmd("SET")
            .arg(&keys[own])
            .arg(board)
            .arg("EX")
            .arg(KEPT_S)
            .ignore();
        let answers: Result<(Vec<Option<Vec<u8>>>,), _> = both.query_async(&mut self.commands.clone()).await;
        answers.map(|(boards,)| boards).map_err(fault)
    }

    fn private(&self) -> Vec<String> {
        vec![self.waits.bell()]
    }

    async fn remove(&self, keys: &[String]) -> Result<(), StoreFault> {
        for some in keys.chunks(1000) {
            let unlink = redis::cmd("UNLINK").arg(some).to_owned();
            let removed: Result<(), _> = unlink.query_async(&mut self.commands.clone()).await;
            removed.map_err(fault)?;
        }
        Ok(())
    }

    async fn clear(&self, group: &str) -> Result<(), StoreFault> {
        let (mut cursor, mut found) = (0_u64, Vec::new());
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern(group)).arg("COUNT").arg(1000);
            let some: Result<(u64, Vec<String>), _> = scan.query_async(&mut self.commands.clone()).await;
            let (next, some) = some.map_err(fault)?;
            found.extend(some);
            if next == 0 {
                return self.remove(&found).await;
            }
            cursor = next;
        }
    }
}

/// Pattern of all keys with this prefix.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::new();
    for letter in prefix.chars() {
        if "*?[]\\^".contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern + "*"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_copies_of_a_head_together_are_bounded() {
        for readers in 2..2048 {
            let first = Redis::first_bytes(readers);
            assert!(first > 0 && first * readers as usize <= COPIES_BYTES, "{readers}");
        }
    }

    #[test]
    fn patterns_match_the_prefix_and_nothing_like_it() {
        assert_eq!(pattern("a*b?[c]/"), "a\\*b\\?\\[c\\]/*");
    }
}
