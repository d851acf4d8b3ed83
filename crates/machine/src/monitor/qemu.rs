//! Control of QEMU by its machine protocol (QMP): a line of JSON each way.

use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSlice, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Name of the file that QEMU gets, and the URI that names it in a migration.
const FILE: &str = "devices";
const FILE_URI: &str = "fd:devices";
/// Limit on the length of a line from QEMU; its lines are much shorter.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Longest silence of QEMU: it sends nothing while it writes or reads a machine's devices.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

/// A control connection to QEMU.
pub struct QemuControl {
    to: UnixStream,
    from: BufReader<UnixStream>,
}

impl QemuControl {
    /// Begins the protocol on this connection of QEMU.
    ///
    /// # Errors
    /// QEMU speaks another protocol, or is gone.
    pub fn begin(to: UnixStream) -> Result<Self, String> {
        let from = to.set_read_timeout(Some(SILENCE_LIMIT)).and_then(|()| to.try_clone());
        let from = BufReader::new(from.map_err(|error| failed(&error))?);
        let mut control = Self { to, from };
        // QEMU's greeting with its version.
        control.hear()?;
        control.execute("qmp_capabilities", &json!({}))?;
        // Memory stays where it is; only the devices are migrated, and events report the progress.
        let capabilities = ["x-ignore-shared", "events"].map(|name| json!({"capability": name, "state": true}));
        control.execute("migrate-set-capabilities", &json!({"capabilities": capabilities}))?;
        Ok(control)
    }

    /// Stops the machine for good, and writes the state of its devices to a file.
    ///
    /// # Errors
    /// Error text of QEMU.
    pub fn save(&mut self, to: &File) -> Result<(), String> {
        self.execute("stop", &json!({}))?;
        self.give(to)?;
        self.execute("migrate", &json!({"uri": FILE_URI}))?;
        self.await_migration()
    }

    /// Resumes a machine from a file that [`save`](Self::save) has written. QEMU was started to wait for the file.
    ///
    /// # Errors
    /// Error text of QEMU.
    pub fn restore(&mut self, from: &File) -> Result<(), String> {
        self.give(from)?;
        self.execute("migrate-incoming", &json!({"uri": FILE_URI}))?;
        self.await_migration()?;
        self.execute("cont", &json!({}))
    }

    /// Gives QEMU a file, which [`FILE_URI`] names from then on.
    fn give(&mut self, file: &File) -> Result<(), String> {
        let descriptors = [file.as_raw_fd()];
        self.say(
            "getfd",
            &json!({"fdname": FILE}),
            &[ControlMessage::ScmRights(&descriptors)],
        )
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Result<(), String> {
        self.say(command, arguments, &[])
    }

    /// Sends a command with descriptors, and waits for QEMU's answer.
    fn say(&mut self, command: &str, arguments: &Value, along: &[ControlMessage<'_>]) -> Result<(), String> {
        let mut line = json!({"execute": command, "arguments": arguments}).to_string();
        line.push('\n');
        // The line fits into the socket's buffer, to which no other thread writes.
        let (line, flags) = ([IoSlice::new(line.as_bytes())], MsgFlags::MSG_NOSIGNAL);
        let sent = sendmsg::<UnixAddr>(self.to.as_raw_fd(), &line, along, flags, None);
        sent.map_err(|errno| failed(&errno.into()))?;
        loop {
            let word = self.hear()?;
            if let Some(error) = word.get("error") {
                let why = error.get("desc").and_then(Value::as_str).unwrap_or("no reason");
                return Err(format!("QEMU refuses {command}: {why}"));
            }
            if word.get("return").is_some() {
                return Ok(());
            }
        }
    }

    /// Waits until the migration is complete.
    fn await_migration(&mut self) -> Result<(), String> {
        loop {
            let word = self.hear()?;
            let status = word.pointer("/data/status").and_then(Value::as_str);
            match (word.get("event").and_then(Value::as_str), status) {
                (Some("MIGRATION"), Some("completed")) => return Ok(()),
                (Some("MIGRATION"), Some("failed" | "cancelled")) => {
                    return Err("QEMU cannot move the machine; its messages are in the worker's output".into());
                }
                _ => {}
            }
        }
    }

    fn hear(&mut self) -> Result<Value, String> {
        let mut line = Vec::new();
        let heard = (&mut self.from).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        heard.map_err(|error| failed(&error))?;
        if line.is_empty() {
            return Err("QEMU has ended".into());
        }
        serde_json::from_slice(&line).map_err(|error| format!("QEMU is not understood: {error}"))
    }
}

fn failed(error: &io::Error) -> String {
    format!("telling QEMU: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A QEMU that sends these lines, also without a command.
    fn says(lines: &[&str]) -> QemuControl {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let all: String = lines.iter().map(|line| format!("{line}\n")).collect();
        theirs.write_all(all.as_bytes()).expect("room for some lines");
        theirs.shutdown(std::net::Shutdown::Write).expect("it was open");
        // Reads until the test is over.
        std::thread::spawn(move || theirs.read_to_end(&mut Vec::new()));
        QemuControl {
            from: BufReader::new(ours.try_clone().expect("a descriptor")),
            to: ours,
        }
    }

    #[test]
    fn events_are_skipped_and_refusals_are_returned() {
        let event = r#"{"event": "STOP", "data": {}}"#;
        let mut qemu = says(&[event, r#"{"return": {}}"#]);
        assert_eq!(qemu.execute("stop", &json!({})), Ok(()));
        let mut qemu = says(&[r#"{"error": {"class": "GenericError", "desc": "no such thing"}}"#]);
        let why = qemu.execute("migrate", &json!({})).expect_err("refused");
        assert_eq!(why, "QEMU refuses migrate: no such thing");
    }

    #[test]
    fn a_migration_ends_when_the_machine_reports_it() {
        let moved = |status: &str| format!(r#"{{"event": "MIGRATION", "data": {{"status": "{status}"}}}}"#);
        let mut qemu = says(&[&moved("setup"), &moved("active"), &moved("completed")]);
        assert_eq!(qemu.await_migration(), Ok(()));
        assert!(says(&[&moved("failed")]).await_migration().is_err());
        assert!(says(&[]).await_migration().expect_err("gone").contains("has ended"));
        assert!(
            says(&["nonsense"])
                .await_migration()
                .expect_err("no JSON")
                .contains("not understood")
        );
    }
}
