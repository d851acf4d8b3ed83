//! Process of a neighbour: it has secrets, answers orders, and notices attacks on itself.

use super::pace::LoopTimes;
use super::secrets::{Listeners, Secrets};
use crate::residue::Residue;
use crate::syscall::{allow_tracing, kernel};
use crate::variables::PREFIX;
use std::fs;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Received signals, one bit for each.
static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn record_signal(signal: libc::c_int) {
    SIGNALS.fetch_or(1 << signal, Ordering::Relaxed);
}

/// Attributes of a process that the kernel stores, and that other processes might change.
#[derive(Debug, PartialEq, Eq)]
struct KernelAttributes {
    descriptors_max: u64,
    priority: libc::c_long,
    processors: [u64; 16],
    oom_score_adj: String,
    tracer: String,
}

impl KernelAttributes {
    fn now() -> Self {
        let mut limit = libc::rlimit64 {
            rlim_cur: 0,
            rlim_max: 0,
        };
        let mut processors = [0; 16];
        // If a call fails, its value is zero both times, so it is not reported as changed.
        let _ = kernel!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit);
        let _ = kernel!(SYS_sched_getaffinity, 0, 128, processors.as_mut_ptr());
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let tracer = status.lines().find(|line| line.starts_with("TracerPid"));
        Self {
            descriptors_max: limit.rlim_cur,
            priority: kernel!(SYS_getpriority, libc::PRIO_PROCESS, 0).unwrap_or(0),
            processors,
            oom_score_adj: fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default(),
            tracer: tracer.unwrap_or_default().to_owned(),
        }
    }

    fn changes(&self, now: &Self) -> Vec<String> {
        [
            (self.descriptors_max != now.descriptors_max, "its limits were changed"),
            (self.priority != now.priority, "its priority was changed"),
            (self.processors != now.processors, "it was moved to other processors"),
            (self.oom_score_adj != now.oom_score_adj, "its oom_score_adj was changed"),
            (self.tracer != now.tracer, "it is traced"),
        ]
        .into_iter()
        .filter(|(changed, _)| *changed)
        .map(|(_, what)| what.to_owned())
        .collect()
    }
}

/// Serves as a neighbour until standard input ends: prints the locations of its secrets. Then answers `harm` with the
/// harm that was done to it, and `pulse MILLISECONDS` with its pace. Each answer ends with a line `done`.
pub fn serve(token: &str, folder: &Path) -> io::Result<()> {
    let secret = std::env::var(format!("{PREFIX}SECRET")).map_err(io::Error::other)?;
    allow_tracing();
    for signal in [
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGURG,
        libc::SIGIO,
        libc::SIGHUP,
        libc::SIGTERM,
    ] {
        // SAFETY: the handler does nothing but an atomic operation.
        unsafe { libc::signal(signal, record_signal as *const () as libc::sighandler_t) };
    }
    let mut given = Vec::new();
    let (mut secrets, listeners) = Secrets::make(token, &secret, folder, &mut given)?;
    serve_secret(listeners, &secret);
    let before = KernelAttributes::now();
    let mut out = io::stdout().lock();
    for (name, value) in given {
        writeln!(out, "{name}={value}")?;
    }
    writeln!(out, "done")?;
    for order in io::stdin().lock().lines() {
        let order = order?;
        match order.split_once(' ') {
            Some(("pulse", millis)) => {
                let over = Duration::from_millis(millis.parse().unwrap_or(1));
                writeln!(out, "{}", LoopTimes::measure(over))?;
            }
            _ => {
                let mut harm = secrets.harm(&secret);
                harm.extend(before.changes(&KernelAttributes::now()));
                let signals = SIGNALS.load(Ordering::Relaxed);
                harm.extend(
                    (1..64)
                        .filter(|signal| signals & (1 << signal) != 0)
                        .map(|signal| format!("signal {signal} came")),
                );
                for line in harm {
                    writeln!(out, "{line}")?;
                }
            }
        }
        writeln!(out, "done")?;
    }
    drop(secrets);
    Residue::of_neighbour(token).iter().for_each(Residue::remove);
    writeln!(out, "done")
}

/// Sends the secret to every process that connects, as a careless service would.
fn serve_secret(listeners: Listeners, secret: &str) {
    let Listeners { tcp, path, nameless } = listeners;
    let tell = |secret: &str, mut stranger: Box<dyn Write>| drop(stranger.write_all(secret.as_bytes()));
    let own = secret.to_owned();
    thread::spawn(move || {
        tcp.incoming()
            .flatten()
            .for_each(|stranger| tell(&own, Box::new(stranger)))
    });
    for listener in [path, nameless] {
        let own = secret.to_owned();
        thread::spawn(move || {
            listener
                .incoming()
                .flatten()
                .for_each(|stranger| tell(&own, Box::new(stranger)));
        });
    }
}
