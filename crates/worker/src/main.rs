//! `hotlease-worker`: a worker process, started by an agent.

use hotlease_worker::Worker;
use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().len() > 1 {
        eprintln!(
            "hotlease-worker {}: started by an agent, takes no arguments; see `hotlease up`",
            env!("CARGO_PKG_VERSION")
        );
        return ExitCode::from(2);
    }
    match Worker::take_over() {
        Ok(worker) => worker.serve(),
        Err(error) => {
            eprintln!("hotlease-worker: standard input is not an agent's control socket: {error}");
            ExitCode::from(2)
        }
    }
}
