//! Link through a store that all members can reach: Redis, S3, or DynamoDB. For members that cannot reach each other.
//!
//! A message is one object ([`object`]), written when it is sent and read when a member asks for it; its reader removes
//! it. What a collective publishes for several members is removed by its writer, once all have done with that
//! collective. Each member has a [`board`], which shows that it is alive and what else it tells the others.
//!
//! ```text
//!   any thread, under the engine's lock          the courier: tasks of a runtime, driven by the waiting thread
//!   Link::store, Link::send  ─── requests ─────► many requests to the store at a time
//!   Link::poll               ◄── events ──────── wakes a sleeping thread
//! ```
//!
//! Which thread drives the runtime, also while no thread waits: [`driver`].

mod backoff;
mod board;
mod boards;
mod courier;
mod driver;
mod dynamodb;
mod object;
mod redis;
mod s3;

pub(crate) use object::{ObjectHead, ObjectName};

use super::{Body, Link, Sink, Sleeper};
use crate::arena::Key;
use crate::error::Error;
use crate::memory::Piece;
use crate::options::{LinkChoice, Options};
use crate::protocol::FinalCounts;
use crate::schedule::Rank;
use courier::{Courier, CourierPlan};
use driver::{Driver, Shared};
use hotlease_wire::comm::frame::MemberFrame;
use hotlease_wire::comm::{GroupId, Loss};
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;

/// Longest message that is copied, so that its sender goes on at once, bytes.
const COPIED_BYTES_MAX: usize = 64 * 1024;
/// Limit of copied bytes under way; over it, messages are not copied.
const UNDER_WAY_MAX: usize = 4 << 20;
/// Cost of each message against that limit, besides its bytes.
const ENTRY_COST: usize = 128;

/// Order to a link through a store.
#[derive(Debug)]
pub(crate) enum Order {
    /// Writes an object, which these members will read.
    Put {
        name: ObjectName,
        tag: u32,
        /// Number of members that will read it.
        readers: u32,
        members: Arc<[Rank]>,
        /// Stays until [`Link::sent`] or [`Link::take_unsendable`] returns the number.
        body: Piece,
        send: Key,
    },
    /// Reads an object as soon as it is there, with the part of its body that travels with its head: [`Sink::object`].
    Get { name: ObjectName, get: Key },
    /// Reads the rest, from this byte on, into this memory, which is as long as the body: [`Sink::rest_read`].
    Rest {
        name: ObjectName,
        first: usize,
        into: Piece,
        get: Key,
    },
    /// Ends the wait for an object.
    Forget { get: Key },
    /// Notes that this member has done with a collective.
    Done { context: u64, collective: u32 },
    /// Notes that all members, this one too, have left a communicator.
    Over { context: u64 },
}

/// Request of the link to the courier.
enum CourierRequest {
    Order(Order),
    /// Order to put an object with a copy of its body.
    Copied {
        name: ObjectName,
        tag: u32,
        readers: u32,
        members: Arc<[Rank]>,
        body: Vec<u8>,
    },
    /// Word for the board.
    Word {
        to: Rank,
        frame: MemberFrame,
    },
}

impl CourierRequest {
    /// Whether other members wait for its effect.
    fn is_write(&self) -> bool {
        matches!(
            self,
            Self::Order(Order::Put { .. }) | Self::Copied { .. } | Self::Word { .. }
        )
    }
}

/// Report of the courier to the link.
enum CourierEvent {
    Sent(Key),
    CannotSend(Key),
    Object {
        get: Key,
        head: ObjectHead,
        first: Vec<u8>,
    },
    Rested {
        get: Key,
        is_written: bool,
    },
    Word {
        from: Rank,
        frame: MemberFrame,
    },
    Left {
        from: Rank,
        parting: FinalCounts,
    },
    Quit {
        from: Rank,
        context: u64,
        sent: u64,
        done: u32,
    },
    Lost {
        rank: Rank,
        loss: Loss,
    },
    Severed(Arc<str>),
}

/// Failure of a store; nothing can be done over it any more.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// What the store said, and what to do about it. No credentials.
    pub(crate) why: String,
}

/// Operations of a store. One thread at a time polls their futures, many together; the futures move from thread to
/// thread.
pub(crate) trait Store: Send + Sync + 'static {
    /// Bytes of a piece of a body, besides the part that travels with its head.
    const PIECE_BYTES: usize;
    /// Whether reading a head removes it, so that no member has to.
    const HEADS_ARE_TAKEN: bool;
    /// Whether the store has no blocking read, so that an awaited head is asked for again and again.
    const IS_POLLED: bool;

    /// Number of bytes of a body that travel with its head.
    fn first_bytes(readers: u32) -> usize;
    /// Writes an object's head, for this many readers.
    fn put_head(&self, key: &str, head: Vec<u8>, readers: u32) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Reads a head as soon as it is there.
    fn take_head(&self, key: &str) -> impl Future<Output = Result<Vec<u8>, Fault>> + Send;
    /// Writes a piece.
    fn put(&self, key: &str, bytes: Vec<u8>) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Reads a piece, if it is there.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>, Fault>> + Send;
    /// Reads all boards, and then writes the one at `own`.
    fn exchange(
        &self,
        keys: &[String],
        own: usize,
        board: Vec<u8>,
    ) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>, Fault>> + Send;
    /// Removes those of these keys that are there.
    fn remove(&self, keys: &[String]) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Keys that the store holds for this member's own use.
    fn private(&self) -> Vec<String> {
        Vec::new()
    }
    /// Removes every key with this prefix, which is a group's key and a slash.
    fn clear(&self, group: &str) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// Text of an error with its causes: what a server or the system said.
fn error_text(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        cause = error.source();
    }
    said
}

/// Link through a store.
pub(crate) struct StoreLink {
    me: Rank,
    shared: Arc<Shared>,
    driver: Arc<Driver>,
    /// A thread is about to sleep, and drives the runtime then: driving it before is not needed.
    is_dozing: bool,
    courier: Option<JoinHandle<()>>,
    sent: VecDeque<Key>,
    unsendable: VecDeque<Key>,
    lost: VecDeque<(Rank, Loss)>,
    severed: Option<Arc<str>>,
}

impl StoreLink {
    /// Opens the chosen store and waits for all members of the group. With `is_partial`, a member that is not there by
    /// the deadline has failed.
    pub(crate) fn join(
        options: &Options,
        (group, me, size): (GroupId, Rank, Rank),
        (began, deadline): (Instant, Instant),
        is_partial: bool,
    ) -> Result<Self, Error> {
        let driver = Arc::new(Driver::default());
        let shared = Arc::clone(&driver.shared);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let choice = options.link.clone();
        let name = choice.to_string();
        let plan = CourierPlan {
            group: object::group_key(choice.prefix(), group),
            me,
            size,
            bound: options.failure_bound,
            deadline,
            is_partial,
            shared: Arc::clone(&shared),
            label: name.clone(),
        };
        let thread = std::thread::Builder::new().name("comm-courier".into());
        let courier = thread
            .spawn({
                let driver = Arc::clone(&driver);
                move || run(choice, plan, &driver, &ready)
            })
            .map_err(Error::local("start a thread"))?;
        let no_store = |why: String| Error::NoStore {
            name: options.name.clone(),
            store: name.clone(),
            waited: began.elapsed(),
            why,
        };
        match is_ready.recv() {
            Ok(Ok(())) => Ok(Self {
                me,
                shared,
                driver,
                is_dozing: false,
                courier: Some(courier),
                sent: VecDeque::new(),
                unsendable: VecDeque::new(),
                lost: VecDeque::new(),
                severed: None,
            }),
            Ok(Err(fault)) => Err(no_store(fault.why)),
            Err(_) => Err(no_store("its thread ended".into())),
        }
    }

    fn put(&mut self, order: Order) {
        let shared = &self.shared;
        let request = match order {
            Order::Put {
                name,
                tag,
                readers,
                members,
                body,
                send,
            } => {
                shared.note_unwritten();
                let cost = body.len() + ENTRY_COST;
                let is_copied =
                    body.len() <= COPIED_BYTES_MAX && shared.under_way.load(Ordering::Acquire) + cost <= UNDER_WAY_MAX;
                let copy = is_copied.then(|| body.read(<[u8]>::to_vec)).flatten();
                match copy {
                    Some(body) => {
                        shared.under_way.fetch_add(cost, Ordering::AcqRel);
                        self.sent.push_back(send);
                        CourierRequest::Copied {
                            name,
                            tag,
                            readers,
                            members,
                            body,
                        }
                    }
                    None => CourierRequest::Order(Order::Put {
                        name,
                        tag,
                        readers,
                        members,
                        body,
                        send,
                    }),
                }
            }
            other => CourierRequest::Order(other),
        };
        self.shared.request(request);
    }
}

/// Sender of the result of opening a store.
type OpenResultSender = std::sync::mpsc::Sender<Result<(), Fault>>;

/// Runs the courier's thread.
fn run(choice: LinkChoice, plan: CourierPlan, driver: &Driver, ready: &OpenResultSender) {
    match choice {
        LinkChoice::Redis(address) => {
            let opened = redis::Redis::open(&address, &plan);
            run_courier(opened, plan, driver, ready);
        }
        LinkChoice::S3(address) => {
            let opened = s3::S3::open(address, plan.bound);
            run_courier(opened, plan, driver, ready);
        }
        LinkChoice::DynamoDb(address) => {
            let opened = dynamodb::DynamoDb::open(address, &plan);
            run_courier(opened, plan, driver, ready);
        }
        LinkChoice::Direct | LinkChoice::Tcp | LinkChoice::Ofi { .. } | LinkChoice::Auto(_) => {}
    }
}

fn run_courier<S: Store>(
    opened: impl Future<Output = Result<S, Fault>>,
    plan: CourierPlan,
    driver: &Driver,
    ready: &OpenResultSender,
) {
    let open = || -> Result<_, Fault> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Fault {
            why: format!("no runtime for it: {error}"),
        })?;
        let courier = runtime.block_on(Courier::open(opened, plan))?;
        Ok((Arc::new(runtime), courier))
    };
    let (runtime, courier) = match open() {
        Ok(open) => open,
        Err(fault) => {
            let _ = ready.send(Err(fault));
            return;
        }
    };
    driver.open(
        Arc::clone(&runtime),
        Arc::clone(&courier) as Arc<dyn driver::RequestReceiver>,
    );
    let _ = ready.send(Ok(()));
    let until = driver.run_courier_thread();
    runtime.block_on(async {
        driver.begin(&(Arc::clone(&courier) as Arc<dyn driver::RequestReceiver>));
        courier.end(until).await;
    });
    driver.close();
}

impl Link for StoreLink {
    fn send(&mut self, to: Rank, frame: &MemberFrame, _body: Body<'_>) {
        // The boards show that anyway.
        if to == self.me || matches!(frame, MemberFrame::Alive | MemberFrame::Farewell) {
            return;
        }
        self.shared.note_unwritten();
        self.shared.request(CourierRequest::Word { to, frame: *frame });
    }

    fn store(&mut self, order: Order) {
        self.put(order);
    }

    fn begin_requests(&mut self) {
        self.driver.begin_urgent();
    }

    fn poll(&mut self, sink: &mut dyn Sink) -> bool {
        let events = self.shared.take_events();
        let any = !events.is_empty();
        for event in events {
            match event {
                CourierEvent::Sent(send) => self.sent.push_back(send),
                CourierEvent::CannotSend(send) => self.unsendable.push_back(send),
                CourierEvent::Object { get, head, first } => sink.object(get, head, first),
                CourierEvent::Rested { get, is_written } => sink.rest_read(get, is_written),
                CourierEvent::Word { from, frame } => {
                    // Words have no bodies, so the sink has nowhere to write; and a word that is not allowed is no
                    // reason to end everything.
                    let _ = sink.frame(from, frame);
                }
                CourierEvent::Left { from, parting } => sink.member_finished(from, parting),
                CourierEvent::Quit {
                    from,
                    context,
                    sent,
                    done,
                } => sink.member_left(from, context, sent, done),
                CourierEvent::Lost { rank, loss } => self.lost.push_back((rank, loss)),
                CourierEvent::Severed(why) => self.severed = Some(why),
            }
        }
        any
    }

    fn poll_all(&mut self, sink: &mut dyn Sink) -> bool {
        if !self.is_dozing {
            self.driver.advance();
        }
        self.poll(sink)
    }

    fn prepare_sleep(&mut self) {
        self.is_dozing = true;
    }

    fn end_sleep(&mut self) {
        self.is_dozing = false;
    }

    fn take_sent(&mut self) -> Option<Key> {
        self.sent.pop_front()
    }

    fn take_unsendable(&mut self) -> Option<Key> {
        self.unsendable.pop_front()
    }

    fn take_lost(&mut self) -> Option<(Rank, Loss)> {
        self.lost.pop_front()
    }

    fn close(&mut self, _rank: Rank) {}

    fn is_sending(&self) -> bool {
        self.shared.check_writing()
    }

    fn take_activity(&mut self, _rank: Rank) -> (bool, bool) {
        // The courier watches for signs of life, on the boards.
        (true, true)
    }

    fn take_severance(&mut self) -> Option<Arc<str>> {
        self.severed.take()
    }

    fn end(&mut self, until: Instant) {
        let Some(courier) = self.courier.take() else {
            return;
        };
        self.driver.end(until);
        // The courier keeps to the deadline itself.
        let _ = courier.join();
    }

    fn sleeper(&self) -> Arc<dyn Sleeper> {
        Arc::clone(&self.driver) as Arc<dyn Sleeper>
    }
}

impl Drop for StoreLink {
    fn drop(&mut self) {
        self.end(Instant::now());
    }
}
