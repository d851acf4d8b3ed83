//! Slurm's own figures of its accounts, as `sreport` reports them.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// How long Slurm's database may take.
pub(super) const WITHIN: Duration = Duration::from_secs(30);
/// Longest output that is read, bytes: some 100,000 accounts and users.
const OUTPUT_BYTES_MAX: u64 = 8 << 20;
/// Largest number of bytes of an error that are shown.
const ERROR_BYTES_MAX: usize = 300;
/// Start of a report of all time, in September 2001: before there was Slurm, and so before its accounting.
const FIRST_HOUR_S: u64 = 1_000_000_800;
const HOUR_MS: u64 = 3_600_000;

/// CPU-seconds of each account in a range of whole hours (milliseconds since 1970; `None`: all time, until now). An
/// error says why Slurm has no figures.
pub(super) async fn cpu_seconds(
    program: &str,
    since_ms: Option<u64>,
    until_ms: u64,
    within: Duration,
) -> Result<BTreeMap<String, u64>, String> {
    let since_s = since_ms.map_or(FIRST_HOUR_S, |since_ms| since_ms / HOUR_MS * 3600);
    let until_s = until_ms.div_ceil(HOUR_MS) * 3600;
    let range = [format!("start={}", hour(since_s)?), format!("end={}", hour(until_s)?)];
    let mut command = Command::new(program);
    command
        .args(["-P", "-n", "-t", "Seconds", "cluster", "AccountUtilizationByUser"])
        .args(range)
        .arg("format=Account,Login,Used")
        // The hours of a bill are hours of UTC.
        .env("TZ", "UTC")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut running = command
        .spawn()
        .map_err(|error| format!("{program} cannot be run: {error}"))?;
    let (output, errors) = (running.stdout.take(), running.stderr.take());
    let work = async {
        let (output, errors) = tokio::join!(read(output), read(errors));
        (output, errors, running.wait().await)
    };
    let (output, errors, status) = tokio::time::timeout(within, work)
        .await
        .map_err(|_| format!("{program} did not answer within {} s", within.as_secs_f64()))?;
    let status = status.map_err(|error| format!("{program}: {error}"))?;
    if !status.success() {
        let errors = errors.unwrap_or_default();
        let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        let last: String = last.chars().take(ERROR_BYTES_MAX).collect();
        return Err(format!("{program} failed ({status}): {last}"));
    }
    parse(&output?).map_err(|error| format!("{program} printed what was not expected: {error}"))
}

async fn read(pipe: Option<impl AsyncRead + Unpin>) -> Result<String, String> {
    let mut bytes = Vec::new();
    let pipe = pipe.ok_or("it has no output")?;
    let mut pipe = pipe.take(OUTPUT_BYTES_MAX + 1);
    pipe.read_to_end(&mut bytes).await.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > OUTPUT_BYTES_MAX {
        return Err(format!("it prints more than {OUTPUT_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it prints no text".into())
}

/// An hour as `sreport` reads it.
fn hour(unix_s: u64) -> Result<String, String> {
    let bad = || "the range of the bill is beyond what Slurm knows".to_owned();
    let seconds = i64::try_from(unix_s).map_err(|_| bad())?;
    let hour = time::OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| bad())?;
    let (year, month, day) = hour.to_calendar_date();
    Ok(format!(
        "{year:04}-{:02}-{day:02}T{:02}:00:00",
        u8::from(month),
        hour.hour()
    ))
}

/// Reads lines of `account|login|seconds`. A line without a login is the account's total, with all accounts below it;
/// an account has one such line for each cluster.
fn parse(output: &str) -> Result<BTreeMap<String, u64>, String> {
    let mut accounts = BTreeMap::new();
    for line in output.lines().filter(|line| !line.is_empty()) {
        let bad = || format!("the line {:?}", line.chars().take(ERROR_BYTES_MAX).collect::<String>());
        let fields: Vec<&str> = line.split('|').collect();
        let [account, login, used] = fields[..] else {
            return Err(bad());
        };
        let used: u64 = used.parse().map_err(|_| bad())?;
        if account.is_empty() {
            return Err(bad());
        }
        if login.is_empty() {
            let sum = accounts.entry(account.to_owned()).or_insert(0_u64);
            *sum = sum.saturating_add(used);
        }
    }
    Ok(accounts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn totals_of_accounts_are_read_and_everything_else_is_an_error() {
        let text = "root||100\nchem||80\nchem|alice|60\nchem|bob|20\nbio||0\n\nchem||7\n";
        let accounts = parse(text).expect("read");
        let expected = [("bio", 0), ("chem", 87), ("root", 100)];
        assert_eq!(accounts, expected.map(|(name, used)| (name.to_owned(), used)).into());
        assert!(parse("").expect("no accounts").is_empty());
        for bad in [
            "chem",
            "chem|80",
            "chem||",
            "chem||-1",
            "chem||1.5",
            "||1",
            "chem||1|",
            "a|b|c|d",
            "x||99999999999999999999",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        let full = format!("a||{}\na||{}", u64::MAX, u64::MAX);
        assert_eq!(parse(&full).expect("read")["a"], u64::MAX);
    }

    /// A program in place of `sreport`.
    fn program(directory: &tempfile::TempDir, script: &str) -> String {
        let path = directory.path().join("sreport");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        path.to_str().expect("text").to_owned()
    }

    #[tokio::test]
    async fn the_range_is_in_whole_hours_of_utc_and_a_failure_says_why() {
        let directory = tempfile::tempdir().expect("a directory");
        let echo = program(
            &directory,
            r#"echo "chem||$(echo "$TZ $*" | cksum | cut -c1-4)"; echo "$TZ $*" > "$0.arguments""#,
        );
        let hour = 1_700_000_000_000;
        let ask = async |program: &str, within| cpu_seconds(program, Some(hour), hour + 1, within).await;
        let accounts = ask(&echo, WITHIN).await.expect("figures");
        assert_eq!(accounts.len(), 1);
        let arguments = fs::read_to_string(format!("{echo}.arguments")).expect("it ran");
        assert!(
            arguments.starts_with("UTC -P -n -t Seconds cluster AccountUtilizationByUser ")
                && arguments.contains("start=2023-11-14T22:00:00 end=2023-11-14T23:00:00"),
            "{arguments}"
        );
        for (script, within, reason) in [
            ("echo first >&2; echo no database >&2; exit 1", WITHIN, "no database"),
            ("echo nonsense", WITHIN, "nonsense"),
            (
                "exec sleep 600",
                Duration::from_millis(50),
                "did not answer within 0.05 s",
            ),
        ] {
            let error = ask(&program(&directory, script), within).await.expect_err(script);
            assert!(error.contains(reason), "{error}");
        }
        let error = ask("/nowhere/sreport", WITHIN).await.expect_err("there is none");
        assert!(error.contains("cannot be run"), "{error}");
    }
}
