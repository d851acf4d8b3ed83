//! `hotlease alloc serve`: the allocator itself.

use super::batch_system::{BatchSystem, JobWords, last_lines};
use super::listing::node_count;
use super::planner::{AllocatorAction, ClientDemand};
use super::records::{AllocatorState, JobPhase, PilotJob, Queue};
use super::script::script;
use super::store::{AllocatorDirectory, DirectoryArgs, StateEdit, job_text, now_ms};
use crate::commands::up::signals::Signals;
use clap::Args;
use hotlease_terminal::output::Printer;
use hotlease_terminal::platform::{Platform, SiteArgs};
use hotlease_terminal::quantity;
use hotlease_wire::grpc::{ListRequest, WaitingClient};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Pause between two looks at the clients that wait.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Lines of a failed job's output in the reason of its failure.
const OUTPUT_LINES: usize = 3;

/// Arguments of `hotlease alloc serve`.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    directory: DirectoryArgs,
    /// How often the batch system is asked about the jobs, while there are jobs
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = quantity::parse_time)]
    every: Duration,
    #[command(flatten)]
    site: SiteArgs,
}

#[derive(Serialize)]
struct ServingSummary {
    pid: u32,
}

impl ClientDemand {
    fn of(client: &WaitingClient) -> Self {
        Self {
            tenant: client.tenant.clone(),
            workers: client.workers,
            slots_per_worker: client.slots_per_worker.max(1),
            gpus: client.gpus,
            spread: client.spread,
        }
    }
}

pub(super) fn carry_out(args: ServeArgs, output: &mut Printer) -> anyhow::Result<()> {
    let directory = args.directory.open()?;
    let _serving = directory.serve()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { Signals::listen() })?;
    let serving = ServingSummary {
        pid: std::process::id(),
    };
    output.answer(&serving, || format!("the allocator serves (pid {})", serving.pid))?;
    output.flush()?;
    let mut allocator = Allocator {
        directory,
        runtime,
        site: args.site,
        platform: None,
        every: args.every,
        listed: None,
        is_away: false,
    };
    loop {
        let clients = allocator.clients();
        if let Err(error) = allocator.step(clients.as_deref()) {
            tracing::error!("{error:#}");
        }
        let told = async { tokio::time::timeout(LOOK_EVERY, signals.next()).await };
        let told = allocator.runtime.block_on(told);
        if told.is_ok() {
            // Its jobs go on: their agents end when they are idle, or out of time.
            return Ok(());
        }
    }
}

struct Allocator {
    directory: AllocatorDirectory,
    runtime: Runtime,
    site: SiteArgs,
    platform: Option<Platform>,
    every: Duration,
    /// When the jobs were listed last.
    listed: Option<Instant>,
    /// Whether the manager did not answer last time.
    is_away: bool,
}

impl Allocator {
    /// Clients that wait; `None` if the manager does not answer.
    fn clients(&mut self) -> Option<Vec<ClientDemand>> {
        let listed = self.waiting();
        let is_away = listed.is_err();
        if let Err(error) = &listed {
            self.platform = None;
            if !self.is_away {
                tracing::warn!("the manager does not answer, so no job is submitted: {error:#}");
            }
        }
        self.is_away = is_away;
        Some(listed.ok()?.iter().map(ClientDemand::of).collect())
    }

    fn waiting(&mut self) -> anyhow::Result<Vec<WaitingClient>> {
        let platform = match &mut self.platform {
            Some(platform) => platform,
            none => none.insert(Platform::of(&self.site)?),
        };
        let listed = platform.request(async |client| client.list_waiting(ListRequest::default()).await)?;
        Ok(listed.clients)
    }

    /// Looks at the jobs, if it is time, and submits and cancels some.
    fn step(&mut self, clients: Option<&[ClientDemand]>) -> anyhow::Result<()> {
        let mut edit = self.directory.edit()?;
        let before = edit.state.clone();
        let is_due = self.listed.is_none_or(|listed| listed.elapsed() >= self.every);
        let has_jobs = edit.state.jobs.iter().any(|job| !job.phase.is_over());
        if is_due && has_jobs {
            self.listed = Some(Instant::now());
            self.observe(&mut edit.state)?;
            self.directory.clean();
        }
        let actions = clients.map(|clients| {
            let name = |queue: &str| format!("hotlease-{queue}-{:08x}", rand::random::<u32>());
            edit.state.plan(clients, now_ms(), name)
        });
        // The state is saved before the first command: a job that is submitted and not noted would be lost.
        if edit.state != before {
            edit.save()?;
        }
        for action in actions.unwrap_or_default() {
            self.carry_out(action, &mut edit)?;
        }
        Ok(())
    }

    fn observe(&self, state: &mut AllocatorState) -> anyhow::Result<()> {
        let live = state.jobs.iter().filter(|job| !job.phase.is_over());
        let systems: BTreeSet<(&str, Option<&str>)> = live
            .filter_map(|job| state.queues.get(&job.queue))
            .map(|queue| (queue.system.as_str(), queue.description.as_deref()))
            .collect();
        let mut listed = Vec::new();
        for (name, description) in systems {
            listed.extend(self.runtime.block_on(BatchSystem::of(name, description)?.list())?);
        }
        for job in state.observe(&listed, now_ms()) {
            self.note_change(state, &job);
        }
        Ok(())
    }

    /// Logs what has become of a job; adds the end of its output to the reason of a failure.
    fn note_change(&self, state: &mut AllocatorState, job: &PilotJob) {
        let mut what = format!("job {} is {}", job_text(job), job.phase);
        if !job.reason.is_empty() {
            what += &format!(" ({})", job.reason);
        }
        if job.requeues > 0 && job.phase == JobPhase::Pending {
            what += ", requeued";
        }
        if job.phase == JobPhase::Failed {
            let said = last_lines(&self.directory.output(&job.name), OUTPUT_LINES);
            let trouble = state
                .queues
                .get_mut(&job.queue)
                .and_then(|queue| queue.trouble.as_mut());
            if let Some(trouble) = trouble.filter(|_| !said.is_empty()) {
                trouble.why += &format!("; its output ends: {said}");
                what += &format!("; its output ends: {said}");
            }
        }
        self.directory.log(&job.queue, what);
    }

    fn carry_out(&self, action: AllocatorAction, edit: &mut StateEdit) -> anyhow::Result<()> {
        let name = match &action {
            AllocatorAction::Submit { name } | AllocatorAction::Cancel { name, .. } => name.clone(),
        };
        let Some(job) = edit.state.jobs.iter().find(|job| job.name == name).cloned() else {
            return Ok(());
        };
        let Some(queue) = edit.state.queues.get(&job.queue).cloned() else {
            return Ok(());
        };
        let system = BatchSystem::of_queue(&queue)?;
        match action {
            AllocatorAction::Submit { .. } => {
                let idle_s = if job.stays { queue.time_s } else { queue.idle_s };
                let queue = Queue { idle_s, ..queue };
                let path = self
                    .directory
                    .write_script(&name, &script(&job.queue, &queue, &system))?;
                let output = self.directory.output(&name);
                let words = JobWords {
                    name: &name,
                    nodes: job.nodes,
                    output: &output.display().to_string(),
                    script: &path.display().to_string(),
                };
                let answer = self.runtime.block_on(system.submit(&queue, words));
                match &answer {
                    Ok(number) => self
                        .directory
                        .log(&job.queue, format!("submitted job {number}, {}", node_count(job.nodes))),
                    Err(error) => self.directory.log(&job.queue, format!("not submitted: {}", error.why)),
                }
                edit.state.note_submitted(&name, answer, now_ms());
                edit.save()
            }
            AllocatorAction::Cancel { number, .. } => {
                self.directory
                    .log(&job.queue, format!("cancels job {number}, which is not needed"));
                // The other actions are carried out all the same; the next round tries this action again.
                if let Err(error) = self.runtime.block_on(system.cancel(&number)) {
                    self.directory
                        .log(&job.queue, format!("job {number} is not cancelled: {error:#}"));
                    return Ok(());
                }
                edit.state.note_cancelled(&name);
                edit.save()
            }
        }
    }
}
