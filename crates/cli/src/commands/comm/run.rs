//! `hotlease comm run`: all members of one communicator, on this host.

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use hotlease_comm::Secret;
use hotlease_comm::rendezvous::{Limits, Server};
use hotlease_terminal::exit::CommandError;
use hotlease_terminal::quantity;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Longest piece of a line; a longer line is labelled in pieces.
const LINE_BYTES_MAX: u64 = 64 * 1024;

/// Start the members of one communicator on this host, and wait for them
///
/// Runs the program N times, each with its rank. HOTLEASE_COMM_RENDEZVOUS, HOTLEASE_COMM_NAME, HOTLEASE_COMM_SIZE,
/// HOTLEASE_COMM_RANK and HOTLEASE_COMM_SECRET in its environment name a rendezvous in this process and a secret that
/// is made for this run. When one member fails, the others are ended. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are
/// passed on to all members. Rank 0 gets the standard input, unless it is a terminal. The exit status is the status of
/// the member that failed first (128 plus the signal's number, if it was killed).
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Number of members
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2048))]
    ranks: u32,
    /// Put the rank before each line that a member prints: `[3] text`
    #[arg(long)]
    label: bool,
    /// Let the other members go on when a member fails
    #[arg(long)]
    keep_going: bool,
    /// How long members may take to end after a signal, before they are killed
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = quantity::parse_time)]
    grace: Duration,
    /// Program and its arguments
    #[arg(
        trailing_var_arg = true,
        required = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// Starts the members, and waits for all of them.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start a runtime")?.block_on(async {
        // From here on, signals go to the members.
        let mut told = MemberSignals::listen()?;
        let secret = STANDARD.encode(rand::random::<[u8; 32]>());
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::start(here, vec![Secret::new(secret.as_bytes())?], Limits::default())?;
        let mut members = MemberProcesses::default();
        for rank in 0..args.ranks {
            let command = command(args, rank, server.address(), &secret);
            members.start(command, rank, args.label)?;
        }
        members.wait(args, &mut told).await
    })
}

fn command(args: &RunArgs, rank: u32, rendezvous: SocketAddr, secret: &str) -> Command {
    let (program, arguments) = args.program.split_first().expect("clap requires one");
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("HOTLEASE_COMM_RENDEZVOUS", rendezvous.to_string())
        .env("HOTLEASE_COMM_NAME", "run")
        .env("HOTLEASE_COMM_SIZE", args.ranks.to_string())
        .env("HOTLEASE_COMM_RANK", rank.to_string())
        .env("HOTLEASE_COMM_SECRET", secret)
        .env_remove("HOTLEASE_COMM_SECRET_FILE")
        // Each member has its own process group, so that the member's children end with it. Such a group cannot read
        // from a terminal.
        .process_group(0)
        .kill_on_drop(true);
    if rank > 0 || io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    if args.label {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    command
}

/// Members that were started.
#[derive(Default)]
struct MemberProcesses {
    /// Process groups by rank; `None` if the member has ended.
    groups: Vec<Option<Pid>>,
    ends: JoinSet<(u32, io::Result<ExitStatus>)>,
    outputs: JoinSet<()>,
}

impl MemberProcesses {
    fn start(&mut self, mut command: Command, rank: u32, label: bool) -> anyhow::Result<()> {
        let program = command.as_std().get_program().to_owned();
        let started = command.spawn();
        let mut child: Child = started.with_context(|| format!("cannot start {}", program.display()))?;
        if label {
            if let Some(stdout) = child.stdout.take() {
                self.outputs.spawn(labelled(stdout, rank, || io::stdout().lock()));
            }
            if let Some(stderr) = child.stderr.take() {
                self.outputs.spawn(labelled(stderr, rank, || io::stderr().lock()));
            }
        }
        self.groups.push(child.id().map(|pid| Pid::from_raw(pid as i32)));
        self.ends.spawn(async move { (rank, child.wait().await) });
        Ok(())
    }

    /// Sends a signal to all members that have not ended, and to their children.
    fn signal_all(&self, signal: Signal) {
        for group in self.groups.iter().flatten() {
            // Fails if the member has ended just now.
            let _ = killpg(*group, signal);
        }
    }

    async fn wait(mut self, args: &RunArgs, told: &mut MemberSignals) -> anyhow::Result<()> {
        let mut failed: Option<CommandError> = None;
        let mut patience: Option<Instant> = None;
        loop {
            let until = patience.unwrap_or_else(Instant::now);
            tokio::select! {
                end = self.ends.join_next() => {
                    let Some(end) = end else { break };
                    let (rank, status) = end.context("a task that waits for a member panicked")?;
                    let status = status.context("cannot wait for a member")?;
                    self.groups[rank as usize] = None;
                    if status.success() || failed.is_some() {
                        continue;
                    }
                    let are_ended = !args.keep_going && self.groups.iter().any(Option::is_some);
                    failed = Some(failure(rank, status, are_ended));
                    if are_ended {
                        self.signal_all(Signal::SIGTERM);
                        patience.get_or_insert(Instant::now() + args.grace);
                    }
                }
                signal = told.next() => {
                    self.signal_all(signal);
                    if !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) {
                        // A second such signal kills at once.
                        patience = Some(Instant::now() + if patience.is_some() { Duration::ZERO } else { args.grace });
                    }
                }
                () = sleep_until(until), if patience.is_some() => {
                    self.signal_all(Signal::SIGKILL);
                    patience = Some(Instant::now() + args.grace);
                }
            }
        }
        // Bounded, because a child of a member may still hold the member's output open.
        let outputs = async { while self.outputs.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(args.grace, outputs).await;
        failed.map_or(Ok(()), |failed| Err(failed.into()))
    }
}

fn failure(rank: u32, status: ExitStatus, are_ended: bool) -> CommandError {
    let (how, status) = match (status.code(), status.signal()) {
        (Some(code), _) => (format!("exited with status {code}"), code as u8),
        (None, Some(number)) => {
            let name = Signal::try_from(number).map_or_else(|_| number.to_string(), |signal| signal.to_string());
            (format!("was killed by {name}"), 128 + number as u8)
        }
        (None, None) => ("ended".to_owned(), 1),
    };
    CommandError::Member {
        rank,
        how,
        others: if are_ended { "; the others were ended" } else { "" },
        status,
    }
}

/// Copies lines, each with the rank before it.
async fn labelled<W: Write>(from: impl AsyncRead + Unpin, rank: u32, to: fn() -> W) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(format!("[{rank}] ").as_bytes());
        let label = line.len();
        let read = (&mut from).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await;
        if read.is_err() || line.len() == label {
            return;
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        let mut to = to();
        // If the reader is gone, the member goes on.
        let _ = to.write_all(&line).and_then(|()| to.flush());
    }
}

/// Signals that are passed on to the members.
struct MemberSignals(Vec<(Signal, Stream)>);

impl MemberSignals {
    fn listen() -> anyhow::Result<Self> {
        let all = [
            (Signal::SIGINT, SignalKind::interrupt()),
            (Signal::SIGTERM, SignalKind::terminate()),
            (Signal::SIGHUP, SignalKind::hangup()),
            (Signal::SIGUSR1, SignalKind::user_defined1()),
            (Signal::SIGUSR2, SignalKind::user_defined2()),
        ];
        let listen = |(name, kind)| signal(kind).map(|stream| (name, stream));
        let streams = all.into_iter().map(listen).collect::<Result<_, _>>();
        Ok(Self(streams.context("cannot handle signals")?))
    }

    async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (name, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*name);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}
