//! Checks of the sandbox kinds that this host can make for the calling user, with the site's options at their
//! defaults.

use super::Finding;
use hotlease_sandbox::{Kind, Launcher};

pub(super) const CHECKS: &[fn() -> Vec<Finding>] = &[kinds];

/// Kinds that may lack a prerequisite.
const KINDS: [(&str, Kind); 4] = [
    ("process", Kind::Process),
    ("namespace", Kind::Namespace),
    ("container", Kind::Container),
    ("microvm", Kind::MicroVm),
];

fn kinds() -> Vec<Finding> {
    let Ok(launcher) = Launcher::find().and_then(|path| Launcher::new(&path)) else {
        return Vec::new(); // The check of the worker program reports it.
    };
    let kinds = KINDS.iter();
    kinds
        .map(|(check, kind)| kind_finding(check, launcher.find_lacking(*kind)))
        .collect()
}

/// Finding for one kind. A missing kind is no failure, because a site need not have every kind.
fn kind_finding(check: &'static str, lacking: Result<Vec<String>, String>) -> Finding {
    match lacking {
        Err(why) => Finding::note(check, format!("no sandboxes of this kind here: {why}")),
        Ok(lacking) if lacking.is_empty() => Finding::ok(check, "sandboxes of this kind can be made"),
        Ok(lacking) => Finding::warn(
            check,
            format!("not enforced on this host: {}", lacking.join("; ")),
            "docs/sandboxes.md says what a node needs",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckResult;
    use super::*;

    #[test]
    fn a_kind_that_is_not_there_is_no_failure_and_says_why() {
        let finding = kind_finding("microvm", Err("there is no /dev/kvm".into()));
        assert_eq!(finding.verdict, CheckResult::Note);
        assert!(finding.finding.contains("there is no /dev/kvm"));
        let finding = kind_finding("namespace", Ok(vec!["Landlock".into(), "cores".into()]));
        assert_eq!(finding.verdict, CheckResult::Warn);
        assert!(finding.finding.ends_with("Landlock; cores"));
        assert_eq!(kind_finding("namespace", Ok(Vec::new())).verdict, CheckResult::Ok);
    }
}
