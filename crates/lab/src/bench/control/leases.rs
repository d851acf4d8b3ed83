//! Clients that lease cores, and measurements of the time that a grant takes.

use super::site::BenchSite;
use crate::bench::samples::{Block, Pair};
use anyhow::Context;
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{AcquireRequest, Grant, InfoRequest, ReleaseRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tonic::transport::Channel;

/// Number of grants in one block, and of empty requests in the neighbouring block.
const BLOCK: usize = 10;
/// Time to live of the leases. No client renews them, so they last until the end of the benchmark.
const TTL_MS: u64 = 3_600_000;

/// Clients of the benchmark.
pub(super) struct LeaseClients {
    clients: Vec<ManagerClient<Channel>>,
}

impl LeaseClients {
    /// Makes the clients, each with its own connection.
    pub(super) fn new(site: &BenchSite, clients: u32) -> anyhow::Result<Self> {
        Ok(Self {
            clients: (0..clients).map(|_| site.client()).collect(),
        })
    }

    /// Times single grants, and empty requests as the baseline.
    pub(super) async fn timed(&self, count: usize) -> anyhow::Result<Pair> {
        let mut client = self.clients.first().context("there is no client")?.clone();
        let mut pair = Pair::new()?;
        // Connects, and makes the manager connect to agents.
        for _ in 0..BLOCK {
            let grant = acquire(&mut client).await?;
            release(&mut client, grant).await?;
        }
        for _ in 0..count.div_ceil(BLOCK) {
            let mut empty = Vec::with_capacity(BLOCK);
            for _ in 0..BLOCK {
                let begun = Instant::now();
                client.get_info(InfoRequest {}).await?;
                empty.push(begun.elapsed().as_nanos() as u64);
            }
            let mut grants = Vec::with_capacity(BLOCK);
            for _ in 0..BLOCK {
                let begun = Instant::now();
                let grant = acquire(&mut client).await?;
                grants.push(begun.elapsed().as_nanos() as u64);
                release(&mut client, grant).await?;
            }
            pair.add(&Block(empty), &Block(grants));
        }
        Ok(pair)
    }

    /// Lets all clients lease and release for this time. Returns the number of leases, and leases per second.
    pub(super) async fn cycles(&self, time: Duration) -> anyhow::Result<(u64, f64)> {
        let begun = Instant::now();
        let mut clients = JoinSet::new();
        for mut client in self.clients.iter().cloned() {
            clients.spawn(async move {
                let mut cycles = 0;
                while begun.elapsed() < time {
                    let grant = acquire(&mut client).await?;
                    release(&mut client, grant).await?;
                    cycles += 1;
                }
                anyhow::Ok(cycles)
            });
        }
        let mut cycles = 0;
        while let Some(done) = clients.join_next().await {
            cycles += done??;
        }
        Ok((cycles, cycles as f64 / begun.elapsed().as_secs_f64()))
    }

    /// Lets all clients lease until they hold this number of leases.
    pub(super) async fn hold(&self, leases: u32) -> anyhow::Result<()> {
        let left = Arc::new(AtomicU32::new(leases));
        let mut clients = JoinSet::new();
        for mut client in self.clients.iter().cloned() {
            let left = Arc::clone(&left);
            clients.spawn(async move {
                let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
                while take().is_ok() {
                    acquire(&mut client).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = clients.join_next().await {
            done??;
        }
        Ok(())
    }
}

async fn acquire(client: &mut ManagerClient<Channel>) -> anyhow::Result<Grant> {
    let request = AcquireRequest {
        workers: 1,
        slots_per_worker: 1,
        ttl_ms: TTL_MS,
        label: "hotlease bench".into(),
        ..AcquireRequest::default()
    };
    Ok(client.acquire(request).await?.into_inner())
}

async fn release(client: &mut ManagerClient<Channel>, grant: Grant) -> anyhow::Result<()> {
    let request = ReleaseRequest {
        lease: grant.lease,
        ..ReleaseRequest::default()
    };
    client.release(request).await?;
    Ok(())
}
