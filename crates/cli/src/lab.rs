//! Start of `hotlease-lab`, the program of `hotlease bench` and `hotlease sandbox`, as git and cargo start their
//! external subcommands.

use anyhow::{Context, anyhow};
use hotlease_sandbox::{Launcher, find_program};
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// File name of the program.
const LAB_BINARY: &str = "hotlease-lab";
/// Environment variable with the path of the program, if it is not installed beside this program.
const LAB_VARIABLE: &str = "HOTLEASE_LAB";
/// Commands of the program.
const COMMANDS: [&str; 2] = ["bench", "sandbox"];

/// Whether a command line of this program is for `hotlease-lab`: one of its commands, or `help` for one of them.
pub(crate) fn is_meant(args: &[OsString]) -> bool {
    // `--json` is the only option that may stand before a command: `--help` and `--version` there end the program.
    let mut words = args.iter().skip(1).filter(|arg| *arg != "--json");
    let is_command = |word: Option<&OsString>| word.is_some_and(|word| COMMANDS.iter().any(|name| word == name));
    match words.next() {
        Some(word) if word == "help" => is_command(words.next()),
        word => is_command(word),
    }
}

/// Replaces this process by `hotlease-lab` with the same command line; returns why it cannot.
pub(crate) fn hand_over(args: Vec<OsString>) -> anyhow::Error {
    let program = match find() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let error = Command::new(&program).args(args.into_iter().skip(1)).exec();
    anyhow!(error).context(format!(
        "cannot run {}, the program of `hotlease bench` and `hotlease sandbox`; build it with `make build`, or name it \
         in {LAB_VARIABLE}",
        program.display()
    ))
}

/// Path of the program: `$HOTLEASE_LAB`, else in the folder of this program, else in `../libexec/hotlease` from there,
/// else at the same two places relative to the worker's program. If none of these files exists, returns the first path
/// of the list, for the error message.
fn find() -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("cannot find this program")?;
    let program = find_program(&own, LAB_BINARY, LAB_VARIABLE);
    if program.is_file() {
        return Ok(program);
    }
    Ok(match Launcher::find() {
        Ok(worker) => Some(find_program(&worker, LAB_BINARY, LAB_VARIABLE)).filter(|path| path.is_file()),
        Err(_) => None,
    }
    .unwrap_or(program))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn is_handed_over(line: &str) -> bool {
        is_meant(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn commands_of_the_lab_and_help_for_them_are_handed_over() {
        for line in [
            "hotlease bench",
            "hotlease bench --help",
            "hotlease --json bench latency",
            "hotlease sandbox test --json",
            "hotlease help bench latency",
            "hotlease --json help sandbox",
        ] {
            assert!(is_handed_over(line), "{line}");
        }
        for line in [
            "hotlease",
            "hotlease help",
            "hotlease --help bench",
            "hotlease --version bench",
            "hotlease help run bench",
            "hotlease run bench",
            "bench",
        ] {
            assert!(!is_handed_over(line), "{line}");
        }
    }

    #[test]
    fn commands_of_the_lab_are_listed_with_the_others() {
        for name in COMMANDS {
            let command = crate::Cli::command();
            let listed = command.find_subcommand(name);
            assert!(listed.is_some_and(|command| command.get_about().is_some()), "{name}");
        }
    }
}
