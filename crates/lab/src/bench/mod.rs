//! `hotlease bench`: speed of the platform on this host, compared with baselines of the same run.
//!
//! On shared hosts the virtual cores move: two cores are near each other at one time and far at another. Every figure
//! is therefore measured together with a baseline. Blocks of some hundred samples of figure and baseline alternate
//! within milliseconds, on the same two cores and in the same kind of memory, because the peer of the baseline runs
//! inside the leased slot (see the crate `hotlease-bench-baseline`). The results are the ratio and the difference of
//! each pair of blocks; absolute figures depend mostly on the current state of the host.
//!
//! One file per benchmark:
//!
//! * [`latency`] — hot round trips by size and in place; [`warm`] — warm round trips by idle gap.
//! * [`throughput`] — invocations per second, pipelined.
//! * [`bandwidth`] — bytes per second read in place, and copied.
//! * [`cold`] — from the request of a lease to the first result, in every kind of sandbox.
//! * [`comm`] — duration of each algorithm of each collective, and a table of the fastest.
//! * [`control`] — grants per second, and the cost of many agents and leases for a manager.
//! * [`oversubscription`] — cost and throughput of shared cores.
//! * [`peers`] — an echo through sockets, gRPC and HTTP.
//! * [`memory`] — reads and writes of remote memory by size.
//! * [`fabric`] — latency and bandwidth over libfabric.
//! * [`model`] — LogP parameters of a channel, and the accuracy of their predictions.
//! * [`scaling`] — round trips on several workers at the same time.
//! * [`yields`] — batch jobs that take the node from leases, and leases afterwards.
//! * [`soak`] — a million invocations: memory and descriptors before and after.
//!
//! Shared by the benchmarks: [`measured_lease`] (a lease and its baseline), [`bench_platform`] (the platform, running
//! or private), [`pin`], [`samples`], [`record`] (the printed results).

mod bandwidth;
mod bench_platform;
mod cold;
mod comm;
mod control;
mod fabric;
mod host_info;
mod latency;
mod measured_lease;
mod memory;
mod model;
mod oversubscription;
mod peers;
mod pin;
mod process;
mod record;
mod samples;
mod scaling;
mod soak;
mod throughput;
mod warm;
mod yields;

use clap::{Args, Subcommand};
use hotlease_terminal::output::Printer;

/// Measure how fast the platform is on this host, next to baselines in the same run
///
/// Uses the running platform, or starts a private one and stops it afterwards. The client's thread is pinned to
/// another core than the slot, if there is one.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Round trips: hot by size, in place, warm by idle gap
    Latency(latency::LatencyArgs),
    /// Invocations per second with many in flight
    Throughput(throughput::ThroughputArgs),
    /// Bytes per second, in place and copied
    Bandwidth(bandwidth::BandwidthArgs),
    /// Memory of other nodes: reads and writes by size, next to memcpy or raw RMA
    Memory(memory::MemoryArgs),
    /// Cost of calls by LogP, and how well LogP predicts round trips and plans
    Model(model::ModelArgs),
    /// From the request of a lease to the first result, in every kind of sandbox, next to other ways to start the
    /// same program
    Cold(cold::ColdArgs),
    /// Grants per second, and the cost of many agents and leases for a manager
    Control(control::ControlArgs),
    /// More warm slots than cores: claims, refusals, throughput
    Oversubscription(oversubscription::OversubscriptionArgs),
    /// An echo through a Unix socket, TCP, gRPC and HTTP
    Peers(peers::PeersArgs),
    /// Round trips on several workers at the same time, next to those of a single worker
    Scaling(scaling::ScalingArgs),
    /// Batch jobs that take the node: time until it is free, until callers are told, and until leases compute again
    Yields(yields::YieldArgs),
    /// Memory and descriptors before and after many invocations
    Soak(soak::SoakArgs),
    /// Duration of each algorithm of each collective between processes, and a table of the fastest
    Comm(comm::CommArgs),
    /// The server process of `peers`
    #[command(hide = true)]
    PeerServer(peers::ServerArgs),
    /// A member process of `comm`
    #[command(hide = true)]
    CommMember(comm::MemberArgs),
    /// A process of simulated agents of `control`
    #[command(hide = true)]
    SimulatedAgents(control::SimulatedAgentsArgs),
}

pub(crate) fn carry_out(args: BenchArgs, output: &mut Printer) -> anyhow::Result<()> {
    match args.bench {
        Bench::Latency(args) => latency::carry_out(&args, output),
        Bench::Memory(args) => memory::carry_out(&args, output),
        Bench::Throughput(args) => throughput::carry_out(&args, output),
        Bench::Bandwidth(args) => bandwidth::carry_out(&args, output),
        Bench::Model(args) => model::carry_out(&args, output),
        Bench::Cold(args) => cold::carry_out(&args, output),
        Bench::Control(args) => control::carry_out(&args, output),
        Bench::Oversubscription(args) => oversubscription::carry_out(&args, output),
        Bench::Peers(args) => peers::carry_out(&args, output),
        Bench::Scaling(args) => scaling::carry_out(&args, output),
        Bench::Yields(args) => yields::carry_out(&args, output),
        Bench::Soak(args) => soak::carry_out(&args, output),
        Bench::Comm(args) => comm::carry_out(&args, output),
        Bench::CommMember(args) => comm::take_part(&args),
        Bench::PeerServer(args) => peers::serve(&args),
        Bench::SimulatedAgents(args) => control::run_simulated_agents(&args),
    }
}
