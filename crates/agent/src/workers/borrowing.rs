//! Memory of waiting workers: borrowed while it is idle, and given back as soon as it is short.

use crate::workers::idle_memory::{Alarm, IdleMemory, LOOK_EVERY};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// After memory was short, no worker waits for at least this time.
const SHORT_AT_LEAST: Duration = Duration::from_secs(10);

/// Record of whether the node's memory is short; waiting workers use only idle memory.
pub(crate) struct Borrowing {
    memory: Arc<IdleMemory>,
    short_at_least: Duration,
    short: AtomicBool,
}

impl Borrowing {
    pub fn new(memory: Arc<IdleMemory>) -> Self {
        Self {
            memory,
            short_at_least: SHORT_AT_LEAST,
            short: AtomicBool::new(false),
        }
    }

    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    /// Memory of the node that may be borrowed now, bytes.
    pub fn room(&self) -> u64 {
        self.memory.room()
    }

    /// Calls `changed` whenever memory becomes short, and when there is enough again.
    pub async fn watch(&self, mut changed: impl FnMut(bool)) {
        loop {
            // A new alarm each time: the report of an older one is already handled.
            let mut alarm = self.memory.alarm();
            self.wait_until_short(&mut alarm, LOOK_EVERY).await;
            let since = Instant::now();
            self.short.store(true, Ordering::Release);
            changed(true);
            while self.memory.is_short() || since.elapsed() < self.short_at_least {
                sleep(LOOK_EVERY).await;
            }
            self.short.store(false, Ordering::Release);
            changed(false);
        }
    }

    /// Waits until the alarm rings while memory is not ample, or a periodic look finds that memory is short.
    async fn wait_until_short(&self, alarm: &mut Alarm, every: Duration) {
        while !self.memory.is_short() {
            tokio::select! {
                () = alarm.wait() => {
                    if !self.memory.is_ample() {
                        return;
                    }
                }
                () = sleep(every) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::Mutex;

    #[tokio::test]
    async fn memory_is_given_back_when_it_becomes_short_and_borrowed_again_when_there_is_enough() {
        let folder = tempfile::tempdir().expect("a folder");
        let meminfo = folder.path().join("meminfo");
        let say = |available| {
            let text = format!("MemTotal: 1000 kB\nMemAvailable: {available} kB\n");
            fs::write(&meminfo, text).expect("written");
        };
        say(500);
        let at_least = Duration::from_millis(1500);
        let borrowing = Arc::new(Borrowing {
            short_at_least: at_least,
            ..Borrowing::new(Arc::new(IdleMemory::from_files(&meminfo, "")))
        });
        let told = Arc::new(Mutex::new(Vec::new()));
        let watching = {
            let (borrowing, told) = (Arc::clone(&borrowing), Arc::clone(&told));
            tokio::spawn(async move {
                borrowing
                    .watch(|short| told.lock().expect("whole").push((short, borrowing.is_short())))
                    .await;
            })
        };
        let told_so_far = || told.lock().expect("whole").clone();
        let until = async |count: usize| {
            while told_so_far().len() < count {
                sleep(Duration::from_millis(5)).await;
            }
        };
        sleep(Duration::from_millis(20)).await;
        assert_eq!(told_so_far(), []);
        say(50);
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, until(1)).await.expect("it is told");
        say(500);
        let begin = Instant::now();
        tokio::time::timeout(limit, until(2)).await.expect("it is told");
        assert!(
            begin.elapsed() > at_least / 2,
            "it went to and fro within {:?}",
            begin.elapsed()
        );
        assert_eq!(told_so_far(), [(true, true), (false, false)]);
        watching.abort();
    }
}
