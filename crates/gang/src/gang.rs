//! The client's side of a gang.

use crate::Error;
use crate::results::{self, RankResult};
use hotlease_client::{
    Code, Function, Invocation, Invoker, LeaseOptions, Placement, Seat, SeatSecret, SeatedWorkers, Sharing, Spread,
    UsageTotals,
};
use hotlease_comm::Secret;
use hotlease_comm::rendezvous::{Limits, Server};
use hotlease_wire::comm::RANKS_MAX;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time that ranks wait for each other when the communicator is made.
const JOIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time that other ranks continue after a rank has failed. They learn of the failure within two seconds, unless
/// they never use the communicator.
const GRACE_PERIOD: Duration = Duration::from_secs(5);
/// Interval at which the other ranks are checked for failures during the wait for one rank.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Workers that run a function at the same time, one rank each, and whose functions have a communicator
/// ([`crate::communicator()`]).
///
/// Calls run one after the other, from any thread. If a worker has died or the lease was lost, the next call takes a
/// new lease. Dropping the gang releases the workers, and so does [`end`](Self::end). `Send + Sync`.
pub struct Gang {
    code: Code,
    options: LeaseOptions,
    ranks: u32,
    address: IpAddr,
    calls: Mutex<CallState>,
}

/// State that the calls of a gang use one after the other.
#[derive(Default)]
struct CallState {
    /// `None`: some workers were lost.
    workers: Option<Workers>,
    is_over: bool,
}

struct Workers {
    invoker: Invoker,
    /// `None`: the communicator of the workers has ended.
    table: Option<Seating>,
}

/// Seats of the workers and their rendezvous. Exists as long as the communicator of the seats.
struct Seating {
    seated: SeatedWorkers,
    rendezvous: Server,
}

/// Inputs of the ranks.
#[derive(Debug, Clone, Copy)]
pub enum Inputs<'a> {
    /// The same input for all ranks.
    Shared(&'a [u8]),
    /// One input for each rank, in rank order.
    Each(&'a [&'a [u8]]),
}

/// A call of a function at all ranks.
#[derive(Debug, Clone, Copy)]
pub struct GangCall<'a> {
    /// Name of the function.
    pub function: &'a str,
    /// Inputs of the ranks.
    pub inputs: Inputs<'a>,
    /// Room for the output of each rank (default: [`LeaseOptions::reply_bytes`]).
    pub output_bytes: Option<usize>,
}

impl Gang {
    /// Leases all workers of a gang, or none, and loads the code into them. The ranks are the slots of the workers. The
    /// gang sets [`LeaseOptions::spread`], `replace_lease` and `retries` itself. `address` is the address at which the
    /// hosts of the workers reach this program (default: [`LeaseOptions::own_address`]). The rendezvous in this program
    /// admits only these ranks.
    ///
    /// # Errors
    /// [`Error::Lease`] with the errors of [`Invoker::allocate`]; [`Error::Options`] if the options are not possible
    /// for a gang; [`Error::Comm`] if this host does not have the address.
    pub fn lease(code: &Code, mut options: LeaseOptions, address: Option<IpAddr>) -> Result<Self, Error> {
        let ranks = u32::from(options.workers) * u32::from(options.slots);
        if !(1..=RANKS_MAX).contains(&ranks) {
            let what = format!("{ranks} ranks; it can have 1 to {RANKS_MAX}");
            return Err(Error::Options { what });
        }
        if options.sharing == Sharing::Shared {
            let what = "ranks run at the same time, and shared cores run one slot after the other".into();
            return Err(Error::Options { what });
        }
        if let Spread::AtLeast(_) = options.spread {
            let what = "it has all of its workers or none, and spread asks for some".into();
            return Err(Error::Options { what });
        }
        options.spread = match options.placement {
            // An agent that is asked directly also grants all workers or none.
            Placement::Direct => Spread::OneAgent,
            _ => Spread::AllOrNothing,
        };
        (options.replace_lease, options.retries) = (false, 0);
        let gang = Self {
            code: code.clone(),
            ranks,
            address: address.map_or_else(|| options.own_address(), Ok)?,
            calls: Mutex::default(),
            options,
        };
        let invoker = Invoker::allocate(code, gang.options.clone())?;
        let table = Some(gang.seat(&invoker)?);
        gang.lock().workers = Some(Workers { invoker, table });
        Ok(gang)
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Calls a function at all ranks with the same input, and returns their outputs in rank order.
    ///
    /// # Errors
    /// Errors of [`call_with`](Self::call_with).
    pub fn call(&self, function: &str, input: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.call_with(GangCall {
            function,
            inputs: Inputs::Shared(input),
            output_bytes: None,
        })
    }

    /// Calls a function at all ranks, and returns their outputs in rank order.
    ///
    /// If a rank fails, operations of the other ranks' communicator end with an error. Ranks that have not ended five
    /// seconds later are ended together with the lease.
    ///
    /// # Errors
    /// [`Error::Rank`] with the error of the first rank that failed; [`Error::Lease`] if a new lease was needed and
    /// could not be obtained; [`Error::Options`] if the number of inputs is not the number of ranks; [`Error::GangEnded`].
    pub fn call_with(&self, call: GangCall<'_>) -> Result<Vec<Vec<u8>>, Error> {
        self.code.function(call.function)?;
        if let Inputs::Each(inputs) = call.inputs
            && inputs.len() != self.ranks as usize
        {
            let what = format!("{} inputs for {} ranks", inputs.len(), self.ranks);
            return Err(Error::Options { what });
        }
        let mut calls = self.lock();
        if calls.is_over {
            return Err(Error::GangEnded);
        }
        // The workers are taken out for the call, and put back if none of them is lost.
        let mut workers = self.ensure_workers(calls.workers.take())?;
        let mut function = workers.invoker.function(call.function)?.without_resubmission();
        if let Some(bytes) = call.output_bytes {
            function = function.output_bytes(bytes);
        }
        let pending = (0..self.ranks as usize).map(|rank| {
            let input = match call.inputs {
                Inputs::Shared(input) => input,
                Inputs::Each(inputs) => inputs[rank],
            };
            submit(&function, rank, input)
        });
        let ended = workers.gather(pending.collect());
        let is_whole = |ended: &RankResult| !ended.as_ref().is_err_and(results::may_lose_worker);
        if ended.iter().all(is_whole) {
            calls.workers = Some(workers);
        }
        results::merge_results(ended)
    }

    /// Releases the workers, and waits until they have ended. Returns the usage of the last lease.
    ///
    /// # Errors
    /// [`Error::GangEnded`] if the gang has already ended; [`Error::Lease`] with the errors of [`Invoker::deallocate`].
    pub fn end(&self) -> Result<UsageTotals, Error> {
        let mut calls = self.lock();
        if std::mem::replace(&mut calls.is_over, true) {
            return Err(Error::GangEnded);
        }
        match calls.workers.take() {
            Some(workers) => Ok(workers.invoker.deallocate()?),
            None => Ok(UsageTotals::default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, CallState> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns workers that are all alive and have seats: the given workers, or new workers.
    fn ensure_workers(&self, workers: Option<Workers>) -> Result<Workers, Error> {
        if let Some(mut workers) = workers {
            match workers.table.take() {
                Some(table) if table.seated.is_whole() => {
                    workers.table = Some(table);
                    return Ok(workers);
                }
                Some(_) => {}
                // A worker may have died since; then `seat` fails, and new workers are leased.
                None => {
                    if let Ok(table) = self.seat(&workers.invoker) {
                        workers.table = Some(table);
                        return Ok(workers);
                    }
                }
            }
            // The new lease may need the cores of the old lease.
            let _ = workers.invoker.deallocate();
        }
        let mut options = self.options.clone();
        // A manager learns of released cores only when their agent reports them.
        options.patience = options.patience.max(options.move_within);
        let invoker = Invoker::allocate(&self.code, options)?;
        let table = Some(self.seat(&invoker)?);
        Ok(Workers { invoker, table })
    }

    /// Gives each slot its seat: the data that the slot needs to meet the other ranks, with a secret that only the
    /// ranks have.
    fn seat(&self, invoker: &Invoker) -> Result<Seating, Error> {
        if !invoker.phases().reach.network {
            let what = "ranks find each other over a network, and the sandboxes of this lease have none; ask for it (`reach.network` \
                        in Rust, `network` of the options in C, C++ and Python, `--network`), or lease workers of kind process";
            return Err(Error::Options { what: what.into() });
        }
        let secret: [u8; 32] = rand::random();
        let limits = Limits::default();
        let rendezvous = Server::start((self.address, 0), vec![Secret::new(&secret)?], limits)?;
        let name = match self.options.label.as_str() {
            "" => "gang",
            label => label,
        };
        let seats = (0..self.ranks).map(|rank| Seat {
            name: name.to_owned(),
            size: self.ranks,
            rank,
            rendezvous: rendezvous.address().to_string(),
            secret: SeatSecret(secret.to_vec()),
            join_ms: JOIN_TIMEOUT.as_millis() as u64,
        });
        Ok(Seating {
            seated: invoker.seat(seats.collect())?,
            rendezvous,
        })
    }
}

fn submit(function: &Function, rank: usize, input: &[u8]) -> Result<Invocation, hotlease_client::Error> {
    function.clone().on_slot(rank)?.submit(input)
}

impl Workers {
    /// Waits for all ranks and returns their results. After a failure, the communicator is not used again, and the
    /// other ranks have some time to end.
    fn gather(&mut self, mut pending: Vec<Result<Invocation, hotlease_client::Error>>) -> Vec<RankResult> {
        let mut ended: Vec<Option<RankResult>> = Vec::with_capacity(pending.len());
        ended.resize_with(pending.len(), || None);
        let mut until = None;
        let mut is_cut_off = false;
        while let Some(first) = ended.iter().position(Option::is_none) {
            let ready = ended.iter_mut().zip(&mut pending).skip(first);
            for (place, (ended, pending)) in ready.enumerate().filter(|(_, (ended, _))| ended.is_none()) {
                *ended = match pending {
                    Ok(invocation) if place == 0 => invocation.wait_timeout(POLL_INTERVAL),
                    Ok(invocation) => invocation.try_take(),
                    Err(error) => Some(Err(error.clone())),
                };
                if ended.is_some() && place == 0 {
                    // The next rank has usually ended, too, so the loop continues with that rank.
                    break;
                }
            }
            let has_failed = ended.iter().flatten().any(Result::is_err);
            if has_failed && until.is_none() {
                until = Some(Instant::now() + GRACE_PERIOD);
                if let Some(table) = &self.table {
                    // The failed rank will not join, so no rank should wait for it.
                    table.rendezvous.close();
                }
            }
            if !is_cut_off && until.is_some_and(|until| Instant::now() >= until) {
                is_cut_off = true;
                // The result does not matter: the invocations resolve in any case.
                let _ = self.invoker.clone().deallocate();
            }
        }
        if until.is_some() {
            self.table = None;
        }
        ended.into_iter().flatten().collect()
    }
}

impl fmt::Debug for Gang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gang")
            .field("code", &self.code)
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}
