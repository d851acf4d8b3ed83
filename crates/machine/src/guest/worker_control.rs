//! Orders for the worker and its slots: the guest is the worker's agent and its only client.

use crate::guest::monitor_sender::MonitorSender;
use crate::guest::slot::{CallRequest, GuestSlot};
use crate::guest::{power_off, spawn};
use hotlease_fabric::clock::measure_tick_hz;
use hotlease_fabric::memory::sealed_copy;
use hotlease_fabric::socket::Socket;
use hotlease_fabric::usage::UsageBlock;
use hotlease_wire::control::{PollingPolicy, WorkerAnswer, WorkerOrder};
use hotlease_wire::ids::{CodeHash, LeaseId};
use hotlease_wire::machine::{Assignment, FromGuest, ToGuest};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Time for which the tick counter is measured against the machine's clock.
const CLOCK: Duration = Duration::from_millis(5);

/// The guest's control of the worker.
pub struct WorkerControl {
    worker: Socket,
    teller: MonitorSender,
    slots: Vec<Sender<CallRequest>>,
}

impl WorkerControl {
    pub fn new(worker: Socket, teller: MonitorSender) -> Self {
        Self {
            worker,
            teller,
            slots: Vec::new(),
        }
    }

    /// Obeys an order of the monitor.
    pub fn obey(&mut self, message: ToGuest, brought: Vec<u8>, usage: &OnceLock<Arc<UsageBlock>>) {
        let obeyed = match message {
            ToGuest::Call { slot, .. } => {
                let called = CallRequest::new(&message, brought);
                let sent = self.slots.get(usize::from(slot)).zip(called);
                match sent.map(|(slot, called)| slot.send(called)) {
                    Some(Ok(())) => return,
                    // A correct monitor does not send this.
                    _ => power_off(),
                }
            }
            ToGuest::Assign(assignment) => self.assign(assignment, usage),
            ToGuest::Load { base } => self.load(&brought, base),
            ToGuest::Run { .. } | ToGuest::Resume { .. } | ToGuest::Pause | ToGuest::File => power_off(),
        };
        self.teller.tell(&FromGuest::Obeyed(obeyed), &[]);
    }

    fn assign(&mut self, assignment: Assignment, known: &OnceLock<Arc<UsageBlock>>) -> Result<(), String> {
        let usage = UsageBlock::create(assignment.slots).map_err(|error| error.to_string())?;
        let usage = Arc::new(usage);
        // The machine's own processors, one for each slot; the host decides on which cores they run.
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        let order = WorkerOrder::Configure {
            lease: LeaseId([0; 8]),
            epoch: assignment.epoch,
            cores: (0..u32::from(assignment.slots)).map(|slot| slot % processors).collect(),
            // A thread that polls here would take the processor from the threads that bring its requests.
            polling: PollingPolicy::Warm,
            hot_budget_ns: 0,
            tick_hz: measure_tick_hz(CLOCK),
            memory_bytes: assignment.memory_bytes,
            tenant: assignment.tenant,
            shared: None,
            gpus: None,
        };
        self.tell(&order, &[usage.fd()])?;
        // The worker is assigned only once.
        let _ = known.set(usage);
        let (ours, theirs) = Socket::pair().map_err(|error| error.to_string())?;
        self.tell(&WorkerOrder::Introduce { lent: None }, &[theirs.as_fd()])?;
        drop(theirs);
        let connection = Arc::new(Mutex::new(ours));
        for index in 0..assignment.slots {
            let slot = GuestSlot::open(index, assignment.epoch, &connection, self.teller.clone())?;
            let (sender, calls) = mpsc::channel();
            spawn(&format!("slot-{index}"), move || slot.serve(&calls))?;
            self.slots.push(sender);
        }
        Ok(())
    }

    fn load(&self, code: &[u8], base: u16) -> Result<(), String> {
        let file = sealed_copy("hotlease-code", code).map_err(|error| error.to_string())?;
        let order = WorkerOrder::Load {
            // Checked by the agent outside, and not used by the worker.
            hash: CodeHash([0; 32]),
            size_bytes: code.len() as u64,
            base,
        };
        self.tell(&order, &[file.as_fd()])
    }

    fn tell(&self, order: &WorkerOrder, fds: &[BorrowedFd<'_>]) -> Result<(), String> {
        let gone = |error: String| format!("the worker does not answer: {error}");
        self.worker.send(order, fds).map_err(|error| gone(error.to_string()))?;
        match self.worker.receive::<WorkerAnswer>() {
            Ok(Some((WorkerAnswer::Done, _))) => Ok(()),
            Ok(Some((WorkerAnswer::Failed { why }, _))) => Err(why),
            Ok(Some((WorkerAnswer::Ready { .. }, _))) => Err("the worker says twice that it is ready".into()),
            Ok(None) => Err(gone("it has ended".into())),
            Err(error) => Err(gone(error.to_string())),
        }
    }
}
