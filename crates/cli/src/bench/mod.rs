//! `hotlease bench`: how fast the platform is on this machine, beside what could be expected.
//!
//! The cores of shared machines move: the same two are now near and now far. Every figure is therefore
//! taken beside a baseline in blocks of some hundred samples that alternate within milliseconds, on the
//! same two cores and in the same kind of memory: the baseline's peer runs inside the leased slot itself
//! (see the crate `hotlease-bench-baseline`). What counts is the ratio, and the difference of each pair
//! of blocks; absolute figures say more about the machine's mood.
//!
//! One file a benchmark:
//!
//! * [`latency`] — hot round trips by size, in place, and [`warm`] ones by idle gap.
//! * [`throughput`] — invocations per second, pipelined.
//! * [`bandwidth`] — bytes per second read in place, and copied.
//! * [`cold`] — from asking for a lease to the first result, in every kind of sandbox.
//! * [`comm`] — what each algorithm of each collective takes, and a table of the fastest.
//! * [`control`] — grants per second, and what many agents and leases cost a manager.
//! * [`oversubscription`] — what shared cores cost and give.
//! * [`peers`] — the same echo through sockets, gRPC and HTTP.
//! * [`fabric`] — latency and bandwidth over libfabric.
//! * [`model`] — LogP parameters of a channel, and how well they predict.
//! * [`scaling`] — round trips on several workers at once.
//! * [`soak`] — a million invocations: memory and descriptors before and after.
//!
//! and what they share: [`stage`] (a lease and its baseline), [`host`] (the platform, running or private),
//! [`pin`], [`samples`], [`record`] (what is printed).

mod bandwidth;
mod cold;
mod comm;
mod control;
mod fabric;
mod host;
mod latency;
mod machine;
mod model;
mod oversubscription;
mod peers;
mod pin;
mod process;
mod record;
mod samples;
mod scaling;
mod soak;
mod stage;
mod throughput;
mod warm;

pub(crate) use host::functions;

use crate::output::Output;
use clap::{Args, Subcommand};

/// Measure how fast the platform is on this machine, beside baselines in the same run
///
/// Uses the running platform, or starts one for itself and stops it again. The client's thread is pinned
/// to another core than the slot, where there is one.
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
    /// What calls cost by LogP, and how well that predicts round trips and plans
    Model(model::ModelArgs),
    /// From asking for a lease to the first result, in every kind of sandbox, beside other ways to start the same
    Cold(cold::ColdArgs),
    /// Grants per second, and what many agents and leases cost a manager
    Control(control::ControlArgs),
    /// More warm slots than cores: the claim, the refusal, the throughput
    Oversubscription(oversubscription::OversubscriptionArgs),
    /// The same echo through a Unix socket, TCP, gRPC and HTTP
    Peers(peers::PeersArgs),
    /// Round trips on several workers at once, beside one alone
    Scaling(scaling::ScalingArgs),
    /// Many invocations: what do memory and descriptors do?
    Soak(soak::SoakArgs),
    /// What each algorithm of each collective takes between processes, and a table of the fastest
    Comm(comm::CommArgs),
    /// The other end of `peers`
    #[command(hide = true)]
    PeerServer(peers::ServerArgs),
    /// Members of `comm`
    #[command(hide = true)]
    CommMember(comm::MemberArgs),
    /// Agents of `control`
    #[command(hide = true)]
    SimulatedAgents(control::MembersArgs),
}

pub(crate) fn carry_out(args: BenchArgs, output: &mut Output) -> anyhow::Result<()> {
    match args.bench {
        Bench::Latency(args) => latency::carry_out(&args, output),
        Bench::Throughput(args) => throughput::carry_out(&args, output),
        Bench::Bandwidth(args) => bandwidth::carry_out(&args, output),
        Bench::Model(args) => model::carry_out(&args, output),
        Bench::Cold(args) => cold::carry_out(&args, output),
        Bench::Control(args) => control::carry_out(&args, output),
        Bench::Oversubscription(args) => oversubscription::carry_out(&args, output),
        Bench::Peers(args) => peers::carry_out(&args, output),
        Bench::Scaling(args) => scaling::carry_out(&args, output),
        Bench::Soak(args) => soak::carry_out(&args, output),
        Bench::Comm(args) => comm::carry_out(&args, output),
        Bench::CommMember(args) => comm::take_part(&args),
        Bench::PeerServer(args) => peers::serve(&args),
        Bench::SimulatedAgents(args) => control::members(&args),
    }
}
