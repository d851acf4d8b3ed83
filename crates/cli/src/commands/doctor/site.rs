//! Checks of the manager on another host, if one is named: our identity, and whether the manager answers.

use super::Finding;
use super::running::agents;
use crate::commands::identity::{now, validity};
use hotlease_net::Proof;
use hotlease_terminal::platform::{Platform, SiteArgs};

/// Remaining validity below which a warning is given, seconds: a week.
const SOON: i64 = 7 * 24 * 3600;

pub(super) fn check(args: &SiteArgs) -> Vec<Finding> {
    const IDENTITY: &str = "identity";
    const MANAGER: &str = "manager";
    let advice = "the site's operator issues identities with `hotlease identity issue`";
    let site = match args.site() {
        Ok(None) => return Vec::new(),
        Ok(Some(site)) => site,
        Err(error) => return vec![Finding::fail(IDENTITY, format!("{error:#}"), advice)],
    };
    let mut findings = vec![match &site.proof {
        Proof::Certificate(identity) => {
            let described = identity.described();
            let until = validity(described.not_before, described.not_after);
            let found = format!("{}; its validity {until}", described.peer);
            match described.not_after - now() {
                ..0 => Finding::fail(IDENTITY, found, advice),
                0..SOON => Finding::warn(IDENTITY, found, advice),
                _ => Finding::ok(IDENTITY, found),
            }
        }
        // Only the manager can tell whether it accepts the credential.
        Proof::Credential(credential, trust) => {
            let found = format!("{credential}; trusts the authority in {}", trust.path().display());
            Finding::ok(IDENTITY, found)
        }
    }];
    let asked = Platform::of_site(&site).and_then(|mut platform| {
        let info = platform.info()?;
        Ok((platform, info))
    });
    match asked {
        Ok((mut platform, info)) => {
            let found = format!("{site} answers, version {}", info.version);
            findings.push(Finding::ok(MANAGER, found));
            findings.extend(agents(&mut platform));
        }
        Err(error) => {
            let advice = "see whether the manager runs with --listen, and look into its log";
            findings.push(Finding::fail(MANAGER, format!("{error:#}"), advice));
        }
    }
    findings
}
