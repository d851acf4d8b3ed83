//! The policy in use, and its file, which is read again when it changes.

use super::policy::SitePolicy;
use super::policy_file;
use crate::AgentError;
use hotlease_wire::batch::PolicyState;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Policy of an agent: the last valid policy that its file contained.
#[derive(Debug, Default)]
pub(crate) struct PolicyWatch {
    file: Option<PathBuf>,
    reading: Mutex<PolicyReading>,
}

#[derive(Debug, Default)]
struct PolicyReading {
    policy: Arc<SitePolicy>,
    since_ms: u64,
    /// Result of the last read: the text of the file, or the reason why it could not be read.
    found: Option<Result<String, String>>,
    /// Reason why the present text of the file is not used; `None` if it is used.
    fault: Option<String>,
}

impl PolicyWatch {
    /// Reads the file for the first time. Without a file, the default policy is in use.
    pub fn start(file: Option<PathBuf>) -> Result<Self, AgentError> {
        let watch = Self {
            file,
            reading: Mutex::default(),
        };
        watch.read();
        let fault = watch.lock().fault.clone();
        match (&watch.file, fault) {
            (Some(path), Some(why)) => Err(AgentError::Policy {
                path: path.clone(),
                why,
            }),
            _ => Ok(watch),
        }
    }

    /// The policy in use.
    pub fn policy(&self) -> Arc<SitePolicy> {
        Arc::clone(&self.lock().policy)
    }

    /// Whether there is a file.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the file, and uses its policy from now on if the text has changed since the last read. If the text is not
    /// valid, the policy in use does not change.
    pub fn read(&self) {
        let Some(file) = &self.file else { return };
        let found = policy_file::read(file);
        let mut reading = self.lock();
        if reading.found.as_ref() == Some(&found) {
            return;
        }
        let policy = found.clone().and_then(|text| SitePolicy::parse(&text));
        reading.take(file, policy);
        reading.found = Some(found);
    }

    /// State of the policy, for people.
    pub fn state(&self) -> Option<PolicyState> {
        let reading = self.lock();
        Some(PolicyState {
            file: self.file.as_ref()?.display().to_string(),
            since_ms: reading.since_ms,
            fault: reading.fault.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, PolicyReading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PolicyReading {
    fn take(&mut self, file: &Path, policy: Result<SitePolicy, String>) {
        let file = file.display();
        match policy {
            Ok(policy) => {
                tracing::info!(%file, rules = policy.rules.len(), "the site's policy is in use");
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                self.since_ms = now.as_millis() as u64;
                self.policy = Arc::new(policy);
                self.fault = None;
            }
            Err(why) => {
                tracing::error!(%file, why, "the site's policy cannot be used; what was read before stays in use");
                self.fault = Some(why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_wrong_file_leaves_the_last_good_policy_in_use_and_is_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("policy.toml");
        let start = || PolicyWatch::start(Some(file.clone()));
        let missing = start().expect_err("there is no file").to_string();
        assert!(
            missing.contains("policy.toml") && missing.contains("No such file"),
            "{missing}"
        );
        fs::write(&file, "nodes-max = no").expect("a file");
        assert!(start().is_err(), "an agent does not start with a wrong policy");

        fs::write(&file, "[[company]]").expect("a file");
        let watch = start().expect("a policy");
        let rules = || watch.policy().rules.len();
        let fault = || watch.state().expect("a file").fault;
        assert_eq!((rules(), fault()), (1, None));
        for (text, says) in [
            ("[[company]]\n[[company", "line 2"),
            ("[[compny]]", "did you mean `company`?"),
        ] {
            fs::write(&file, text).expect("a file");
            watch.read();
            assert_eq!(rules(), 1, "the last good one is not in use");
            assert!(fault().is_some_and(|why| why.contains(says)), "{:?}", fault());
        }
        fs::remove_file(&file).expect("it is gone");
        watch.read();
        assert_eq!(rules(), 1);
        assert!(fault().is_some());
        fs::write(&file, "[[company]]\n[[company]]").expect("a file");
        watch.read();
        assert_eq!((rules(), fault()), (2, None));
    }

    #[test]
    fn without_a_file_there_is_the_default_policy() {
        let watch = PolicyWatch::start(None).expect("a policy");
        watch.read();
        assert_eq!((watch.state(), watch.has_file()), (None, false));
        assert_eq!(*watch.policy(), SitePolicy::default());
    }
}
