//! The main thread: obeys the agent, serves the clients' connections, and is never on the path of an invocation.

use crate::connection::ClientConnection;
use crate::crash;
use crate::host;
use crate::lease::WorkerLease;
use crate::memory_server::MemoryServer;
use crate::ports::SlotPorts;
use crate::program::{STACK_BYTES, SlotThreads, WorkerProgram, spawn};
use crate::shared_place::{SharedPlace, only};
use crate::slot::core::{OwnCore, SharedCore};
use crate::slot::idle::{self, IdlePolicy};
use crate::slot::mailbox::{ConnectionId, Mailbox, SlotMessage};
use crate::slot::{Slot, WorkerShared};
use crate::state::{self, StateKeeper};
use crate::watchdog::Watchdog;
use hotlease_fabric::claim::CoreClaim;
use hotlease_fabric::clock::TickClock;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::memory::PAGE_BYTES;
use hotlease_fabric::ofi::Libfabric;
use hotlease_fabric::socket::{Socket, SocketError};
use hotlease_fabric::usage::UsageBlock;
use hotlease_wire::control::{WorkerAnswer, WorkerOrder};
use hotlease_wire::limits::{CONNECTIONS_MAX, PEER_CONNECTIONS_MAX, PROTOCOL_VERSION, SLOTS_MAX};
use hotlease_wire::machine::Assignment;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::Pid;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Environment variable in which functions find the numbers of their worker's GPUs, like `0,3`; empty if it has none.
const GPUS: &str = "HOTLEASE_GPUS";

/// Reason why the worker stops.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The agent does not speak our protocol.
    #[error("unintelligible order from the agent: {0}; install the same hotlease everywhere")]
    Socket(#[from] SocketError),
    /// Error of the system.
    #[error("control socket: {0}")]
    System(#[from] std::io::Error),
}

/// Obeys the agent until it closes the socket.
pub fn obey(socket: Socket, program: WorkerProgram) -> Result<(), ControlError> {
    socket.send(
        &WorkerAnswer::Ready {
            version: PROTOCOL_VERSION,
            imports_us: program.imports.as_micros() as u64,
            boot_us: program.boot.as_micros() as u64,
        },
        &[],
    )?;
    let mut lease: Option<WorkerLease> = None;
    let mut loading = None;
    // Never dropped, so that connections close only at the end of the process while slots run: a client whose agent is
    // gone takes a closed connection as proof that no code of this worker runs any more.
    let mut connections = ManuallyDrop::new(Vec::<ClientConnection>::new());
    loop {
        let ready = wait(&socket, &connections)?;
        if let Some(lease) = &mut lease {
            // Goes from last to first, so that a removal moves no connection that is still to be served.
            for at in (0..connections.len()).rev().filter(|at| ready[at + 1]) {
                if !connections[at].serve(lease) {
                    connections.swap_remove(at).close(lease);
                }
            }
        }
        if ready[0] {
            let Some((order, fds)) = socket.receive::<WorkerOrder>()? else {
                return Ok(());
            };
            let answer = match execute(order, fds, &program, (&mut lease, &mut loading), &mut connections) {
                Ok(()) => WorkerAnswer::Done,
                Err(why) => WorkerAnswer::Failed { why },
            };
            socket.send(&answer, &[])?;
        }
    }
}

/// Sleeps until a descriptor is readable. Returns which descriptors are readable, the control socket first.
fn wait(socket: &Socket, connections: &[ClientConnection]) -> std::io::Result<Vec<bool>> {
    let fds = std::iter::once(socket.as_fd()).chain(connections.iter().map(ClientConnection::fd));
    let mut polled: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    loop {
        match poll(&mut polled, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(polled.iter().map(|fd| fd.any().unwrap_or(true)).collect()),
        }
    }
}

fn execute(
    order: WorkerOrder,
    fds: Vec<OwnedFd>,
    program: &WorkerProgram,
    (lease, loading): (&mut Option<WorkerLease>, &mut Option<JoinHandle<()>>),
    connections: &mut Vec<ClientConnection>,
) -> Result<(), String> {
    let mut fds = fds.into_iter();
    let fd = fds.next().ok_or("the order came without its descriptor");
    match (order, lease) {
        (order @ WorkerOrder::Configure { .. }, lease @ None) => {
            if let (WorkerOrder::Configure { gpus: Some(_), .. }, Some(loading)) = (&order, loading.take()) {
                // The loading thread reads the environment, which is about to change. A panic ends the thread, too.
                let _ = loading.join();
            }
            *lease = Some(configure(program, order, fd?, fds.next())?)
        }
        (WorkerOrder::Configure { .. }, Some(_)) => return Err("this worker has a lease already".into()),
        (WorkerOrder::PrepareFabric, _) if loading.is_some() => {}
        (WorkerOrder::PrepareFabric, _) => *loading = Libfabric::preload(),
        (_, None) => return Err("this worker has no lease yet".into()),
        (WorkerOrder::Load { size_bytes, base, .. }, Some(lease)) => {
            let before = &lease.functions;
            let (functions, hooks) = before.with_library(program.remote_worker, fd?, size_bytes, base)?;
            let functions = Arc::new(functions);
            lease.functions = functions.clone();
            // The state belongs to the program that hosts the worker, or else to its one library.
            lease.keeper = lease.keeper.take().or(hooks.map(StateKeeper::Library));
            for slot in &lease.slots {
                slot.put(SlotMessage::Functions(functions.clone()));
            }
        }
        (WorkerOrder::Introduce { lent }, Some(lease)) => {
            if connections.len() >= CONNECTIONS_MAX {
                return Err(format!("this worker has {CONNECTIONS_MAX} clients already"));
            }
            let peers = connections.iter().filter(|connection| connection.is_peer());
            if lent.is_some() && peers.count() >= PEER_CONNECTIONS_MAX {
                return Err(format!("this worker serves {PEER_CONNECTIONS_MAX} peers already"));
            }
            lease.connections_made += 1;
            let id = ConnectionId(lease.connections_made);
            let connection = ClientConnection::new(id, Socket::from(fd?), lent);
            connections.push(connection.map_err(|error| error.to_string())?);
        }
        (WorkerOrder::Restore { size_bytes: None }, Some(lease)) => {
            state::run_on_slot(lease.keeper.as_ref(), &lease.slots, |keeper, _| (keeper.check(), true))?;
        }
        (
            WorkerOrder::Restore {
                size_bytes: Some(bytes),
            },
            Some(lease),
        ) => {
            let pipe = File::from(fd?);
            state::run_on_slot(lease.keeper.as_ref(), &lease.slots, move |keeper, context| {
                (keeper.restore(context, pipe, bytes), true)
            })?;
        }
        (WorkerOrder::Save, Some(lease)) => {
            let pipe = File::from(fd?);
            state::run_on_slot(lease.keeper.as_ref(), &lease.slots, move |keeper, context| {
                let saved = keeper.save(context, pipe);
                let serves_on = saved.is_err();
                (saved, serves_on)
            })?;
        }
        (WorkerOrder::Move { core }, Some(lease)) => {
            let place = lease.place.as_mut().ok_or("this worker has cores of its own")?;
            place.move_to(core, fd?)?;
        }
        (WorkerOrder::Dismiss { delegation }, Some(lease)) => {
            // Goes from last to first, so that a removal moves no connection that is still to be checked.
            for at in (0..connections.len()).rev() {
                if connections[at].uses_delegation(delegation) {
                    connections.swap_remove(at).close(lease);
                }
            }
        }
    }
    Ok(())
}

/// Makes the slots of a lease, each pinned to its core, or a memory server if there are no cores. `second`: the file of
/// claims, if the core is shared, or the memory block.
fn configure(
    program: &WorkerProgram,
    order: WorkerOrder,
    usage: OwnedFd,
    second: Option<OwnedFd>,
) -> Result<WorkerLease, String> {
    let WorkerOrder::Configure {
        epoch,
        cores,
        polling,
        hot_budget_ns,
        tick_hz,
        memory_bytes,
        tenant,
        shared: sharing,
        gpus,
        ..
    } = order
    else {
        return Err("not an assignment".into());
    };
    if cores.len() > SLOTS_MAX as usize {
        return Err(format!("a worker has at most {SLOTS_MAX} slots, not {}", cores.len()));
    }
    let slots = cores.len() as u16;
    let hosted = matches!(program.threads, SlotThreads::Handed(_));
    if hosted && slots != 1 {
        return Err(format!("a worker of this kind has one slot, not {slots}"));
    }
    let usage = UsageBlock::attach(usage, slots).map_err(|error| error.to_string())?;
    usage.set_clock(tick_hz);
    let usage = Arc::new(usage);
    crash::set_usage_block(usage.clone());
    let (memory, claim) = match (slots, second) {
        (0, Some(block)) => (Some(MemoryServer::start(block, memory_bytes)?), None),
        (0, None) => return Err("the order came without a memory block".into()),
        (_, claim) => (None, claim),
    };
    match program.remote_worker {
        // A memory server runs no code of its tenant.
        None if memory.is_some() => {}
        None => limit_memory(memory_bytes, slots, hosted)?,
        Some(there) => there.assign(Assignment {
            epoch,
            slots,
            memory_bytes,
            tenant: tenant.clone(),
        })?,
    }
    if let Some(gpus) = gpus {
        tell_gpus(&gpus);
    }

    let doorbell = Doorbell::create().map_err(|error| error.to_string())?;
    let watchdog = Arc::new(Watchdog::new(cores.len(), doorbell));
    spawn("watchdog", {
        let watchdog = watchdog.clone();
        move || watchdog.run()
    })?;
    let sharing = match (sharing, claim) {
        (Some(sharing), Some(claim)) => {
            let claim = CoreClaim::attach(claim);
            let claim = claim.map_err(|error| format!("the shared core cannot be claimed: {error}"))?;
            Some((sharing, Arc::new(claim)))
        }
        (Some(_), None) => return Err("the order came without the file of claims".into()),
        (None, _) => None,
    };
    let place = sharing
        .as_ref()
        .map(|(_, claim)| SharedPlace::new(Arc::clone(claim), cores[0]));
    let clock = TickClock::new(tick_hz);
    let shared = Arc::new(WorkerShared {
        epoch,
        slots,
        tenant,
        clock,
        usage,
        watchdog,
    });
    let mut mailboxes = Vec::new();
    for (index, core) in (0..slots).zip(cores) {
        let mailbox = Arc::new(Mailbox::new()?);
        if program.functions.len() > 0 {
            mailbox.put(SlotMessage::Functions(program.functions.clone()));
        }
        let idle = IdlePolicy::new(polling, hot_budget_ns, |ns| clock.ticks(ns));
        let slot = (index, shared.clone(), mailbox.clone(), idle);
        let pinning = only(core)?;
        // A thread inherits the affinity of the thread that starts it, so that a slot never runs on any other core.
        let before = nix::sched::sched_getaffinity(Pid::from_raw(0)).map_err(|error| error.to_string())?;
        sched_setaffinity(Pid::from_raw(0), &pinning)
            .map_err(|error| format!("cannot pin slot {index} to core {core}: {error}"))?;
        let core = sharing.as_ref().map(|(sharing, claim)| SharedCore {
            claim: claim.clone(),
            usage: shared.usage.clone(),
            call_limit_us: sharing.call_limit_ms.saturating_mul(1000),
        });
        if hosted {
            host::set_mailbox(mailbox.clone());
        }
        let started = program.threads.start(&format!("slot-{index}"), move || {
            // A hosted worker's thread existed before, and has not inherited the affinity that was set above.
            let _ = sched_setaffinity(Pid::from_raw(0), &pinning);
            let (index, shared, mailbox, idle) = slot;
            match core {
                None => Slot::new(OwnCore, index, shared, mailbox, idle).run(),
                Some(core) => Slot::new(core, index, shared, mailbox, idle).run(),
            }
        });
        restore_affinity(&before).map_err(|error| format!("cannot unpin the control thread: {error}"))?;
        started?;
        mailboxes.push(mailbox);
    }
    Ok(WorkerLease {
        channels: vec![0; mailboxes.len()],
        fabrics: SlotPorts::new(mailboxes.len(), idle::needs_wait_descriptor(polling, hot_budget_ns)),
        slots: mailboxes,
        memory,
        place,
        functions: program.functions.clone(),
        keeper: program.state.map(StateKeeper::Program),
        has_gangs: program.remote_worker.is_none(),
        generation: 0,
        connections_made: 0,
    })
}

/// Gives the calling thread its affinity from before a slot was pinned. The agent limits the worker's control group to
/// the lease's cores at the same time, so the earlier cores may not be allowed any more (EINVAL): then the thread gets
/// all cores that are allowed.
fn restore_affinity(before: &CpuSet) -> nix::Result<()> {
    sched_setaffinity(Pid::from_raw(0), before).or_else(|_| {
        let mut every = CpuSet::new();
        (0..CpuSet::count()).try_for_each(|core| every.set(core))?;
        sched_setaffinity(Pid::from_raw(0), &every)
    })
}

/// Sets the environment variable from which the worker's functions read the numbers of their GPUs.
fn tell_gpus(gpus: &[u32]) {
    let numbers: Vec<String> = gpus.iter().map(u32::to_string).collect();
    // SAFETY: `configure` has started no thread yet, and a thread that was loading libfabric has ended (`execute`). The
    // only other thread watches the control socket and never reads the environment, and no code of a tenant is loaded
    // yet.
    unsafe { std::env::set_var(GPUS, numbers.join(",")) };
}

/// Limits private memory (heap, anonymous mappings) to the lease's grant plus the worker's own needs; buffers belong to
/// the client and are not counted. The needs of a `hosted` worker include the memory that its program uses already.
fn limit_memory(memory_bytes: u64, slots: u16, hosted: bool) -> Result<(), String> {
    if memory_bytes == 0 {
        return Ok(());
    }
    let own = (16 << 20) + if hosted { data_bytes() } else { 0 };
    let stacks = (u64::from(slots) + 1) * STACK_BYTES as u64;
    let limit = memory_bytes.saturating_add(own + stacks);
    setrlimit(Resource::RLIMIT_DATA, limit, limit).map_err(|error| format!("cannot limit memory: {error}"))
}

/// Private memory of this process by now, in bytes; 0 if the system does not report it.
fn data_bytes() -> u64 {
    let statistics = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    // The sixth number: pages of data and stacks.
    let pages = statistics.split_whitespace().nth(5);
    pages.and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE_BYTES as u64
}
