//! A lease over a fabric, with its baseline in the slot.

use super::super::bench_platform::BenchPlatform;
use super::super::host_info::HostInfo;
use super::super::measured_lease::{lease_options_on, pin_apart};
use super::super::pin::{AffinityGuard, Cores};
use super::super::samples::{Block, Clock};
use anyhow::Context;
use hotlease_bench_fabric::{Client, EndAddress, PeerParameters};
use hotlease_client::{Function, Invoker, LeaseOptions};
use hotlease_fabric::memory::Memory;
use hotlease_fabric::ofi::providers::{find_provider, remote_providers};
use hotlease_fabric::ofi::{Libfabric, Provider};
use hotlease_terminal::functions::fabric_functions;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Unmeasured runs at the start of a block.
pub(super) const WARM_UP: usize = 20;
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A lease over a fabric, with its baseline in the slot.
pub(in crate::bench) struct FabricLease {
    pub(in crate::bench) invoker: Invoker,
    pub(in crate::bench) clock: Clock,
    pub(in crate::bench) machine: HostInfo,
    pub(in crate::bench) cores: Cores,
    pub(in crate::bench) provider: Provider,
    _pinned: Option<AffinityGuard>,
}

/// A raw ping-pong whose peer is in the slot.
pub(in crate::bench) struct RawBaseline {
    client: Client,
    serve: Function,
    /// Description of this end, which is sent to the peer only with the first request.
    introduction: Vec<u8>,
}

impl FabricLease {
    /// Leases a slot, and pins the calling thread to another core.
    pub(in crate::bench) fn set(host: &BenchPlatform, transport: &str, options: LeaseOptions) -> anyhow::Result<Self> {
        let provider = find(transport)?;
        let options = LeaseOptions {
            transport: Some(provider.name().to_owned()),
            ..lease_options_on(host, options)
        };
        let invoker = Invoker::allocate(&fabric_functions()?, options)?;
        let (_, cores, pinned) = pin_apart(&invoker)?;
        Ok(Self {
            clock: Clock::calibrate(),
            machine: HostInfo::here(cores),
            cores,
            provider,
            invoker,
            _pinned: pinned,
        })
    }

    /// Makes both ends of a baseline, with this much memory for RMA.
    pub(in crate::bench) fn raw(&self, sleeps: bool, memory_bytes: usize) -> anyhow::Result<RawBaseline> {
        let opening = PeerParameters {
            library: self.provider.library().path().to_owned(),
            provider: self.provider.name().to_owned(),
            sleeps,
            memory_bytes: memory_bytes as u64,
        };
        let open = self.invoker.function("raw_fabric_open")?.on_slot(0)?;
        let hello = open
            .call(&opening.to_bytes())
            .context("the raw peer cannot be made in the slot")?;
        let hello = EndAddress::from_bytes(&hello).context("the raw peer does not say where it is")?;
        let memory = Arc::new(Memory::create("raw-client", memory_bytes as u64)?);
        let client = Client::open(&self.provider, &memory, &hello, sleeps)?;
        let introduction = client.hello()?.to_bytes();
        Ok(RawBaseline {
            client,
            serve: self.invoker.function("raw_fabric_serve")?.on_slot(0)?,
            introduction,
        })
    }

    /// A block of invocations of the echo function.
    pub(super) fn echo_block(&self, echo: &Function, input: &[u8], count: usize) -> anyhow::Result<Block> {
        let invoke = |output: &mut [u8]| echo.invoke(input, output).map(drop);
        self.clock.echo_block(WARM_UP, count, input, invoke)
    }

    /// Name of libfabric and its version, for records.
    pub(super) fn library(&self) -> String {
        let (major, minor) = self.provider.library().version();
        format!("libfabric {major}.{minor}")
    }
}

impl RawBaseline {
    /// Calls `run` with a client of the peer. Meanwhile the slot runs only the peer.
    pub(in crate::bench) fn with<R>(
        &mut self,
        run: impl FnOnce(&mut Client) -> anyhow::Result<R>,
    ) -> anyhow::Result<R> {
        let peer = self.serve.submit(&std::mem::take(&mut self.introduction))?;
        let result = run(&mut self.client);
        self.client.stop()?;
        peer.wait()?;
        result
    }

    /// A block of raw round trips.
    pub(super) fn block(&mut self, clock: &Clock, input: &[u8], count: usize) -> anyhow::Result<Block> {
        self.with(|client| clock.echo_block(WARM_UP, count, input, |output| client.echo(input, output).map(drop)))
    }
}

fn find(transport: &str) -> anyhow::Result<Provider> {
    let library = Libfabric::load()?;
    if transport != "ofi" {
        return Ok(find_provider(&library, transport, Some(LOCAL))?);
    }
    let best = remote_providers(&library, Some(LOCAL)).into_iter().next();
    best.context("libfabric has no provider here that leads to other hosts")
}
