//! Link through a store: passes orders to the courier, and events of the courier to the protocol.

use crate::courier::{Courier, CourierPlan};
use crate::driver::{Driver, RequestReceiver, Shared};
use crate::object;
use crate::request::{CourierEvent, CourierRequest, ENTRY_COST};
use crate::store::{LinkStore, StoreFault};
use hotlease_comm::link::{Body, Key, Link, Sink, Sleeper, StoreJoin, StoreOrder};
use hotlease_comm::{Error, Rank, StoreAddress};
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::MemberFrame;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;

/// Longest message that is copied so that its sender continues at once, bytes.
const COPIED_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of copied bytes under way; above it, messages are not copied.
const UNDER_WAY_MAX: usize = 4 << 20;

/// Link through a store.
struct StoreLink {
    me: Rank,
    shared: Arc<Shared>,
    driver: Arc<Driver>,
    /// Whether a thread is about to sleep. Its sleep drives the runtime, so the link does not drive it before.
    is_dozing: bool,
    courier: Option<JoinHandle<()>>,
    sent: VecDeque<Key>,
    unsendable: VecDeque<Key>,
    lost: VecDeque<(Rank, Loss)>,
    severed: Option<Arc<str>>,
}

/// Opens a store, on the courier's thread, and waits for all members of the group. `open` begins to open the store at
/// an address. With `is_partial`, a member that is missing at the deadline counts as failed.
pub(crate) fn join<S, O>(
    join: &StoreJoin<'_>,
    open: impl FnOnce(StoreAddress, &CourierPlan) -> O + Send + 'static,
) -> Result<Box<dyn Link>, Error>
where
    S: LinkStore,
    O: Future<Output = Result<S, StoreFault>>,
{
    let options = join.options;
    let driver = Arc::new(Driver::default());
    let shared = Arc::clone(&driver.shared);
    let (ready, is_ready) = std::sync::mpsc::channel();
    let name = options.link.to_string();
    let no_store = |why: String| Error::NoStore {
        name: options.name.clone(),
        store: name.clone(),
        waited: join.began.elapsed(),
        why,
    };
    let address = options.link.store().cloned();
    let address = address.ok_or_else(|| no_store("it is no store".into()))?;
    let plan = CourierPlan {
        group: object::group_key(address.prefix(), join.group),
        me: join.me,
        size: join.size,
        bound: options.failure_bound,
        deadline: join.deadline,
        is_partial: join.is_partial,
        shared: Arc::clone(&shared),
        label: name.clone(),
    };
    let thread = std::thread::Builder::new().name("comm-courier".into());
    let courier = thread
        .spawn({
            let driver = Arc::clone(&driver);
            move || run_courier(open(address, &plan), plan, &driver, &ready)
        })
        .map_err(|error| Error::LocalFailure {
            what: "start a thread",
            why: error.to_string(),
        })?;
    match is_ready.recv() {
        Ok(Ok(())) => Ok(Box::new(StoreLink {
            me: join.me,
            shared,
            driver,
            is_dozing: false,
            courier: Some(courier),
            sent: VecDeque::new(),
            unsendable: VecDeque::new(),
            lost: VecDeque::new(),
            severed: None,
        })),
        Ok(Err(fault)) => Err(no_store(fault.why)),
        Err(_) => Err(no_store("its thread ended".into())),
    }
}

impl StoreLink {
    fn put(&mut self, order: StoreOrder) {
        let shared = &self.shared;
        let request = match order {
            StoreOrder::Put {
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
                    None => CourierRequest::Order(StoreOrder::Put {
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
type OpenResultSender = std::sync::mpsc::Sender<Result<(), StoreFault>>;

/// Runs the courier's thread.
fn run_courier<S: LinkStore>(
    opened: impl Future<Output = Result<S, StoreFault>>,
    plan: CourierPlan,
    driver: &Driver,
    ready: &OpenResultSender,
) {
    let open = || -> Result<_, StoreFault> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| StoreFault {
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
    driver.open(Arc::clone(&runtime), Arc::clone(&courier) as Arc<dyn RequestReceiver>);
    let _ = ready.send(Ok(()));
    let until = driver.run_courier_thread();
    runtime.block_on(async {
        driver.begin(&(Arc::clone(&courier) as Arc<dyn RequestReceiver>));
        courier.end(until).await;
    });
    driver.close();
}

impl Link for StoreLink {
    fn send(&mut self, to: Rank, frame: &MemberFrame, _body: Body<'_>) {
        // No message is needed: the boards show signs of life and farewells.
        if to == self.me || matches!(frame, MemberFrame::Alive | MemberFrame::Farewell) {
            return;
        }
        self.shared.note_unwritten();
        self.shared.request(CourierRequest::Frame { to, frame: *frame });
    }

    fn store(&mut self, order: StoreOrder) {
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
                CourierEvent::RestRead { get, is_written } => sink.rest_read(get, is_written),
                CourierEvent::Frame { from, frame } => {
                    // The result is ignored: the frame has no body, so no memory for it is needed, and a frame that is
                    // not allowed does not end the link.
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
        // The courier's thread itself ends by the deadline.
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
