//! Whether the manager lives, whether it serves, and what it counts.
//!
//! It answers at all only once its durable state is read and its agents and leases are restored from it. What can
//! fail later is writing, so readiness is a write: durable, and with PostgreSQL refused by a database that another
//! manager leads.

use super::problem::Problem;
use crate::state::State as Shared;
use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::response::IntoResponse;
use hotlease_store::StoreError;
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// How long a write may take in a manager that is ready.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);
/// An outcome is good for so long: whoever asks all the time makes no writes.
const FRESH: Duration = Duration::from_secs(1);
/// OpenMetrics, which Prometheus reads.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// It lives.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Alive {
    /// `alive`.
    status: &'static str,
}

/// Whether it serves, and if not, why.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Ready {
    ready: bool,
    checks: Vec<Check>,
}

/// Something that a manager needs to serve.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Check {
    /// `store`: it can write down what it does, in time. `leader`: no other manager leads the database. `running`:
    /// nobody told it to stop.
    name: &'static str,
    passed: bool,
    /// Why it did not; empty: it did.
    why: String,
}

impl Check {
    fn of(name: &'static str, why: Option<String>) -> Self {
        Self {
            name,
            passed: why.is_none(),
            why: why.unwrap_or_default(),
        }
    }
}

/// What became of the last write that was made to see whether it succeeds.
#[derive(Debug, Clone)]
enum Written {
    Yes,
    No { why: String, is_deposed: bool },
}

#[derive(Default)]
struct Probe {
    /// Since when one is under way.
    since: Option<Instant>,
    last: Option<(Instant, Written)>,
}

/// The manager's word on whether its state can be written; one write at a time, however many ask.
#[derive(Default)]
pub(crate) struct Readiness(Mutex<Probe>);

impl Readiness {
    fn probe(&self) -> MutexGuard<'_, Probe> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn written(&self, state: &Arc<Shared>) -> Written {
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
            let state = Arc::clone(state);
            // Goes on when nobody waits any more: a thread that hangs in a disk is not asked for twice.
            tokio::task::spawn_blocking(move || {
                let written = match state.config.store.probe() {
                    Ok(()) => Written::Yes,
                    Err(error) => Written::No {
                        is_deposed: matches!(error, StoreError::Deposed { .. }),
                        why: error.to_string(),
                    },
                };
                let mut probe = state.readiness.probe();
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
                    return Written::No {
                        why,
                        is_deposed: false,
                    };
                }
                _ => {}
            }
        }
    }
}

/// Whether it lives. Everybody may ask, and learns nothing else.
#[utoipa::path(get, path = "/healthz", operation_id = "is_alive", tag = "manager", security(()),
    responses((status = 200, description = "It lives", body = Alive)))]
pub(super) async fn alive() -> Json<Alive> {
    Json(Alive { status: "alive" })
}

/// Whether it serves.
#[utoipa::path(get, path = "/readyz", operation_id = "is_ready", tag = "manager",
    responses(
        (status = 200, description = "It serves", body = Ready),
        (status = 503, description = "It does not", body = Ready),
    ))]
pub(super) async fn ready(State(state): State<Arc<Shared>>) -> (StatusCode, Json<Ready>) {
    let written = state.readiness.written(&state).await;
    let (mut store, mut leader) = (None, None);
    if let Written::No { why, is_deposed } = written {
        match is_deposed {
            true => leader = Some(why),
            false => store = Some(why),
        }
    }
    let stops = *state.asked_to_stop.borrow();
    let running = stops.then(|| "it was told to stop".to_owned());
    let checks = vec![
        Check::of("store", store),
        Check::of("leader", leader),
        Check::of("running", running),
    ];
    let ready = checks.iter().all(|check| check.passed);
    let status = match ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(Ready { ready, checks }))
}

/// What the manager counts, for Prometheus: requests, grants, refusals, latencies, agents, cores, leases.
#[utoipa::path(get, path = "/metrics", operation_id = "get_metrics", tag = "manager",
    responses((status = 200, description = "Metrics, as OpenMetrics text",
        body = String, content_type = "application/openmetrics-text")))]
pub(super) async fn metrics(State(state): State<Arc<Shared>>) -> Result<impl IntoResponse, Problem> {
    let text = state.metrics.text(&state).await?;
    let kind: (HeaderName, &str) = (CONTENT_TYPE, METRICS);
    Ok(([kind], text))
}
