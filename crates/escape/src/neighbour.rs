//! Another tenant's process outside the sandbox: the handle in the process that starts it. The code of the neighbour's
//! process is in the folder `neighbour`.

mod pace;
mod process;
mod secrets;

pub use pace::LoopTimes;
pub use process::serve;

use crate::variables::PREFIX;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Longest wait for an answer. A neighbour answers at once, unless it was stopped or killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running neighbour. When the handle is dropped, the neighbour removes its secrets and ends.
pub struct Neighbour {
    child: Child,
    orders: Option<ChildStdin>,
    answers: ChildStdout,
    unread: Vec<u8>,
    given: Vec<(String, String)>,
}

impl Neighbour {
    /// Starts `program` (`hotlease-escape`) as a neighbour. The names of all objects that it makes contain `token`, and
    /// their contents contain `secret`, 32 letters and digits. It makes its own folder in `folder`.
    pub fn start(program: &Path, token: &str, secret: &str, folder: &Path) -> io::Result<Self> {
        let mut child = Command::new(program)
            .args(["neighbour", token])
            .arg(folder)
            .env(format!("{PREFIX}SECRET"), secret)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for");
        };
        let mut started = Self {
            child,
            orders: Some(orders),
            answers,
            unread: Vec::new(),
            given: Vec::new(),
        };
        let lines = started.read_until_done()?;
        started.given = lines
            .iter()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Ok(started)
    }

    /// The neighbour's process id, which is also the id of its process group.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Locations of the neighbour's secrets, as environment variables for attempts. The names are without their prefix.
    pub fn secret_places(&self) -> &[(String, String)] {
        &self.given
    }

    /// Harm that was done to the neighbour since its start. Empty if sandboxes work.
    pub fn harm(&mut self) -> Vec<String> {
        match self.ask("harm") {
            Ok(harm) => harm,
            Err(_) => match self.child.try_wait() {
                Ok(Some(status)) => vec![format!("the neighbour is dead ({status})")],
                _ => vec!["the neighbour does not answer".into()],
            },
        }
    }

    /// The neighbour's pace, measured over this time.
    pub fn pulse(&mut self, over: Duration) -> io::Result<LoopTimes> {
        let answer = self.ask(&format!("pulse {}", over.as_millis()))?;
        answer
            .first()
            .and_then(|line| LoopTimes::read(line))
            .ok_or_else(|| io::Error::other("the neighbour does not tell its pace"))
    }

    fn ask(&mut self, order: &str) -> io::Result<Vec<String>> {
        match &mut self.orders {
            Some(orders) => writeln!(orders, "{order}")?,
            None => return Err(io::ErrorKind::BrokenPipe.into()),
        }
        self.read_until_done()
    }

    /// Reads lines up to the line `done`.
    fn read_until_done(&mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        loop {
            while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                match String::from_utf8_lossy(&line).trim_end() {
                    "done" => return Ok(lines),
                    line => lines.push(line.to_owned()),
                }
            }
            let mut ready = [PollFd::new(self.answers.as_fd(), PollFlags::POLLIN)];
            let patience = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
            if nix::poll::poll(&mut ready, patience)? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut chunk = [0; 4096];
            match self.answers.read(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => self.unread.extend_from_slice(&chunk[..length]),
            }
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // The neighbour is asked to end, because it must remove its secrets. It is killed if it no longer answers.
        self.orders = None;
        if self.read_until_done().is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
