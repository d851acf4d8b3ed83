//! `hotlease-nursery`: the helper program that an agent starts to make sandboxes.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().len() > 1 {
        eprintln!(
            "hotlease-nursery {}: started by an agent, takes no arguments; see `hotlease up`",
            env!("CARGO_PKG_VERSION")
        );
        return ExitCode::from(2);
    }
    match hotlease_nursery::serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hotlease-nursery: {error}");
            ExitCode::from(2)
        }
    }
}
