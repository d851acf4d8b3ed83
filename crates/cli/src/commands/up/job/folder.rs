//! The job's folder, as the tasks of `hotlease up` make, use and remove it.
//!
//! The first task makes the folder, and writes the file that names the manager last. The other tasks wait for that
//! file. Each task has a folder in `agents`. The task that leaves last removes everything: only this task can remove
//! `agents`, because `rmdir` fails while folders of other tasks are in it. So no lock is needed; a network file system
//! may have none.

use super::task::JobTask;
use anyhow::{Context, bail};
use hotlease_net::authority::{self, IdentityRequest};
use hotlease_net::job::{CLIENT, JobFolder, JobManager, MANAGER};
use hotlease_net::{CertificateRole, Identity, SiteAccess, grpc, node_id};
use hotlease_terminal::exit::CommandError;
use hotlease_wire::grpc::InfoRequest;
use hotlease_wire::grpc::manager_client::ManagerClient;
use nix::unistd::{User, geteuid};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// How long to wait for the manager of an existing folder, if the manager does not answer and the folder's owner may be
/// alive: the platform may be starting or ending.
const OTHERS_WITHIN: Duration = Duration::from_secs(10);
/// Time for the manager of a job to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// How long a folder may be gone, while the first task replaces the folder of an earlier run.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// Pause between two looks at the folder.
const LOOK: Duration = Duration::from_millis(20);
/// First pause between two changes in the folder, which make the client of a network file system look again for files
/// that were absent. Each pause is twice as long as the one before: home directories are on a file system that all jobs
/// share.
const REFRESH: Duration = Duration::from_millis(200);
/// Validity of the identities, days. Jobs are shorter, and the folder is removed at the end of its job.
const DAYS: u32 = 366;

const OWNER: &str = "owner";
const AUTHORITY: &str = "ca";
const MANAGER_IDENTITY: &str = "manager-identity";
const AGENTS: &str = "agents";

/// A task's part of the job's folder. The part is removed when this is dropped, and the folder with the last part.
pub(super) struct FolderPart {
    folder: JobFolder,
    agent: PathBuf,
    /// Whether this is the task of the manager.
    is_first: bool,
}

/// The process that made the folder.
#[derive(Debug, Serialize, Deserialize)]
struct FolderOwner {
    node: String,
    step: String,
    /// Boot of the node.
    boot: Option<String>,
    pid: u32,
    /// Start of the process: another process may get its pid later.
    started: Option<u64>,
}

/// Life of a folder's owner, as far as this node can determine it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnerLife {
    Alive,
    Dead,
    Unknown,
}

/// When a process of this node started, clock ticks since boot; `None` if it does not run.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn boot() -> Option<String> {
    node_id().map(|boot| boot.to_string())
}

impl FolderOwner {
    fn this(task: &JobTask) -> Self {
        let pid = std::process::id();
        Self {
            node: task.node.clone(),
            step: task.step.clone(),
            boot: boot(),
            pid,
            started: started(pid),
        }
    }

    /// Reads who made a folder; returns `None` if that is not recorded yet.
    fn read(folder: &JobFolder) -> Option<Self> {
        serde_json::from_slice(&fs::read(folder.join(OWNER)).ok()?).ok()
    }

    fn life(&self) -> OwnerLife {
        match (&self.boot, boot()) {
            (Some(theirs), Some(ours)) if *theirs == ours => match started(self.pid) == self.started {
                true => OwnerLife::Alive,
                false => OwnerLife::Dead,
            },
            _ => OwnerLife::Unknown,
        }
    }
}

/// Whether a manager serves this site.
async fn is_answering(site: &SiteAccess) -> bool {
    let mut client = ManagerClient::new(site.channel());
    match timeout(ANSWERS_WITHIN, client.get_info(InfoRequest {})).await {
        Ok(Ok(_)) => true,
        // If no error of the network caused the status, the manager sent it.
        Ok(Err(status)) => grpc::cause(&status).is_none(),
        Err(_) => false,
    }
}

/// Refuses a second platform in a job that has one.
async fn check_alone(folder: &JobFolder, task: &JobTask) -> anyhow::Result<()> {
    // A file that cannot be used belongs to no platform that serves.
    let Ok(Some(manager)) = folder.manager() else {
        return Ok(());
    };
    if manager.step == task.step_id {
        return Ok(());
    }
    match folder.site_of(&manager) {
        Ok(site) if is_answering(&site).await => Err(serves(folder, &task.job)),
        _ => Ok(()),
    }
}

/// The error that the job has a platform already.
pub(super) fn serves(folder: &JobFolder, job: &str) -> anyhow::Error {
    let (node, step) = match FolderOwner::read(folder) {
        Some(owner) => (owner.node, owner.step),
        None => ("another node".into(), job.to_owned()),
    };
    let job = job.to_owned();
    CommandError::ServesJob { job, node, step }.into()
}

/// The step of the job that serves, as `scancel` takes it; `None` if the folder does not record the step.
pub(in crate::commands::up) fn step_of(folder: &JobFolder) -> Option<String> {
    FolderOwner::read(folder).map(|owner| owner.step)
}

/// Makes a folder for this user alone.
fn make(path: &std::path::Path, recursive: bool) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(recursive).create(path)
}

impl FolderPart {
    /// Makes the folder of the job. Replaces the folder of a killed `up`; refuses if another `up` runs.
    pub(super) async fn create(folder: JobFolder, task: &JobTask) -> anyhow::Result<Self> {
        let path = folder.path().to_owned();
        let failed = || {
            format!(
                "cannot make the folder of the job, {}; HOTLEASE_JOBS_DIR names another place",
                path.display()
            )
        };
        let jobs = path.parent().with_context(failed)?;
        make(jobs, true).with_context(failed)?;
        let begin = Instant::now();
        loop {
            match make(&path, false) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(failed),
            }
            if !folder.is_there()? {
                continue;
            }
            check_alone(&folder, task).await?;
            let life = FolderOwner::read(&folder).map_or(OwnerLife::Unknown, |owner| owner.life());
            let is_late = begin.elapsed() >= OTHERS_WITHIN;
            match life {
                OwnerLife::Alive if is_late => return Err(serves(&folder, &task.job)),
                OwnerLife::Dead => discard(&folder)?,
                OwnerLife::Unknown if is_late => discard(&folder)?,
                OwnerLife::Alive | OwnerLife::Unknown => sleep(LOOK).await,
            }
        }
        let agents = folder.join(AGENTS);
        let part = Self {
            agent: agents.join(&task.node),
            folder,
            is_first: true,
        };
        let owner = serde_json::to_vec(&FolderOwner::this(task))?;
        let written = fs::write(part.folder.join(OWNER), owner)
            .and_then(|()| make(&agents, false))
            .and_then(|()| make(&part.agent, false));
        written.with_context(failed)?;
        authority::init(&part.folder.join(AUTHORITY))?;
        let client = IdentityRequest {
            tenant: Some(tenant()),
            ..IdentityRequest::new(CertificateRole::Client)
        };
        part.issue(client, part.folder.join(CLIENT))?;
        Ok(part)
    }

    /// Waits until the first task serves; returns its manager too.
    pub(super) async fn join(
        folder: JobFolder,
        task: &JobTask,
        first_within: Duration,
    ) -> anyhow::Result<(Self, JobManager)> {
        let begin = Instant::now();
        let (mut refresh, mut refresh_at) = (REFRESH, REFRESH);
        let (mut is_seen, mut gone) = (false, None);
        loop {
            if folder.is_there()? {
                (is_seen, gone) = (true, None);
                // If the file is incomplete, it is read again after a pause.
                if let Ok(Some(manager)) = folder.manager() {
                    if manager.step == task.step_id {
                        let agent = folder.join(AGENTS).join(&task.node);
                        let made = make(&agent, false);
                        made.with_context(|| format!("cannot make {}", agent.display()))?;
                        let part = Self {
                            agent,
                            folder,
                            is_first: false,
                        };
                        return Ok((part, manager));
                    }
                    check_alone(&folder, task).await?;
                }
            } else if is_seen && gone.get_or_insert_with(Instant::now).elapsed() >= GONE_WITHIN {
                bail!(
                    "the first task of step {} has ended, or did not start: its message says why",
                    task.step
                );
            }
            if begin.elapsed() >= first_within {
                let awaited = folder.join(MANAGER);
                bail!(
                    "node {} has waited {:?} for {}, which the first task of step {} writes: if that task serves, the two nodes do \
                     not see the same folder; set HOTLEASE_JOBS_DIR to a folder on a file system that all nodes share",
                    task.node,
                    first_within,
                    awaited.display(),
                    task.step
                );
            }
            if begin.elapsed() >= refresh_at {
                forget_absence(&folder);
                refresh *= 2;
                refresh_at += refresh;
            }
            sleep(LOOK).await;
        }
    }

    fn issue(&self, request: IdentityRequest, out: PathBuf) -> anyhow::Result<()> {
        let request = IdentityRequest { days: DAYS, ..request };
        authority::issue(&self.folder.join(AUTHORITY), &request, &out)?;
        Ok(())
    }

    /// Identity of a daemon of this task, reached under these names and addresses.
    pub(super) fn identity(&self, role: CertificateRole, hosts: Vec<String>) -> anyhow::Result<Arc<Identity>> {
        let (tenant, out) = match role {
            CertificateRole::Agent => (Some(tenant()), self.agent.clone()),
            _ => (None, self.folder.join(MANAGER_IDENTITY)),
        };
        let request = IdentityRequest {
            tenant,
            hosts,
            ..IdentityRequest::new(role)
        };
        self.issue(request, out.clone())?;
        Ok(Arc::new(Identity::load_as(&out, role)?))
    }

    /// Announces to all programs of the job that its manager serves.
    pub(super) fn announce(&self, manager: &JobManager) -> anyhow::Result<()> {
        let (new, path) = (self.folder.join("manager.new"), self.folder.join(MANAGER));
        let written = fs::write(&new, manager.to_text()).and_then(|()| fs::rename(&new, &path));
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Announces to the job's programs and other tasks that the platform ends.
    pub(super) fn retract(&self) {
        // Fails if the manager was not announced.
        let _ = fs::remove_file(self.folder.join(MANAGER));
    }

    /// Whether the manager has announced its end, or the folder is gone.
    pub(super) fn is_retracted(&self) -> bool {
        matches!(self.folder.join(MANAGER).try_exists(), Ok(false))
    }

    pub(super) fn folder(&self) -> &JobFolder {
        &self.folder
    }
}

impl Drop for FolderPart {
    fn drop(&mut self) {
        if self.is_first {
            self.retract();
        }
        let removed = fs::remove_dir_all(&self.agent);
        let is_last = fs::remove_dir(self.folder.join(AGENTS)).is_ok();
        let removed = match is_last {
            true => fs::remove_dir_all(self.folder.path()),
            false => removed,
        };
        if let Err(error) = removed {
            tracing::warn!(%error, path = %self.folder.path().display(), "could not remove the folder of the job");
        }
    }
}

/// Removes the folder of an `up` that was killed. If several processes try this, one succeeds.
fn discard(folder: &JobFolder) -> anyhow::Result<()> {
    let path = folder.path();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}.old-{}", std::process::id()));
    tracing::warn!(path = %path.display(), "removing the folder of an `up` that was killed");
    match fs::rename(path, &aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed
            .and_then(|()| fs::remove_dir_all(&aside))
            .with_context(|| format!("cannot remove {}, which a killed `up` has left", path.display())),
    }
}

/// Makes a client of NFS ask its server again for names that were absent: the client does so after a change in the
/// folder.
fn forget_absence(folder: &JobFolder) {
    let name = format!(".waits-{}-{}", boot().unwrap_or_default(), std::process::id());
    for parent in [folder.path().parent(), Some(folder.path())].into_iter().flatten() {
        // Fails while the folder is not there, which is what this waits for.
        if fs::create_dir(parent.join(&name)).is_ok() {
            let _ = fs::remove_dir(parent.join(&name));
        }
    }
}

/// Tenant of the job: the user.
fn tenant() -> String {
    let uid = geteuid();
    let user = User::from_uid(uid).ok().flatten().map(|user| user.name);
    match user {
        Some(name) if hotlease_net::peer::is_tenant_name(&name) => name,
        _ => format!("user-{uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_not_taken_for_another_with_its_pid() {
        let pid = std::process::id();
        let owner = |boot, pid, started| FolderOwner {
            node: "n0".into(),
            step: "1.0".into(),
            boot,
            pid,
            started,
        };
        assert_eq!(owner(boot(), pid, started(pid)).life(), OwnerLife::Alive);
        assert_eq!(owner(boot(), pid, Some(1)).life(), OwnerLife::Dead);
        assert_eq!(owner(boot(), u32::MAX, Some(1)).life(), OwnerLife::Dead);
        let elsewhere = owner(Some("0011223344556677".into()), pid, started(pid));
        assert_eq!(elsewhere.life(), OwnerLife::Unknown);
    }
}
