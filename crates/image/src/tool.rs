//! Programs of others that are run here: started, listened to, and told apart when missing.

use crate::error::ImageError;
use std::io::{self, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::JoinHandle;

/// Kept of what a program says.
const SAID_BYTES_MAX: u64 = 4096;

/// A program that runs. Dropped, it is killed.
pub(crate) struct Running {
    child: Child,
    program: &'static str,
    said: Option<JoinHandle<String>>,
}

/// Starts it; `package` is what the program comes with. Its standard input is what the command says, or nothing.
pub(crate) fn start(
    command: &mut Command,
    program: &'static str,
    package: &'static str,
) -> Result<Running, ImageError> {
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
    // To its end, or it would wait for us when the pipe is full.
    let listen = |mut from: std::process::ChildStderr| {
        std::thread::spawn(move || {
            let mut said = Vec::new();
            let _ = from.by_ref().take(SAID_BYTES_MAX).read_to_end(&mut said);
            let _ = io::copy(&mut from, &mut io::sink());
            String::from_utf8_lossy(&said).trim().replace('\n', "; ")
        })
    };
    let said = child.stderr.take().map(listen);
    Ok(Running { child, program, said })
}

impl Running {
    /// Once; then the program gets its end.
    pub(crate) fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Waits until it has ended; an error unless it was content.
    pub(crate) fn finish(mut self) -> Result<(), ImageError> {
        drop(self.child.stdin.take());
        let program = self.program;
        let failed = |said| ImageError::ToolFailed { program, said };
        let status = self.child.wait().map_err(|error| failed(error.to_string()))?;
        let said = self
            .said
            .take()
            .and_then(|said| said.join().ok())
            .unwrap_or_default();
        match status.success() {
            true => Ok(()),
            false if said.is_empty() => Err(failed(status.to_string())),
            false => Err(failed(said)),
        }
    }

    /// It is not needed any more.
    pub(crate) fn kill(self) {}
}

impl Drop for Running {
    fn drop(&mut self) {
        // Without effect where it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts it and waits for its end.
pub(crate) fn run(
    command: &mut Command,
    program: &'static str,
    package: &'static str,
) -> Result<(), ImageError> {
    start(command.stdin(Stdio::null()), program, package)?.finish()
}
