//! Waiting for the heads of objects, on a connection of its own, on which the server blocks until a head exists
//! (BLPOP).
//!
//! A blocking command also blocks all commands behind it on the connection. But the head that it waits for may be
//! written only after this member has received a head that one of those later commands asks for. So:
//!
//! * heads of one collective are asked for with one command each, all in one write, and reported when all exist: a
//!   round of the collective needs all of them. If that takes longer than [`PATIENCE`], existing heads are reported;
//! * all other heads are asked for with one command for all, which returns the first head that exists.
//!
//! Each command also waits for the bell, a key of this member. If a new wait begins while commands block, the bell is
//! rung once for each command, so that the server answers; then all heads are asked for again.

use super::{KEPT_S, fault};
use crate::lock::lock;
use crate::store::StoreFault;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// Time after which a wait for several heads reports the heads that exist.
const PATIENCE: Duration = Duration::from_millis(20);
/// Smallest number of awaited heads for which existing heads are read first, without blocking: of that many heads, more
/// than one is likely to exist.
const LOOKED_FOR_MIN: usize = 4;

type RedisHeadSender = oneshot::Sender<Result<Vec<u8>, StoreFault>>;

/// Waits for heads, and the connections that they use.
pub(super) struct RedisWaits {
    /// Connection whose commands block.
    connection: MultiplexedConnection,
    /// Connection whose commands do not block.
    commands: MultiplexedConnection,
    state: Mutex<RedisWaitState>,
    is_new: Notify,
    bell: String,
}

#[derive(Default)]
struct RedisWaitState {
    /// Awaited heads that the server was not asked for yet, in the order in which the waits began.
    waiting: Vec<(String, RedisHeadSender)>,
    /// Whether the server was asked, and answers only when a head is written.
    is_blocked: bool,
    /// Reason why no wait is possible any more.
    fault: Option<StoreFault>,
}

/// Part of a key that names the collective of the object; `None` for a message of a user.
fn series(key: &str) -> Option<&str> {
    let name = key.rsplit_once('/')?.1;
    let (end, _) = name.match_indices('-').nth(2)?;
    (!name.starts_with("m-")).then(|| &name[2..end])
}

impl RedisWaits {
    pub(super) fn start(connection: MultiplexedConnection, commands: MultiplexedConnection, bell: String) -> Arc<Self> {
        let waits = Arc::new(Self {
            connection,
            commands,
            state: Mutex::default(),
            is_new: Notify::new(),
            bell,
        });
        tokio::spawn(Arc::clone(&waits).run());
        waits
    }

    pub(super) fn bell(&self) -> String {
        self.bell.clone()
    }

    /// Connection for writes. It is the connection of the waits, unless that is blocked: a write just before a read is
    /// then sent together with the read.
    pub(super) fn connection(&self) -> MultiplexedConnection {
        let is_blocked = lock(&self.state).is_blocked;
        if is_blocked { &self.commands } else { &self.connection }.clone()
    }

    /// Waits until the head exists.
    pub(super) async fn wait(&self, key: String) -> Result<Vec<u8>, StoreFault> {
        let (found, is_found) = oneshot::channel();
        {
            let mut state = lock(&self.state);
            if let Some(fault) = &state.fault {
                return Err(fault.clone());
            }
            state.waiting.push((key, found));
        }
        self.is_new.notify_one();
        is_found.await.unwrap_or_else(|_| {
            let why = "its link has ended".into();
            Err(StoreFault { why })
        })
    }

    async fn run(self: Arc<Self>) {
        let (mut all, mut are_slow) = (Vec::new(), false);
        loop {
            all.retain(|(_, found): &(String, RedisHeadSender)| !found.is_closed());
            all.append(&mut lock(&self.state).waiting);
            if all.is_empty() {
                are_slow = false;
                self.is_new.notified().await;
                continue;
            }
            let of = series(&all[0].0);
            let are_together = of.is_some() && all.iter().all(|(key, _)| series(key) == of);
            let taken = if all.len() == 1 || (are_together && !are_slow) {
                let taken = self.take_all(&mut all).await;
                // The remaining heads are waited for with one command.
                are_slow = !all.is_empty();
                taken
            } else {
                self.take_any(&mut all).await
            };
            if let Err(error) = taken {
                let fault = fault(error);
                let mut state = lock(&self.state);
                state.fault = Some(fault.clone());
                all.append(&mut state.waiting);
                for (_, found) in all {
                    let _ = found.send(Err(fault.clone()));
                }
                return;
            }
        }
    }

    /// Waits until all heads exist, or the bell is rung.
    async fn take_all(&self, all: &mut Vec<(String, RedisHeadSender)>) -> Result<(), RedisError> {
        let patience = (all.len() > 1).then_some(PATIENCE);
        let popped = self.block(all.chunks(1), patience).await?;
        for ((key, found), (of, head)) in std::mem::take(all).into_iter().zip(popped) {
            if of == key.as_bytes() {
                // The receiver is gone if its collective has failed.
                let _ = found.send(Ok(head));
            } else {
                all.push((key, found));
            }
        }
        Ok(())
    }

    /// Takes the heads that exist, or else waits for one.
    async fn take_any(&self, all: &mut Vec<(String, RedisHeadSender)>) -> Result<(), RedisError> {
        let mut found = Vec::new();
        if all.len() >= LOOKED_FOR_MIN {
            let mut look = redis::pipe();
            for (key, _) in &*all {
                look.lpop(key, None);
            }
            let heads: Vec<Option<Vec<u8>>> = look.query_async(&mut self.connection.clone()).await?;
            let heads = all.iter().zip(heads);
            found.extend(heads.filter_map(|((key, _), head)| Some((key.clone().into_bytes(), head?))));
        }
        if found.is_empty() {
            found = self.block([&all[..]].into_iter(), None).await?;
        }
        for (key, head) in found {
            if let Some(place) = all.iter().position(|(of, _)| of.as_bytes() == key) {
                let _ = all.swap_remove(place).1.send(Ok(head));
            }
        }
        Ok(())
    }

    /// Asks for one head of each of these groups. Returns, for each group, the key and value of a head, or the bell.
    /// Rings the bell when a new wait begins.
    async fn block<'a>(
        &self,
        each: impl ExactSizeIterator<Item = &'a [(String, RedisHeadSender)]>,
        patience: Option<Duration>,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, RedisError> {
        let count = each.len();
        let mut blocks = redis::pipe();
        for any in each {
            blocks.cmd("BLPOP");
            for (key, _) in any {
                blocks.arg(key);
            }
            // The bell is the last key, so `BLPOP` prefers an existing head.
            blocks.arg(&self.bell).arg(0);
        }
        lock(&self.state).is_blocked = true;
        let mut connection = self.connection.clone();
        let mut popped = std::pin::pin!(blocks.query_async::<Vec<Value>>(&mut connection));
        let mut is_late = std::pin::pin!(async {
            match patience {
                Some(patience) => tokio::time::sleep(patience).await,
                None => std::future::pending().await,
            }
        });
        let mut is_rung = false;
        let popped = loop {
            tokio::select! {
                biased;
                popped = &mut popped => break popped,
                () = self.is_new.notified(), if !is_rung => is_rung = !lock(&self.state).waiting.is_empty(),
                () = &mut is_late, if !is_rung => is_rung = true,
            }
            if is_rung {
                self.ring(count).await?;
            }
        };
        lock(&self.state).is_blocked = false;
        let popped = popped?.into_iter().map(pair).collect::<Result<Vec<_>, _>>()?;
        let bells = popped.iter().filter(|(key, _)| key == self.bell.as_bytes());
        if is_rung && bells.count() < count {
            let silence = redis::cmd("UNLINK").arg(&self.bell).to_owned();
            let silenced: Result<(), _> = silence.query_async(&mut self.connection.clone()).await;
            silenced?;
        }
        Ok(popped)
    }

    async fn ring(&self, times: usize) -> Result<(), RedisError> {
        let mut ring = redis::pipe();
        ring.cmd("RPUSH").arg(&self.bell).arg(vec![1; times]).ignore();
        ring.expire(&self.bell, KEPT_S as i64).ignore();
        ring.query_async(&mut self.commands.clone()).await
    }
}

/// Key and value of an answer.
fn pair(popped: Value) -> Result<(Vec<u8>, Vec<u8>), RedisError> {
    match popped {
        Value::Array(both) => match <[Value; 2]>::try_from(both) {
            Ok([Value::BulkString(key), Value::BulkString(value)]) => Ok((key, value)),
            both => redis::from_redis_value(Value::Array(both.map_or_else(|both| both, Vec::from))),
        },
        other => redis::from_redis_value(other),
    }
    .map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_one_collective_are_of_one_series_and_messages_of_none() {
        assert_eq!(series("a-b/c-d-e-f/s-3-7-0-1-2"), Some("3-7"));
        assert_eq!(series("a-b/c-d-e-f/p-3-7-0-1"), Some("3-7"));
        assert_eq!(series("a-b/c-d-e-f/m-3-0-1-2"), None);
        assert_eq!(series("nonsense"), None);
    }
}
