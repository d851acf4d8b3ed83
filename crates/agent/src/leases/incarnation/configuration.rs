//! Assignment of a worker to a lease: it is limited and configured, and loads the libraries that the lease has loaded
//! so far.

use super::bring_up_error::{BringUpError, not_up};
use super::{Incarnation, IncarnationState, memory_server};
use crate::leases::book_steps::BookSteps;
use crate::leases::libraries::LoadedCode;
use crate::leases::start::WorkerOrigin;
use crate::leases::supply::WorkerSupply;
use crate::leases::terms::ServedLease;
use crate::workers::python;
use crate::workers::worker::{BOOT_LIMIT, ORDER_LIMIT, START_LIMIT, SentOrder, StartError, StartedWorker};
use hotlease_fabric::usage::UsageBlock;
use hotlease_lease::agent::BookEvent;
use hotlease_sandbox::Kind;
use hotlease_wire::control::{CoreSharing, WorkerOrder};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Incarnation {
    pub(super) async fn configure(
        &self,
        (book, supply): (&Arc<impl BookSteps>, &WorkerSupply),
        lease: &ServedLease,
        worker: &Arc<StartedWorker>,
        came: &WorkerOrigin,
    ) -> Result<(), BringUpError> {
        let limit = lease
            .terms
            .program
            .as_ref()
            .map_or(START_LIMIT, |_| python::INTERPRETER_START_LIMIT);
        let limit = match lease.terms.sandbox {
            Kind::MicroVm => limit + BOOT_LIMIT,
            _ => limit,
        };
        // The worker is limited and configured at the same time. Both steps end before it loads a library of the lease.
        // The limits already apply to the imports of an interpreter.
        let limit_it = match lease.terms.is_memory_alone() {
            true => (memory_server::limit_of(lease.terms.memory_bytes), Vec::new()),
            false => (lease.terms.memory_bytes, self.cores()),
        };
        let limited = async {
            match lease.terms.sandbox {
                // The kernel would charge the worker for results that its client retains. A program that has asked for
                // no limit does not expect this charge.
                Kind::Process if lease.terms.request.spec.memory_bytes == 0 => {
                    worker.watch_memory(limit_it.0);
                    Ok(false)
                }
                _ => worker.limit(limit_it.0, limit_it.1).await,
            }
        };
        let (configured, limited) = tokio::join!(self.give_to(supply, lease, worker, limit), limited);
        let ready = configured?;
        self.start.record_memory(limited.map_err(StartError::for_now)?);

        // Runs under the lock of the libraries. So a library that is being loaded now is either in the list already, or
        // its loading will find this worker up.
        let codes = lease.libraries.codes.lock().await;
        let loads: Vec<SentOrder> = codes
            .iter()
            .filter(|loaded| !loaded.code.is_of_program())
            .map(|code| load(worker, code))
            .collect();
        for loaded in loads {
            let loaded = loaded.wait_for_answer(ORDER_LIMIT).await;
            loaded.map_err(|error| not_up("load the lease's libraries", error))?;
        }
        self.restore_state(worker, &codes).await?;
        self.start.record_up(lease, worker, came, (self.begun, ready));
        let _ = self.pid.set(worker.pid());
        self.state.send_replace(IncarnationState::Up(Arc::clone(worker)));
        drop(codes);
        // The book cannot refuse this event, which only reports.
        let _ = book.step(BookEvent::WorkerUp {
            lease: lease.id,
            worker: self.index,
            epoch: self.epoch,
        });
        Ok(())
    }

    /// Waits until the worker is ready for orders and assigns it to the lease; returns when it became ready.
    async fn give_to(
        &self,
        supply: &WorkerSupply,
        lease: &ServedLease,
        worker: &StartedWorker,
        limit: Duration,
    ) -> Result<Instant, BringUpError> {
        worker.wait_until_ready(limit).await?;
        let ready = Instant::now();
        if self.usage.get().is_none() {
            let slots = self.cores().len() as u16;
            let block = UsageBlock::create(slots).map_err(StartError::for_now)?;
            let _ = self.usage.set(block);
        }
        let Some(block) = self.usage.get() else {
            return Err(StartError::for_now("there is no usage block").into());
        };
        let request = &lease.terms.request;
        let order = WorkerOrder::Configure {
            lease: lease.id,
            epoch: self.epoch,
            cores: self.cores(),
            polling: request.spec.sharing.polling(),
            hot_budget_ns: request.hot_budget_ns,
            tick_hz: supply.tick_hz().await,
            memory_bytes: request.spec.memory_bytes,
            tenant: request.tenant.clone(),
            shared: lease.terms.is_shared().then_some(CoreSharing {
                call_limit_ms: supply.sharing.call_limit.as_millis() as u32,
            }),
            gpus: (supply.gpus > 0).then(|| self.gpus.clone()),
        };
        let claim = match self.cores().first() {
            Some(core) if lease.terms.is_shared() => {
                let claim = supply.claims.of(*core);
                let refused = |error| StartError::for_now(format!("its core cannot be shared: {error}"));
                Some(claim.map_err(refused)?)
            }
            _ => None,
        };
        let memory = match lease.terms.is_memory_alone() {
            true => Some(self.memory_block(request.spec.memory_bytes)?),
            false => None,
        };
        let second = claim.as_ref().map(|claim| claim.fd());
        let second = second.or(memory.as_ref().map(|memory| memory.fd()));
        let fds: Vec<_> = std::iter::once(block.fd()).chain(second).collect();
        let configured = worker.send(&order, &fds).wait_for_answer(ORDER_LIMIT).await;
        configured.map_err(|error| not_up("be configured", error))?;
        Ok(ready)
    }
}

/// Orders a worker to load a library.
pub(crate) fn load(worker: &StartedWorker, code: &LoadedCode) -> SentOrder {
    let order = WorkerOrder::Load {
        hash: code.code.hash,
        size_bytes: code.code.size_bytes,
        base: code.base,
    };
    worker.send(&order, &[code.code.memory()])
}
