//! Folder of a batch job, in which the job's programs find the manager that serves the job.
//!
//! `hotlease up` makes the folder on the first node of the job; it is removed when the platform ends. Home directories
//! are usually the same on all nodes of a cluster, so that all nodes see the folder:
//!
//! ```text
//! jobs/CLUSTER-JOB/             only its user may enter
//!     owner                     the process that made the folder
//!     ca/  manager-identity/    authority of the job, identity of its manager
//!     agents/NODE/              identity of each agent, while the agent runs
//!     client/                   identity that all programs of the job show
//!     manager                   addresses of the manager, and the step that it runs in; written last
//! ```
//!
//! This module reads the folder; `hotlease up` writes it.

use crate::error::{IdentityError, NetError};
use crate::identity::{Identity, exposure};
use crate::peer::CertificateRole;
use crate::site::{Proof, SiteAccess};
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Environment variable with the folder in which jobs have their folders; all nodes of a job must see it.
pub const JOBS_VARIABLE: &str = "HOTLEASE_JOBS_DIR";
/// Environment variable that names the directory of a platform of this node.
const RUNTIME_DIR_VARIABLE: &str = "HOTLEASE_RUNTIME_DIR";
/// Variable of Slurm with the number of the job.
pub const JOB_VARIABLE: &str = "SLURM_JOB_ID";
/// Variable of Slurm with the name of the cluster.
pub const CLUSTER_VARIABLE: &str = "SLURM_CLUSTER_NAME";
/// Name of the folder with the client's identity.
pub const CLIENT: &str = "client";
/// Name of the file with the manager's addresses.
pub const MANAGER: &str = "manager";
/// Longest file of addresses, bytes.
const MANAGER_BYTES_MAX: u64 = 16 << 10;

/// Folder of a batch job. It need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFolder {
    path: PathBuf,
}

/// Content of the file of the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobManager {
    /// Addresses of the manager, the likeliest first.
    pub addresses: String,
    /// Identifies the step of the job in which the manager runs.
    pub step: String,
}

impl JobManager {
    /// Text of the file.
    pub fn to_text(&self) -> String {
        format!("{}\n{}\n", self.addresses, self.step)
    }
}

impl JobFolder {
    /// Folder of the job in which this process runs; `None` outside of jobs.
    pub fn of_environment() -> Option<Self> {
        Self::of_variables(|name| env::var_os(name)?.into_string().ok())
    }

    /// Folder of the job in which this process runs, unless `$HOTLEASE_RUNTIME_DIR` names a platform of this node.
    pub fn in_use() -> Option<Self> {
        let is_named = env::var_os(RUNTIME_DIR_VARIABLE).is_some_and(|dir| !dir.is_empty());
        Self::of_environment().filter(|_| !is_named)
    }

    /// Folder of the job that these variables describe.
    pub fn of_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let job = variable(JOB_VARIABLE).filter(|job| job.bytes().all(|byte| byte.is_ascii_digit()))?;
        let cluster = variable(CLUSTER_VARIABLE).unwrap_or_else(|| "cluster".into());
        let is_plain = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
        let cluster: String = cluster
            .chars()
            .map(|char| if is_plain(char) { char } else { '_' })
            .collect();
        let state = variable("XDG_STATE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute());
        let state = || state.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".local/state")));
        let jobs = variable(JOBS_VARIABLE).map(PathBuf::from);
        let jobs = jobs.or_else(|| Some(state()?.join("hotlease/jobs")))?;
        Some(Self {
            path: jobs.join(format!("{cluster}-{job}")),
        })
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of a file or folder in the job's folder.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether the folder exists; refuses a folder that another user owns or may enter.
    pub fn is_there(&self) -> Result<bool, NetError> {
        // Does not follow a link, which another user could have put there.
        let metadata = match self.path.symlink_metadata() {
            Ok(metadata) => metadata,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(false);
            }
            Err(source) => return Err(self.unreadable(self.path.clone(), source)),
        };
        let why = match metadata.is_dir() {
            true => exposure(&metadata),
            false => Some("it is not a folder"),
        };
        match why {
            None => Ok(true),
            Some(why) => Err(IdentityError::Unsafe {
                path: self.path.clone(),
                why,
            }
            .into()),
        }
    }

    /// Reads which manager serves the job; returns `None` if no manager serves yet.
    pub fn manager(&self) -> Result<Option<JobManager>, NetError> {
        let path = self.join(MANAGER);
        let is_long = |metadata: fs::Metadata| metadata.len() > MANAGER_BYTES_MAX;
        if fs::metadata(&path).is_ok_and(is_long) {
            return Err(malformed(path, "it is too long"));
        }
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.unreadable(path, source)),
        };
        match text.lines().collect::<Vec<_>>()[..] {
            [addresses, step] if !addresses.is_empty() => Ok(Some(JobManager {
                addresses: addresses.to_owned(),
                step: step.to_owned(),
            })),
            _ => Err(malformed(path, "it has not two lines")),
        }
    }

    /// Finds the manager of the job; `None` if the job has no platform of its own. Fails if its platform is starting.
    pub fn site(&self) -> Result<Option<SiteAccess>, NetError> {
        if !self.is_there()? {
            return Ok(None);
        }
        match self.manager()? {
            Some(manager) => self.site_of(&manager).map(Some),
            // The folder may have been removed meanwhile.
            None if !self.is_there()? => Ok(None),
            None => Err(NetError::Unreachable {
                peer: "the platform of this batch job".into(),
                why: format!(
                    "it is starting, or its `hotlease up` was killed: there is no {} yet",
                    self.join(MANAGER).display()
                ),
            }),
        }
    }

    /// Access to a manager of the job.
    pub fn site_of(&self, manager: &JobManager) -> Result<SiteAccess, NetError> {
        let managers = manager.addresses.split(',').map(str::parse);
        let identity = Identity::load_as(&self.join(CLIENT), CertificateRole::Client)?;
        Ok(SiteAccess {
            managers: managers.collect::<Result<_, _>>()?,
            proof: Proof::Certificate(Arc::new(identity)),
        })
    }

    fn unreadable(&self, path: PathBuf, source: io::Error) -> NetError {
        let source = Arc::new(source);
        IdentityError::File { path, source }.into()
    }
}

fn malformed(path: PathBuf, why: &str) -> NetError {
    IdentityError::Malformed {
        path,
        why: why.to_owned(),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};

    fn folder(variables: &[(&str, &str)]) -> Option<String> {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let folder = JobFolder::of_variables(|name| value(name).map(|(_, value)| (*value).to_owned()))?;
        Some(folder.path().display().to_string())
    }

    #[test]
    fn a_job_has_one_folder_wherever_its_programs_run() {
        let job = (JOB_VARIABLE, "17");
        let home = ("HOME", "/users/ada");
        assert_eq!(folder(&[home]), None, "this is no job");
        assert_eq!(folder(&[job]), None, "there is no place for the folder");
        assert_eq!(folder(&[home, (JOB_VARIABLE, "../../x")]), None);
        let usual = "/users/ada/.local/state/hotlease/jobs";
        assert_eq!(folder(&[job, home]), Some(format!("{usual}/cluster-17")));
        let cluster = (CLUSTER_VARIABLE, "../daint");
        assert_eq!(folder(&[job, home, cluster]), Some(format!("{usual}/.._daint-17")));
        let state = ("XDG_STATE_HOME", "/state");
        assert_eq!(
            folder(&[job, home, state]),
            Some("/state/hotlease/jobs/cluster-17".into())
        );
        let named = (JOBS_VARIABLE, "/scratch/ada");
        assert_eq!(
            folder(&[job, home, state, named]),
            Some("/scratch/ada/cluster-17".into())
        );
    }

    #[test]
    fn only_a_private_folder_with_a_whole_file_names_a_manager() {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = JobFolder {
            path: parent.path().join("c-1"),
        };
        assert!(folder.site().expect("no folder").is_none());
        fs::DirBuilder::new()
            .mode(0o700)
            .create(folder.path())
            .expect("a folder");
        let starting = folder.site().expect_err("no manager yet");
        assert!(
            matches!(&starting, NetError::Unreachable { why, .. } if why.contains("starting")),
            "{starting}"
        );
        let manager = JobManager {
            addresses: "https://192.0.2.1:7,https://n0:7".into(),
            step: "1.0".into(),
        };
        fs::write(folder.join(MANAGER), manager.to_text()).expect("a file");
        assert_eq!(folder.manager().expect("a manager"), Some(manager));
        fs::write(folder.join(MANAGER), "https://192.0.2.1:7\n").expect("a file");
        let error = folder.manager().expect_err("half a file").to_string();
        assert!(error.contains("two lines"), "{error}");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o750)).expect("a mode");
        let error = folder.site().expect_err("others may enter").to_string();
        assert!(error.contains("others can access it"), "{error}");
        let link = JobFolder {
            path: parent.path().join("c-2"),
        };
        symlink(folder.path(), link.path()).expect("a link");
        let error = link.site().expect_err("a link").to_string();
        assert!(error.contains("it is not a folder"), "{error}");
    }
}
