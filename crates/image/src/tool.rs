//! Programs that are run here: starting them, reading their output, and errors if they are missing.

use crate::error::ImageError;
use std::io::{self, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::JoinHandle;

/// Limit of output that is kept, bytes.
const SAID_BYTES_MAX: u64 = 4096;

/// A running program. If the value is dropped, the program is killed.
pub(crate) struct RunningTool {
    child: Child,
    program: &'static str,
    said: Option<JoinHandle<String>>,
}

/// Starts a program; `package` is the package that contains it. The program's standard input is the one that the
/// command sets, else empty.
pub(crate) fn start(
    command: &mut Command,
    program: &'static str,
    package: &'static str,
) -> Result<RunningTool, ImageError> {
    let started = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .env("LC_ALL", "C")
        .spawn();
    let mut child = started.map_err(|source| ImageError::Tool {
        program,
        package,
        source,
    })?;
    // Reads to the end, because the program would block when the pipe is full.
    let listen = |mut from: std::process::ChildStderr| {
        std::thread::spawn(move || {
            let mut said = Vec::new();
            let _ = from.by_ref().take(SAID_BYTES_MAX).read_to_end(&mut said);
            let _ = io::copy(&mut from, &mut io::sink());
            String::from_utf8_lossy(&said).trim().replace('\n', "; ")
        })
    };
    let said = child.stderr.take().map(listen);
    Ok(RunningTool { child, program, said })
}

impl RunningTool {
    /// Takes the standard input of the program. Returns `None` if it was taken before. When it is dropped, the program
    /// sees the end of its input.
    pub(crate) fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Waits for the end of the program; fails unless its exit status is success.
    pub(crate) fn finish(mut self) -> Result<(), ImageError> {
        drop(self.child.stdin.take());
        let program = self.program;
        let failed = |said| ImageError::ToolFailed { program, said };
        let status = self.child.wait().map_err(|error| failed(error.to_string()))?;
        let said = self.said.take().and_then(|said| said.join().ok()).unwrap_or_default();
        match status.success() {
            true => Ok(()),
            false if said.is_empty() => Err(failed(status.to_string())),
            false => Err(failed(said)),
        }
    }

    /// Kills the program.
    pub(crate) fn kill(self) {}
}

impl Drop for RunningTool {
    fn drop(&mut self) {
        // Has no effect if the program has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program to its end.
pub(crate) fn run(command: &mut Command, program: &'static str, package: &'static str) -> Result<(), ImageError> {
    start(command.stdin(Stdio::null()), program, package)?.finish()
}
