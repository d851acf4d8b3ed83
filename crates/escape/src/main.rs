//! `hotlease-escape`: tries to escape from the sandbox in which it is started. `hotlease sandbox test` starts it.

use hotlease_escape::{Attempt, AttemptOutcome, BEGUN, DONE, ENDED, Evidence, serve_as_neighbour, take_turn, themes};
use hotlease_nursery::zygote::{ForkHooks, Orders};
use hotlease_wire::control::WorkerAnswer;
use hotlease_wire::limits::PROTOCOL_VERSION;
use nix::sys::socket::MsgFlags;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: hotlease-escape list               the attempts, one a line: name, what it tries
       hotlease-escape page               the same as tables in Markdown, as in docs/escape-corpus.md
       hotlease-escape try NAME [TOKEN]   make one; exit status 0: contained, 1: escaped, 2: cannot be tried here
       hotlease-escape now NAME [TOKEN]   the same at once, without waiting for a word on standard input
       hotlease-escape several TOKEN NAME...
                                          the same with each, one after the other, in processes of their own, between lines that
                                          say which has begun, and how it ended
       hotlease-escape tenant TOKEN       look for what others with this token left, a line each, and leave what can be left
       hotlease-escape zygote try NAME [TOKEN]
       hotlease-escape zygote run PROGRAM [ARGUMENT...]
                                          the same, or becoming this program, in each process that is forked from this one, a zygote
       hotlease-escape neighbour TOKEN FOLDER
                                          be the process that must not notice it; ends with its standard input
`hotlease sandbox test` starts them as they are meant to be.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    carry_out(&arguments)
}

fn carry_out(arguments: &[&str]) -> ExitCode {
    match *arguments {
        ["zygote", ref others @ ..] => zygote(others),
        ["run", program, ref others @ ..] => {
            use std::os::unix::process::CommandExt;
            let error = Command::new(program).args(others).exec();
            say(&format!("{program}: {error}\n"));
            ExitCode::FAILURE
        }
        ["list"] => {
            let lines: String = attempts()
                .map(|attempt| format!("{}\t{}\n", attempt.name, attempt.what))
                .collect();
            say(&lines);
            ExitCode::SUCCESS
        }
        ["page"] => {
            say(&page());
            ExitCode::SUCCESS
        }
        // The token is not used here. It identifies left-over processes of this attempt by their command line.
        ["try", name] | ["try", name, _] => {
            wait();
            make(name)
        }
        ["now", name] | ["now", name, _] => make(name),
        ["several", token, ref names @ ..] => {
            several(token, names);
            ExitCode::SUCCESS
        }
        ["tenant", token] => {
            let found: String = take_turn(token)
                .iter()
                .map(|found| format!("found {found}\n"))
                .collect();
            say(&format!("{found}{DONE}\n"));
            ExitCode::SUCCESS
        }
        ["neighbour", token, folder] => match serve_as_neighbour(token, folder.as_ref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // Without stderr, the error cannot be reported.
                let _ = writeln!(
                    std::io::stderr(),
                    "hotlease-escape: the neighbour cannot start: {error}"
                );
                ExitCode::FAILURE
            }
        },
        _ => {
            let _ = writeln!(std::io::stderr(), "{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Makes an attempt in this process. The process must end afterwards.
fn make(name: &str) -> ExitCode {
    let outcome = match attempts().find(|attempt| attempt.name == name) {
        Some(attempt) => attempt.go(),
        None => AttemptOutcome::Untried(format!("no attempt is called {name}: see `hotlease-escape list`")),
    };
    say(&format!("{outcome}\n"));
    ExitCode::from(outcome.status())
}

/// Makes several attempts in one virtual machine, because starting a machine costs more than the attempts. Reports
/// readiness first, because all attempts together may take longer than the limit for a machine's first message.
fn several(token: &str, names: &[&str]) {
    use std::os::unix::process::ExitStatusExt;
    let ready = WorkerAnswer::Ready {
        version: PROTOCOL_VERSION,
        imports_us: 0,
        boot_us: 0,
    };
    // Without a control socket, no process waits for this message.
    let _ = nix::sys::socket::send(
        std::io::stdin().as_raw_fd(),
        &hotlease_wire::encode(&ready),
        MsgFlags::MSG_NOSIGNAL,
    );
    for name in names {
        say(&format!("{BEGUN}{name}\n"));
        let made = Command::new("/proc/self/exe").args(["now", name, token]).status();
        let status = match made {
            Ok(status) => status.code().unwrap_or_else(|| -status.signal().unwrap_or(0)),
            Err(error) => {
                say(&format!("it cannot be started: {error}\n"));
                127
            }
        };
        say(&format!("{ENDED}{status}\n"));
    }
}

/// Waits for orders to fork, and makes the attempts in the forks.
fn zygote(arguments: &[&str]) -> ExitCode {
    struct NoForkHooks;
    impl ForkHooks for NoForkHooks {
        fn before(&mut self) {}
        fn in_zygote(&mut self) {}
    }
    let forked = Orders::take().and_then(|mut orders| orders.next(&mut NoForkHooks, &mut Vec::new()));
    match forked {
        Ok(true) => carry_out(arguments),
        Ok(false) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("hotlease-escape: no zygote: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn attempts() -> impl Iterator<Item = &'static Attempt> {
    themes().iter().flat_map(|theme| theme.attempts)
}

/// Text with a table for each line of the threat model.
fn page() -> String {
    let mut page = String::new();
    for theme in themes() {
        let threat = theme.threat;
        page += &format!("\n### To {threat}\n\n");
        page +=
            "| attempt | what it tries | known by | who gets out without a sandbox | needs |\n|---|---|---|---|---|\n";
        for attempt in theme.attempts {
            let known_by = match attempt.evidence {
                Evidence::OwnClaim => "the kernel's answer",
                Evidence::Secret => "the secret",
                Evidence::Effect => "what is seen outside",
            };
            let (name, what, teeth) = (attempt.name, attempt.what, attempt.teeth);
            let needs = attempt.needs.unwrap_or_default();
            page += &format!("| `{name}` | {what} | {known_by} | {teeth} | {needs} |\n");
        }
    }
    page
}

/// Waits for a message on the control socket, if there is one. The message arrives when everything outside is prepared.
fn wait() {
    if let Ok(control) = nix::sys::socket::getsockopt(&std::io::stdin(), nix::sys::socket::sockopt::SockType)
        && control == nix::sys::socket::SockType::SeqPacket
    {
        // Any message ends the wait, and so does the end of the connection.
        let _ = nix::unistd::read(std::io::stdin(), &mut [0; 8]);
    }
}

fn say(text: &str) {
    // Without stdout no process reads the text, and the exit status suffices.
    let _ = std::io::stdout().write_all(text.as_bytes());
}
