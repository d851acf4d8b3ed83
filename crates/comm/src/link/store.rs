//! Members that cannot reach each other talk through a store that all can reach: Redis, S3, or DynamoDB.
//!
//! A message is one object ([`object`]), written when it is sent and read when somebody asks for it; its reader removes it. What a
//! collective publishes for several is removed by who wrote it, once all have done with that collective. What members tell each other
//! besides, and that they are alive, stands on a [`board`] of each.
//!
//! ```text
//!   any thread, under the engine's lock          the courier: tasks of a runtime, which whoever waits drives
//!   Link::store, Link::send  ─── requests ─────► many requests to the store at a time
//!   Link::poll               ◄── events ──────── wakes who sleeps
//! ```
//!
//! Who drives, and who does while nobody waits, is said in [`driver`].

mod backoff;
mod board;
mod boards;
mod courier;
mod driver;
mod dynamodb;
mod object;
mod redis;
mod s3;

pub(crate) use object::{Head, Name};

use super::{Body, Link, Sink, Sleeper};
use crate::error::Error;
use crate::memory::Piece;
use crate::options::{LinkChoice, Options};
use crate::protocol::Parting;
use crate::schedule::Rank;
use crate::slots::Key;
use courier::{Courier, Plan};
use driver::{Driver, Shared};
use hotlease_wire::comm::frame::Frame;
use hotlease_wire::comm::{GroupId, Loss};
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;

/// A message of at most so many bytes is copied, so that its sender goes on at once,
const COPIED_BYTES_MAX: usize = 64 * 1024;
/// unless there are so many bytes under way.
const UNDER_WAY_MAX: usize = 4 << 20;
/// What each message counts for besides its bytes.
const ENTRY_COST: usize = 128;

/// What is to be done in the store.
#[derive(Debug)]
pub(crate) enum Order {
    /// To write an object, which these members will read.
    Put {
        name: Name,
        tag: u32,
        /// How many of the members will.
        readers: u32,
        members: Arc<[Rank]>,
        /// Stays until [`Link::sent`] names the number, or [`Link::cannot_send`] does.
        body: Piece,
        send: Key,
    },
    /// To read an object as soon as it is there, and as much of its body as goes with its head: [`Sink::object`].
    Get { name: Name, get: Key },
    /// To read the rest, from this byte on, into this memory, which is as long as the body: [`Sink::rested`].
    Rest {
        name: Name,
        first: usize,
        into: Piece,
        get: Key,
    },
    /// Nobody waits for that any more.
    Forget { get: Key },
    /// This member has done with a collective.
    Done { context: u64, collective: u32 },
    /// All members, this one too, have left a communicator.
    Over { context: u64 },
}

/// What the courier is told.
enum Request {
    Order(Order),
    /// The same as an order to put, of a copy.
    Copied {
        name: Name,
        tag: u32,
        readers: u32,
        members: Arc<[Rank]>,
        body: Vec<u8>,
    },
    /// A word for the board.
    Word {
        to: Rank,
        frame: Frame,
    },
}

impl Request {
    /// Whether others wait for that.
    fn is_write(&self) -> bool {
        matches!(
            self,
            Self::Order(Order::Put { .. }) | Self::Copied { .. } | Self::Word { .. }
        )
    }
}

/// What the courier tells.
enum Event {
    Sent(Key),
    CannotSend(Key),
    Object {
        get: Key,
        head: Head,
        first: Vec<u8>,
    },
    Rested {
        get: Key,
        is_written: bool,
    },
    Word {
        from: Rank,
        frame: Frame,
    },
    Left {
        from: Rank,
        parting: Parting,
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

/// Why a store did not do something; nothing can be done over it any more.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// What it said, and what to do. No credentials.
    pub(crate) why: String,
}

/// What a store has to be able to do. Its calls are made by one thread at a time, many together.
/// Their futures go from thread to thread.
pub(crate) trait Store: Send + Sync + 'static {
    /// Bytes of a piece of a body that does not go with its head.
    const PIECE_BYTES: usize;
    /// Whether reading a head takes it away, so that nobody has to remove it.
    const HEADS_ARE_TAKEN: bool;
    /// Whether nothing blocks there, so that what is waited for is asked for again and again.
    const IS_POLLED: bool;

    /// How many bytes of a body go with its head.
    fn first_bytes(readers: u32) -> usize;
    /// Writes an object's head, for so many readers.
    fn put_head(
        &self,
        key: &str,
        head: Vec<u8>,
        readers: u32,
    ) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Reads a head, as soon as it is there.
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
    /// Removes what is there of these.
    fn remove(&self, keys: &[String]) -> impl Future<Output = Result<(), Fault>> + Send;
    /// What this member has there for itself.
    fn private(&self) -> Vec<String> {
        Vec::new()
    }
    /// Removes everything that begins so, with a group's key and a slash.
    fn clear(&self, group: &str) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// An error with its causes: what a server said, or the system.
fn said(error: &dyn std::error::Error) -> String {
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

/// See the module.
pub(crate) struct Stored {
    me: Rank,
    shared: Arc<Shared>,
    driver: Arc<Driver>,
    /// A thread is about to sleep, which is to drive: no need to do so before.
    is_dozing: bool,
    courier: Option<JoinHandle<()>>,
    sent: VecDeque<Key>,
    unsendable: VecDeque<Key>,
    lost: VecDeque<(Rank, Loss)>,
    severed: Option<Arc<str>>,
}

impl Stored {
    /// Over the store that was chosen, when all members of the group are there. `is_partial`: who is not there by the deadline has failed.
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
        let plan = Plan {
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
                shared.will_write();
                let cost = body.len() + ENTRY_COST;
                let is_copied = body.len() <= COPIED_BYTES_MAX
                    && shared.under_way.load(Ordering::Acquire) + cost <= UNDER_WAY_MAX;
                let copy = is_copied.then(|| body.read(<[u8]>::to_vec)).flatten();
                match copy {
                    Some(body) => {
                        shared.under_way.fetch_add(cost, Ordering::AcqRel);
                        self.sent.push_back(send);
                        Request::Copied {
                            name,
                            tag,
                            readers,
                            members,
                            body,
                        }
                    }
                    None => Request::Order(Order::Put {
                        name,
                        tag,
                        readers,
                        members,
                        body,
                        send,
                    }),
                }
            }
            other => Request::Order(other),
        };
        self.shared.request(request);
    }
}

/// What opening a store ends with.
type Ready = std::sync::mpsc::Sender<Result<(), Fault>>;

/// The courier's thread.
fn run(choice: LinkChoice, plan: Plan, driver: &Driver, ready: &Ready) {
    match choice {
        LinkChoice::Redis(address) => {
            let opened = redis::Redis::open(&address, &plan);
            carry(opened, plan, driver, ready);
        }
        LinkChoice::S3(address) => {
            let opened = s3::S3::open(address, plan.bound);
            carry(opened, plan, driver, ready);
        }
        LinkChoice::DynamoDb(address) => {
            let opened = dynamodb::DynamoDb::open(address, &plan);
            carry(opened, plan, driver, ready);
        }
        LinkChoice::Direct | LinkChoice::Tcp | LinkChoice::Ofi { .. } | LinkChoice::Auto(_) => {}
    }
}

fn carry<S: Store>(
    opened: impl Future<Output = Result<S, Fault>>,
    plan: Plan,
    driver: &Driver,
    ready: &Ready,
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
        Arc::clone(&courier) as Arc<dyn driver::Takes>,
    );
    let _ = ready.send(Ok(()));
    let until = driver.stand_in();
    runtime.block_on(async {
        driver.begin(&(Arc::clone(&courier) as Arc<dyn driver::Takes>));
        courier.end(until).await;
    });
    driver.close();
}

impl Link for Stored {
    fn send(&mut self, to: Rank, frame: &Frame, _body: Body<'_>) {
        // Boards say that without being told.
        if to == self.me || matches!(frame, Frame::Alive | Frame::Farewell) {
            return;
        }
        self.shared.will_write();
        self.shared.request(Request::Word { to, frame: *frame });
    }

    fn store(&mut self, order: Order) {
        self.put(order);
    }

    fn go(&mut self) {
        self.driver.go();
    }

    fn poll(&mut self, sink: &mut dyn Sink) -> bool {
        let events = self.shared.events();
        let any = !events.is_empty();
        for event in events {
            match event {
                Event::Sent(send) => self.sent.push_back(send),
                Event::CannotSend(send) => self.unsendable.push_back(send),
                Event::Object { get, head, first } => sink.object(get, head, first),
                Event::Rested { get, is_written } => sink.rested(get, is_written),
                Event::Word { from, frame } => {
                    // Words have no bodies, so that there is nothing to answer; and one that must not be said is no reason to end all.
                    let _ = sink.frame(from, frame);
                }
                Event::Left { from, parting } => sink.parted(from, parting),
                Event::Quit {
                    from,
                    context,
                    sent,
                    done,
                } => sink.quit(from, context, sent, done),
                Event::Lost { rank, loss } => self.lost.push_back((rank, loss)),
                Event::Severed(why) => self.severed = Some(why),
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

    fn doze(&mut self) {
        self.is_dozing = true;
    }

    fn awake(&mut self) {
        self.is_dozing = false;
    }

    fn sent(&mut self) -> Option<Key> {
        self.sent.pop_front()
    }

    fn cannot_send(&mut self) -> Option<Key> {
        self.unsendable.pop_front()
    }

    fn lost(&mut self) -> Option<(Rank, Loss)> {
        self.lost.pop_front()
    }

    fn close(&mut self, _rank: Rank) {}

    fn is_sending(&self) -> bool {
        self.shared.is_writing()
    }

    fn pulse(&mut self, _rank: Rank) -> (bool, bool) {
        // The courier looks at the boards.
        (true, true)
    }

    fn severed(&mut self) -> Option<Arc<str>> {
        self.severed.take()
    }

    fn end(&mut self, until: Instant) {
        let Some(courier) = self.courier.take() else {
            return;
        };
        self.driver.end(until);
        // It keeps to the time itself.
        let _ = courier.join();
    }

    fn sleeper(&self) -> Arc<dyn Sleeper> {
        Arc::clone(&self.driver) as Arc<dyn Sleeper>
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.end(Instant::now());
    }
}
