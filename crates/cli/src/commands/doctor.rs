//! `hotlease doctor`: checks of this host and of the platform.

mod fabric;
mod kernel;
mod machine;
mod running;
mod sandboxes;
mod site;

use clap::Args;
use hotlease_terminal::output::{Printer, printable};
use hotlease_terminal::platform::SiteArgs;
use serde::Serialize;

/// Check whether this host and the platform have all they need
///
/// With a manager on another host, also checks whether it can be reached, and which identity it sees. With
/// `--peer`, shows which transport would be chosen towards its agents and why, and tries it through short leases.
///
/// Exits with 1 if a check fails. With `--json`, prints an object for each check: check, verdict (ok, note, warn,
/// fail), finding, advice (what to do, or null).
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    site: SiteArgs,
    /// Try every transport towards the agents of the manager at this URL, or of the configured manager
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = "")]
    peer: Option<String>,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckResult {
    /// Good: no action is needed.
    Ok,
    /// Neither good nor bad: a thing that is present, or absent.
    Note,
    /// Works, but not as well as possible.
    Warn,
    /// Does not work.
    Fail,
}

/// Result of a check with its explanation.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: CheckResult,
    finding: String,
    advice: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, finding: impl Into<String>) -> Self {
        Self {
            check,
            verdict: CheckResult::Ok,
            finding: finding.into(),
            advice: None,
        }
    }

    fn note(check: &'static str, finding: impl Into<String>) -> Self {
        Self {
            verdict: CheckResult::Note,
            ..Self::ok(check, finding)
        }
    }

    fn warn(check: &'static str, finding: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            verdict: CheckResult::Warn,
            advice: Some(advice.into()),
            ..Self::ok(check, finding)
        }
    }

    fn fail(check: &'static str, finding: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            verdict: CheckResult::Fail,
            advice: Some(advice.into()),
            ..Self::ok(check, finding)
        }
    }
}

pub(crate) fn carry_out(mut args: DoctorArgs, output: &mut Printer) -> anyhow::Result<()> {
    if let Some(url) = args.peer.as_ref().filter(|url| !url.is_empty()) {
        args.site.manager = Some(url.clone());
    }
    let mut failed = 0;
    // The checks run one after the other, and each is shown at once, so that a hanging check can be identified.
    let checks = machine::CHECKS
        .iter()
        .chain(kernel::CHECKS)
        .chain(fabric::CHECKS)
        .chain(running::CHECKS)
        .chain(sandboxes::CHECKS);
    let mut tell = |findings: Vec<Finding>| -> anyhow::Result<()> {
        for finding in findings {
            failed += usize::from(finding.verdict == CheckResult::Fail);
            show(&finding, output)?;
            output.flush()?;
        }
        Ok(())
    };
    for check in checks {
        tell(check())?;
    }
    tell(site::check(&args.site))?;
    if args.peer.is_some() {
        fabric::peer(&args.site, |finding| tell(vec![finding]))?;
    }
    if failed > 0 {
        anyhow::bail!("{failed} of the checks above failed; each says what to do");
    }
    Ok(())
}

fn show(finding: &Finding, output: &mut Printer) -> anyhow::Result<()> {
    if output.is_json() {
        return output.object(finding);
    }
    let verdict = match finding.verdict {
        CheckResult::Ok => "ok",
        CheckResult::Note => "--",
        CheckResult::Warn => "warn",
        CheckResult::Fail => "FAIL",
    };
    output.line(&format!(
        "{verdict:<5} {:<18} {}",
        finding.check,
        printable(&finding.finding)
    ))?;
    match &finding.advice {
        Some(advice) => output.line(&format!("{:24} -> {}", "", printable(advice))),
        None => Ok(()),
    }
}
