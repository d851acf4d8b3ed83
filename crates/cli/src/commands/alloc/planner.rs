//! Decisions of an allocator: which jobs it submits and cancels.
//!
//! Jobs are submitted for clients that wait for a lease, and only for the nodes that these clients need beyond the
//! nodes already on their way. Besides, a queue keeps the minimum of nodes that its user set. After a
//! rejection or a failed job a queue pauses, each time for twice as long; meanwhile the next queue is used.

use super::records::{AllocatorState, JobPhase, ListedJob, PilotJob, Queue, Trouble};
use std::cmp::Reverse;

/// First and longest pause of a queue after a rejection or a failure.
const PAUSE_MS: (u64, u64) = (15_000, 30 * 60_000);
/// Time for which nodes of a running job count as on their way. After that time the job's agents have registered.
const STARTING_MS: u64 = 15_000;
/// Time for which a job must have run to show that its queue works.
const SOUND_MS: u64 = 60_000;
/// Number of jobs of each queue whose records are kept after their end.
const ENDED_MAX: usize = 20;
/// Largest number of workers of one client that are placed in one round; more workers need several rounds.
const PIECES_MAX: u32 = 4096;

/// A client that waits for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClientDemand {
    pub tenant: String,
    pub workers: u32,
    pub slots_per_worker: u32,
    pub gpus: u32,
    /// Whether its workers may be on several nodes.
    pub spread: bool,
}

/// Something to do at the batch system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AllocatorAction {
    /// Submit the job of this name, which is recorded in the state already.
    Submit { name: String },
    /// Cancel this job.
    Cancel { name: String, number: String },
}

impl AllocatorAction {
    /// The action that cancels this job; `None` while the job has no number.
    fn cancel(job: &PilotJob) -> Option<Self> {
        let (name, number) = (job.name.clone(), job.number.clone()?);
        Some(Self::Cancel { name, number })
    }
}

/// Reason why a job was not submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SubmitError {
    /// The batch system's words.
    pub why: String,
    /// Whether it is certain that there is no job; otherwise the next listing decides.
    pub is_rejected: bool,
}

impl Queue {
    /// Places clients on nodes of this queue. Returns for each client the number of nodes that must exist before all of
    /// its workers are served; `None` if nodes of this queue never serve the client.
    fn place(&self, clients: &[ClientDemand]) -> Vec<Option<usize>> {
        let mut free: Vec<u32> = Vec::new();
        let place = |client: &ClientDemand| {
            if client.gpus > self.gpus || !self.agents.tenants.contains(&client.tenant) {
                return None;
            }
            let Some(cores) = self.cores else {
                // Nodes of unknown size: one node for each client.
                free.push(0);
                return Some(free.len());
            };
            let slots = client.workers.saturating_mul(client.slots_per_worker);
            let (pieces, each) = match client.spread {
                true => (client.workers.min(PIECES_MAX), client.slots_per_worker),
                false => (1, slots),
            };
            if each > cores {
                return None;
            }
            let mut last = 0;
            for _ in 0..pieces {
                let at = match free.iter().position(|free| *free >= each) {
                    Some(at) => at,
                    None if free.len() as u32 >= self.max_nodes => return Some(usize::MAX),
                    None => {
                        free.push(cores);
                        free.len() - 1
                    }
                };
                free[at] -= each;
                last = last.max(at + 1);
            }
            Some(last)
        };
        clients.iter().map(place).collect()
    }

    /// Whether the queue pauses.
    fn pauses(&self, now_ms: u64) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| now_ms < trouble.until_ms)
    }

    fn fail(&mut self, why: String, rejected: bool, now_ms: u64) {
        let failures = self.trouble.as_ref().map_or(0, |trouble| trouble.failures) + 1;
        let pause = PAUSE_MS.0.saturating_mul(1 << (failures - 1).min(16)).min(PAUSE_MS.1);
        self.trouble = Some(Trouble {
            why,
            rejected,
            failures,
            until_ms: now_ms + pause,
        });
    }
}

impl AllocatorState {
    /// Jobs of a queue that have not ended.
    pub(super) fn live<'s>(&'s self, queue: &'s str) -> impl Iterator<Item = &'s PilotJob> {
        let of_queue = self.jobs.iter().filter(move |job| job.queue == queue);
        of_queue.filter(|job| !job.phase.is_over())
    }

    /// Notes what the batch system lists; returns the jobs that changed.
    pub(super) fn observe(&mut self, listed: &[ListedJob], now_ms: u64) -> Vec<PilotJob> {
        let mut changed = Vec::new();
        for job in self.jobs.iter_mut().filter(|job| !job.phase.is_over()) {
            let before = (job.phase, job.reason.clone());
            let seen = listed.iter().find(|listed| listed.name == job.name);
            let (phase, reason) = match seen {
                Some(seen) => {
                    job.number = Some(seen.number.clone());
                    (seen.phase.unwrap_or(job.phase), seen.reason.clone())
                }
                None if job.number.is_none() => (JobPhase::Lost, "its submission was interrupted".to_owned()),
                None => (JobPhase::Lost, "the batch system no longer lists it".to_owned()),
            };
            if job.phase == JobPhase::Running && matches!(phase, JobPhase::Pending | JobPhase::Held) {
                job.requeues += 1;
                job.running_ms = None;
            }
            if phase == JobPhase::Running {
                job.running_ms.get_or_insert(now_ms);
            }
            (job.phase, job.reason) = (phase, reason);
            if phase.is_over() {
                job.ended_ms = Some(now_ms);
            }
            if let Some(queue) = self.queues.get_mut(&job.queue) {
                let ran_ms = job.running_ms.map_or(0, |since| now_ms.saturating_sub(since));
                match phase {
                    JobPhase::Cancelled if job.dismissed => {}
                    // If an administrator cancelled the job, the next job is not submitted at once.
                    JobPhase::Failed | JobPhase::Cancelled => {
                        let number = job.number.as_deref().unwrap_or("?");
                        queue.fail(format!("job {number} {phase}: {}", job.reason), false, now_ms);
                    }
                    JobPhase::Completed | JobPhase::OutOfTime | JobPhase::Preempted => queue.trouble = None,
                    JobPhase::Running if ran_ms > SOUND_MS => queue.trouble = None,
                    _ => {}
                }
            }
            if before.0 != job.phase || before.1 != job.reason {
                changed.push(job.clone());
            }
        }
        self.forget();
        changed
    }

    fn forget(&mut self) {
        for queue in self.queues.keys() {
            let is_ended = |job: &PilotJob| job.queue == *queue && job.phase.is_over();
            let mut surplus = self
                .jobs
                .iter()
                .filter(|job| is_ended(job))
                .count()
                .saturating_sub(ENDED_MAX);
            self.jobs.retain(|job| {
                let goes = surplus > 0 && is_ended(job);
                surplus -= usize::from(goes);
                !goes
            });
        }
    }

    /// Cancels jobs of a queue that has more nodes than its limit: first jobs that have not begun, then running jobs;
    /// in each group, the youngest first.
    fn surplus(&self, at: &str) -> Vec<AllocatorAction> {
        let most = self.queues.get(at).map_or(0, |queue| queue.max_nodes);
        let mut jobs: Vec<_> = self.live(at).filter(|job| !job.dismissed).collect();
        let mut nodes: u32 = jobs.iter().map(|job| job.nodes).sum();
        jobs.sort_by_key(|job| (job.phase == JobPhase::Running, Reverse(job.submitted_ms)));
        let mut cancelled = Vec::new();
        for job in jobs {
            if nodes <= most {
                break;
            }
            // A job that is being submitted has no number yet: it is cancelled the next time.
            if let Some(cancel) = AllocatorAction::cancel(job) {
                nodes -= job.nodes;
                cancelled.push(cancel);
            }
        }
        cancelled
    }

    /// Decides what to submit and cancel for the clients that wait, and records it. `name` makes the name of a job.
    pub(super) fn plan(
        &mut self,
        clients: &[ClientDemand],
        now_ms: u64,
        mut name: impl FnMut(&str) -> String,
    ) -> Vec<AllocatorAction> {
        let mut actions = Vec::new();
        let mut clients = clients.to_vec();
        let mut order: Vec<_> = self
            .queues
            .iter()
            .map(|(name, queue)| (Reverse(queue.priority), name.clone()))
            .collect();
        order.sort();
        for (_, at) in order {
            actions.extend(self.surplus(&at));
            let (mut nodes, mut waiting, mut coming) = (0, 0, 0);
            for job in self.live(&at).filter(|job| !job.dismissed) {
                nodes += job.nodes;
                let is_starting = job.running_ms.is_some_and(|since| now_ms < since + STARTING_MS);
                match job.phase {
                    JobPhase::Running if !is_starting => {}
                    JobPhase::Running => coming += job.nodes,
                    JobPhase::Held => waiting += 1,
                    _ => {
                        waiting += 1;
                        coming += job.nodes;
                    }
                }
            }
            let Some(queue) = self.queues.get_mut(&at) else {
                continue;
            };
            let places = queue.place(&clients);
            let needed = places.iter().flatten().max().copied().unwrap_or(0);
            if needed == 0 {
                let since = *queue.unneeded_since_ms.get_or_insert(now_ms);
                if now_ms >= since + 1000 * queue.idle_s {
                    let unneeded = self.live(&at).filter(|job| job.phase == JobPhase::Pending);
                    let unneeded = unneeded.filter(|job| !job.stays && !job.dismissed);
                    actions.extend(unneeded.filter_map(AllocatorAction::cancel));
                }
            }
            let Some(queue) = self
                .queues
                .get_mut(&at)
                .filter(|queue| needed > 0 || nodes < queue.min_nodes)
            else {
                continue;
            };
            if needed > 0 {
                queue.unneeded_since_ms = None;
            }
            let mut submitted = Vec::new();
            while !queue.pauses(now_ms) && nodes + queue.nodes_per_job <= queue.max_nodes {
                let stays = nodes < queue.min_nodes;
                if !stays && ((coming as usize) >= needed || waiting >= queue.backlog) {
                    break;
                }
                nodes += queue.nodes_per_job;
                coming += queue.nodes_per_job;
                waiting += 1;
                submitted.push(PilotJob {
                    name: name(&at),
                    queue: at.clone(),
                    number: None,
                    nodes: queue.nodes_per_job,
                    submitted_ms: now_ms,
                    phase: JobPhase::Submitting,
                    reason: String::new(),
                    running_ms: None,
                    ended_ms: None,
                    requeues: 0,
                    stays,
                    dismissed: false,
                });
            }
            actions.extend(
                submitted
                    .iter()
                    .map(|job| AllocatorAction::Submit { name: job.name.clone() }),
            );
            self.jobs.extend(submitted);
            // The other clients are left to the next queue.
            let mut places = places.into_iter();
            clients.retain(|_| places.next().flatten().is_none_or(|needed| needed > coming as usize));
        }
        actions
    }

    /// Notes that a job was cancelled: it is no longer counted, and its end is no failure.
    pub(super) fn note_cancelled(&mut self, name: &str) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.name == name) {
            job.dismissed = true;
        }
    }

    /// Notes the answer of the command that submitted a job: its number, or why there is none.
    pub(super) fn note_submitted(&mut self, name: &str, answer: Result<String, SubmitError>, now_ms: u64) {
        let Some(job) = self.jobs.iter_mut().find(|job| job.name == name) else {
            return;
        };
        let queue = self.queues.get_mut(&job.queue);
        match answer {
            Ok(number) => {
                job.number = Some(number);
                job.phase = JobPhase::Pending;
                if let Some(queue) = queue.filter(|queue| queue.trouble.as_ref().is_some_and(|past| past.rejected)) {
                    queue.trouble = None;
                }
            }
            Err(error) => {
                if let Some(queue) = queue {
                    queue.fail(error.why, true, now_ms);
                }
                if error.is_rejected {
                    self.jobs.retain(|job| job.name != name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
