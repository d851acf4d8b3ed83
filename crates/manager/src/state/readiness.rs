//! Readiness of the manager: a probe write finds out whether it can write its durable state.

use hotlease_store::{Store, StoreError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time limit for a write of a manager that is ready.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);
/// Lifetime of a result, so that frequent requests cause no further writes.
const FRESH: Duration = Duration::from_secs(1);
/// Result of the last probe write.
#[derive(Debug, Clone)]
pub(crate) enum ProbeResult {
    Yes,
    No { why: String, is_deposed: bool },
}

#[derive(Default)]
struct Probe {
    /// Start of the probe that is under way, if one is.
    since: Option<Instant>,
    last: Option<(Instant, ProbeResult)>,
}

/// Whether the store can be written. One probe write runs at a time, however many callers ask.
#[derive(Clone, Default)]
pub(crate) struct Readiness(Arc<Mutex<Probe>>);

impl Readiness {
    fn probe(&self) -> MutexGuard<'_, Probe> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a write becomes durable in time.
    pub(crate) async fn written(&self, store: &Arc<dyn Store>) -> ProbeResult {
        let until = Instant::now() + WRITTEN_WITHIN;
        let begins = {
            let mut probe = self.probe();
            if let Some((when, written)) = &probe.last
                && when.elapsed() < FRESH
            {
                return written.clone();
            }
            let begins = probe.since.is_none();
            if begins {
                probe.since = Some(Instant::now());
            }
            begins
        };
        if begins {
            let (readiness, store) = (self.clone(), Arc::clone(store));
            // The write continues even if no caller waits any longer, so that no second thread is started while the
            // first hangs on a disk.
            tokio::task::spawn_blocking(move || {
                let written = match store.probe() {
                    Ok(()) => ProbeResult::Yes,
                    Err(error) => ProbeResult::No {
                        is_deposed: matches!(error, StoreError::OtherLeader { .. }),
                        why: error.to_string(),
                    },
                };
                let mut probe = readiness.probe();
                probe.since = None;
                probe.last = Some((Instant::now(), written));
            });
        }
        loop {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let probe = self.probe();
            match (probe.since, &probe.last) {
                (None, Some((_, written))) => return written.clone(),
                (Some(since), _) if Instant::now() >= until => {
                    let ms = since.elapsed().as_millis();
                    let why = format!("a write has taken {ms} ms so far");
                    return ProbeResult::No { why, is_deposed: false };
                }
                _ => {}
            }
        }
    }
}
