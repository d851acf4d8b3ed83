//! `hotlease bench peers`: an echo through the usual means of communication.
//!
//! The server of each peer is another process of this program, pinned to the slot's core. The slot sleeps while the
//! server is called, so slot and server use the core alternately.

use super::bench_platform::BenchPlatform;
use super::fabric;
use super::host_info::HostInfo;
use super::measured_lease::{MeasuredLease, blocks, pattern};
use super::pin::pin;
use super::record::{Record, params, print};
use super::samples::{Block, Clock, Pair};
use anyhow::{Context, ensure};
use clap::Args;
use hotlease_bench_baseline::RoundTripKind as Raw;
use hotlease_bench_peers::{BYTES_MAX, Client, PeerKind};
use hotlease_client::{Completion, Function, LeaseOptions, Polling};
use hotlease_terminal::output::Printer;
use std::env;
use std::io::{BufRead, BufReader, stdout};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Measure an echo through other means, each next to hot invocations in the same run. The ratio is the number of
/// hot invocations that take as long as one such call
#[derive(Debug, Args)]
pub(super) struct PeersArgs {
    #[command(flatten)]
    transports: fabric::TransportArgs,
    /// Payload sizes, bytes, at most 4096
    #[arg(long, value_delimiter = ',', default_values_t = [8], value_parser = size)]
    sizes: Vec<usize>,
    /// Samples of each size and peer
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    samples: u32,
}

/// Arguments of a server.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    #[arg(long)]
    kind: PeerKind,
    /// Directory for the Unix socket
    #[arg(long)]
    directory: PathBuf,
    #[arg(long)]
    core: Option<usize>,
}

const BLOCK: usize = 100;
/// Time for which the slot polls after an invocation. Afterwards the server can use the core.
const HOT_BUDGET: Duration = Duration::from_millis(1);
const UNTIL_ASLEEP: Duration = Duration::from_millis(3);

fn size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size @ 1..=BYTES_MAX) => Ok(size),
        _ => Err(format!("must be a number of bytes from 1 to {BYTES_MAX}")),
    }
}

/// Runs the server of a peer (a hidden command).
pub(super) fn serve(args: &ServerArgs) -> anyhow::Result<()> {
    if let Some(core) = args.core {
        pin(core).with_context(|| format!("cannot run on core {core}"))?;
    }
    hotlease_bench_peers::serve(args.kind, &args.directory, stdout()).context("the peer's server failed")
}

/// Server of a peer and the connection to it.
struct Peer {
    kind: PeerKind,
    client: Client,
    _server: ServerProcess,
    _directory: TempDir,
}

struct ServerProcess(Child);

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The server ends by itself when its client closes the connection. The kill is for a server that hangs.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Peer {
    fn start(kind: PeerKind, core: Option<usize>) -> anyhow::Result<Self> {
        let directory = TempDir::with_prefix("hotlease-peer-").context("cannot make a directory")?;
        let mut command = Command::new(env::current_exe().context("cannot find this program")?);
        command
            .args(["bench", "peer-server", "--kind", kind.name(), "--directory"])
            .arg(directory.path());
        if let Some(core) = core {
            command.args(["--core", &core.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = ServerProcess(command.spawn().context("cannot start a peer's server")?);
        let announced = server.0.stdout.take().context("the peer's server has no output")?;
        let mut place = String::new();
        BufReader::new(announced)
            .read_line(&mut place)
            .context("cannot hear from the peer's server")?;
        let client = Client::connect(kind, place.trim())?;
        Ok(Self {
            kind,
            client,
            _server: server,
            _directory: directory,
        })
    }

    fn block(&mut self, clock: &Clock, input: &[u8]) -> anyhow::Result<Block> {
        let mut output = vec![0; input.len()];
        let block = clock.block(BLOCK / 5, BLOCK, || self.client.echo(input, &mut output))?;
        ensure!(output == input, "{} does not echo", self.kind.title());
        Ok(block)
    }
}

fn polling() -> LeaseOptions {
    LeaseOptions {
        polling: Polling::Hot,
        hot_budget: HOT_BUDGET,
        completion: Completion::Spin,
        ..LeaseOptions::default()
    }
}

pub(super) fn carry_out(args: &PeersArgs, output: &mut Printer) -> anyhow::Result<()> {
    let host = BenchPlatform::find_or_start()?;
    let samples = args.samples as usize;
    for transport in args.transports.fabrics() {
        let stage = fabric::FabricLease::set(&host, transport, polling())?;
        let ground = HotBaseline {
            transport: stage.provider.name(),
            clock: &stage.clock,
            machine: &stage.machine,
            slot: stage.cores.slot,
            echo: stage.invoker.function("echo")?,
        };
        let mut records = Vec::new();
        for size in &args.sizes {
            records.extend(ground.measure(*size, samples, None)?);
        }
        stage.invoker.deallocate()?;
        show(output, stage.provider.name(), &records)?;
    }
    if args.transports.shm() {
        let mut stage = MeasuredLease::start(&host, polling(), BYTES_MAX)?;
        let mut records = Vec::new();
        for size in &args.sizes {
            let raw = raw_pair(&mut stage, *size, samples)?;
            let ground = HotBaseline {
                transport: "shm",
                clock: &stage.clock,
                machine: &stage.machine,
                slot: stage.cores.slot,
                echo: stage.invoker.function("echo")?,
            };
            records.extend(ground.measure(*size, samples, Some(raw))?);
        }
        stage.invoker.deallocate()?;
        show(output, "shm", &records)?;
    }
    output.flush()
}

fn show(output: &mut Printer, transport: &str, records: &[Record]) -> anyhow::Result<()> {
    let title = format!("the same echo, beside hot invocations over {transport}");
    print(output, &title, records, |record| {
        let name = record.params["title"].as_str().unwrap_or_default();
        format!("{name}, {} bytes", record.params["size_bytes"])
    })
}

/// Measures hot invocations, compared with raw round trips of a cache line or a copy.
fn raw_pair(stage: &mut MeasuredLease, size: usize, samples: usize) -> anyhow::Result<Pair> {
    let input = pattern(size);
    let raw = match size {
        0..=32 => Raw::Line {
            words: size.div_ceil(8),
        },
        bytes => Raw::Copy { bytes },
    };
    let echo = stage.invoker.function("echo")?;
    let mut pair = Pair::new()?;
    for _ in 0..blocks(samples, BLOCK) {
        let baseline = stage.echo_block(&echo, &input, BLOCK)?;
        pair.add(&baseline, &stage.raw_block(raw, &input, BLOCK)?);
    }
    Ok(pair)
}

/// The hot invocations with which peers are compared.
struct HotBaseline<'a> {
    transport: &'a str,
    clock: &'a Clock,
    machine: &'a HostInfo,
    slot: Option<usize>,
    echo: Function,
}

impl HotBaseline<'_> {
    fn block(&self, input: &[u8]) -> anyhow::Result<Block> {
        let mut output = vec![0; input.len()];
        let invoke = || self.echo.invoke(input, &mut output).map(drop);
        let block = self.clock.block(BLOCK / 5, BLOCK, invoke)?;
        ensure!(output == input, "the invocation does not echo");
        Ok(block)
    }

    fn measure(&self, size: usize, samples: usize, raw: Option<Pair>) -> anyhow::Result<Vec<Record>> {
        let input = pattern(size);
        let mut peers = Vec::new();
        for kind in PeerKind::ALL {
            peers.push((Peer::start(kind, self.slot)?, Pair::new()?));
        }
        for _ in 0..blocks(samples, BLOCK) {
            for (peer, pair) in &mut peers {
                let baseline = self.block(&input)?;
                thread::sleep(UNTIL_ASLEEP);
                pair.add(&baseline, &peer.block(self.clock, &input)?);
            }
        }
        let record = |name: &str, title: &str, pair: &Pair| {
            let params = params! {
                "peer": name, "title": title, "size_bytes": size, "transport": self.transport,
            };
            Record::of_pair("peers", params, "hot invocation", pair, self.machine)
        };
        let raw = raw.map(|pair| record("raw", "raw shared memory", &pair));
        let peers = peers
            .iter()
            .map(|(peer, pair)| record(peer.kind.name(), peer.kind.title(), pair));
        Ok(raw.into_iter().chain(peers).collect())
    }
}
