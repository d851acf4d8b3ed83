//! Courier: carries objects to the store and back, many at a time, on the thread that drives ([`crate::driver`]).

use crate::boards::{self, Boards};
use crate::driver::{RequestReceiver, Shared};
use crate::lock::lock;
use crate::object;
use crate::request::{CourierEvent, CourierRequest, ENTRY_COST};
use crate::store::{LinkStore, StoreFault};
use hotlease_comm::Rank;
use hotlease_comm::link::{Key, ObjectHead, ObjectName, Piece, StoreOrder};
use hotlease_wire::comm::frame::MemberFrame;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// Maximum number of pieces of one body that are read or written at a time.
const PIECES_MAX: usize = 8;
/// Shortest time for cleaning at the end.
const CLEANING: Duration = Duration::from_secs(2);
/// Time for which keys are collected before their removal, in stores where each request costs money or time.
const GATHER_TIME: Duration = Duration::from_millis(50);
/// Longest delay of a read from a polled store while this member writes; a write takes about this time. The object to
/// read is often written in answer to this member's write, or at the same time, so an earlier read would not find it.
const READ_DELAY_MAX: Duration = Duration::from_millis(50);

/// Parameters of a courier.
pub(crate) struct CourierPlan {
    /// Prefix of all keys of the group.
    pub(crate) group: String,
    pub(crate) me: Rank,
    pub(crate) size: Rank,
    pub(crate) bound: Duration,
    /// Time by which all members must have written their boards.
    pub(crate) deadline: Instant,
    /// If `true`, members that are missing at the deadline count as failed, and the others go on. If `false`, a missing
    /// member is an error.
    pub(crate) is_partial: bool,
    pub(crate) shared: Arc<Shared>,
    /// Name of the store, without credentials.
    pub(crate) label: String,
}

/// State that all tasks of the courier share.
pub(crate) struct Courier<S> {
    pub(crate) store: S,
    pub(crate) plan: CourierPlan,
    pub(crate) boards: Mutex<Boards>,
    /// Notified when the board has messages that other members wait for.
    pub(crate) news: Notify,
    pub(crate) is_severed: AtomicBool,
    /// Whether the link ends, so that boards are not exchanged any more.
    pub(crate) is_ending: AtomicBool,
    gets: Mutex<HashMap<Key, AbortHandle>>,
    /// Number of objects that are being written.
    writing: AtomicUsize,
    is_written: Notify,
    /// Keys to be removed from the store.
    garbage: Mutex<Vec<String>>,
    has_garbage: Notify,
    /// Notified when removal must begin without delay, because the link ends.
    is_urgent: Notify,
    /// Whether keys are being removed.
    is_removing: AtomicBool,
    /// Tasks that run until the courier ends: one keeps the boards, one removes keys.
    permanent_tasks: Mutex<Option<(JoinHandle<()>, JoinHandle<()>)>>,
}

/// Body of a message that is to be written.
enum PutBody {
    Copied(Vec<u8>),
    Lent(Piece, Key),
}

impl PutBody {
    fn len(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::Lent(piece, _) => piece.len(),
        }
    }

    /// Appends a part of the body to `bytes`, and returns them, or `None` if the memory was taken back.
    fn part(&self, range: std::ops::Range<usize>, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        match self {
            Self::Copied(body) => bytes.extend_from_slice(&body[range]),
            Self::Lent(piece, _) => piece.part(range).read(|body| bytes.extend_from_slice(body))?,
        }
        Some(bytes)
    }
}

impl<S: LinkStore> Courier<S> {
    /// Opens the courier: waits until the store answers and all members have written their boards.
    pub(crate) async fn open(
        opened: impl Future<Output = Result<S, StoreFault>>,
        plan: CourierPlan,
    ) -> Result<Arc<Self>, StoreFault> {
        let in_time = tokio::time::timeout_at(plan.deadline.into(), opened).await;
        let store = in_time.unwrap_or_else(|_| {
            let why = "it does not answer; correct its address, or let this host reach it".into();
            Err(StoreFault { why })
        })?;
        let courier = Arc::new(Self {
            store,
            boards: Mutex::new(Boards::new(&plan)),
            plan,
            news: Notify::new(),
            is_severed: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            gets: Mutex::default(),
            garbage: Mutex::default(),
            has_garbage: Notify::new(),
            is_urgent: Notify::new(),
            writing: AtomicUsize::new(0),
            is_written: Notify::new(),
            is_removing: AtomicBool::new(false),
            permanent_tasks: Mutex::default(),
        });
        boards::gather(&courier).await?;
        let beats = tokio::spawn(boards::keep(Arc::clone(&courier)));
        let remover = tokio::spawn(run_remover(Arc::clone(&courier)));
        *lock(&courier.permanent_tasks) = Some((beats, remover));
        Ok(courier)
    }

    /// Reports, once, that nothing can be done over the store any more.
    pub(crate) fn sever(&self, fault: &StoreFault) {
        if !self.is_severed.swap(true, Ordering::AcqRel) {
            let why = format!("{}: {}", self.plan.label, fault.why);
            self.plan.shared.is_severed.store(true, Ordering::Release);
            self.plan.shared.tell(CourierEvent::Severed(why.into()));
        }
    }

    fn begin_request(self: &Arc<Self>, request: CourierRequest) {
        match request {
            _ if self.is_severed.load(Ordering::Acquire) => {}
            CourierRequest::Copied {
                name,
                tag,
                readers,
                members,
                body,
            } => self.put(name, tag, readers, members, PutBody::Copied(body)),
            CourierRequest::Order(StoreOrder::Put {
                name,
                tag,
                readers,
                members,
                body,
                send,
            }) => self.put(name, tag, readers, members, PutBody::Lent(body, send)),
            CourierRequest::Order(StoreOrder::Get { name, get }) => {
                let task = tokio::spawn(Arc::clone(self).get(name, get));
                lock(&self.gets).insert(get, task.abort_handle());
            }
            CourierRequest::Order(StoreOrder::Rest { name, first, into, get }) => {
                let task = tokio::spawn(Arc::clone(self).rest(name, first, into, get));
                lock(&self.gets).insert(get, task.abort_handle());
            }
            CourierRequest::Order(StoreOrder::Forget { get }) => {
                if let Some(task) = lock(&self.gets).remove(&get) {
                    task.abort();
                }
            }
            CourierRequest::Order(StoreOrder::Done { context, collective }) => {
                lock(&self.boards).note_done(context, collective);
            }
            CourierRequest::Order(StoreOrder::CommunicatorEnded { context }) => {
                let outlived = lock(&self.boards).forget(context);
                self.mark_for_removal(outlived);
            }
            CourierRequest::Frame { to, frame } => {
                let mut boards = lock(&self.boards);
                match frame {
                    MemberFrame::Goodbye => boards.say_goodbye(),
                    MemberFrame::Leave { context } => boards.leave_context(to, context),
                    _ => boards.say(to, &frame),
                }
                self.news.notify_one();
            }
        }
    }

    fn put(self: &Arc<Self>, name: ObjectName, tag: u32, readers: u32, members: Arc<[Rank]>, body: PutBody) {
        let first = S::first_bytes(readers).min(body.len());
        let pieces = object::pieces(body.len() as u64, first, S::PIECE_BYTES).count() as u64;
        let key = object::key(&name, &self.plan.group);
        // An object that is only a head, which its readers remove, need not be recorded for removal.
        let is_left = !S::HEADS_ARE_TAKEN || pieces > 0;
        let mut boards = lock(&self.boards);
        boards.note_write(&name, &key, pieces, is_left, members);
        drop(boards);
        let head = ObjectHead {
            tag,
            length: body.len() as u64,
            readers: readers as u16,
        };
        let courier = Arc::clone(self);
        self.writing.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(async move {
            let shared = &courier.plan.shared;
            let head = object::encode_head(&head, &name).to_vec();
            let written = courier.write(&key, head, first, readers, &body).await;
            if courier.writing.fetch_sub(1, Ordering::AcqRel) == 1 {
                courier.is_written.notify_waiters();
            }
            match written {
                Ok(true) => {
                    shared.note_written(1);
                    match body {
                        PutBody::Copied(bytes) => {
                            let cost = bytes.len() + ENTRY_COST;
                            shared.under_way.fetch_sub(cost, Ordering::AcqRel);
                        }
                        PutBody::Lent(_, send) => shared.tell(CourierEvent::Sent(send)),
                    }
                }
                Ok(false) => {
                    shared.note_written(1);
                    if let PutBody::Lent(_, send) = body {
                        shared.tell(CourierEvent::CannotSend(send));
                    }
                }
                Err(fault) => courier.sever(&fault),
            }
        });
    }

    /// Writes an object; returns `false` if the memory was taken back.
    async fn write(
        self: &Arc<Self>,
        key: &str,
        head: Vec<u8>,
        first: usize,
        readers: u32,
        body: &PutBody,
    ) -> Result<bool, StoreFault> {
        let Some(head) = body.part(0..first, head) else {
            return Ok(false);
        };
        let mut tasks = JoinSet::new();
        for (number, range) in object::pieces(body.len() as u64, first, S::PIECE_BYTES) {
            if tasks.len() >= PIECES_MAX {
                join_next(&mut tasks).await?;
            }
            let Some(piece) = body.part(range, Vec::new()) else {
                return Ok(false);
            };
            let (courier, key) = (Arc::clone(self), object::piece_key(key, number));
            tasks.spawn(async move { courier.store.put(&key, piece).await.map(|()| true) });
        }
        while !tasks.is_empty() {
            join_next(&mut tasks).await?;
        }
        // Readers find an object by its head, so the head is written last.
        self.store.put_head(key, head, readers).await?;
        Ok(true)
    }

    async fn get(self: Arc<Self>, name: ObjectName, get: Key) {
        let key = object::key(&name, &self.plan.group);
        if S::IS_POLLED {
            let _ = tokio::time::timeout(READ_DELAY_MAX, self.all_written()).await;
        }
        let object = match self.store.take_head(&key).await {
            Ok(object) => object,
            Err(fault) => return self.sever(&fault),
        };
        lock(&self.gets).remove(&get);
        let Some(head) = object::decode_head(&name, &object, S::first_bytes) else {
            let why = format!(
                "its object {key:?} of {} bytes was not written by a member of this group; does another program write there?",
                object.len()
            );
            return self.sever(&StoreFault { why });
        };
        let mut first = object;
        first.drain(..object::HEAD_BYTES);
        if first.len() as u64 == head.length {
            self.finish_read(&name, key, 0);
        }
        self.plan.shared.tell(CourierEvent::Object { get, head, first });
    }

    async fn all_written(&self) {
        loop {
            let is_written = self.is_written.notified();
            if self.writing.load(Ordering::Acquire) == 0 {
                return;
            }
            is_written.await;
        }
    }

    async fn rest(self: Arc<Self>, name: ObjectName, first: usize, into: Piece, get: Key) {
        match self.read_rest(&name, first, &into).await {
            Ok(is_written) => {
                lock(&self.gets).remove(&get);
                self.plan.shared.tell(CourierEvent::RestRead { get, is_written });
            }
            Err(fault) => self.sever(&fault),
        }
    }

    /// Reads the rest of an object; returns `false` if the memory was taken back.
    async fn read_rest(self: &Arc<Self>, name: &ObjectName, first: usize, into: &Piece) -> Result<bool, StoreFault> {
        let key = object::key(name, &self.plan.group);
        let (mut tasks, mut is_written, mut count) = (JoinSet::new(), true, 0);
        for (number, range) in object::pieces(into.len() as u64, first, S::PIECE_BYTES) {
            if tasks.len() >= PIECES_MAX {
                is_written &= join_next(&mut tasks).await?;
            }
            let (courier, into) = (Arc::clone(self), into.part(range));
            let key = object::piece_key(&key, number);
            count = number;
            tasks.spawn(async move {
                let piece = courier.store.get(&key).await?;
                match piece.filter(|piece| piece.len() == into.len()) {
                    Some(piece) => Ok(into.write(|into| into.copy_from_slice(&piece)).is_some()),
                    None => {
                        let why = format!(
                            "a part of a message, {key:?}, is gone or cut short; does another program write there?"
                        );
                        Err(StoreFault { why })
                    }
                }
            });
        }
        while !tasks.is_empty() {
            is_written &= join_next(&mut tasks).await?;
        }
        self.finish_read(name, key, count);
        Ok(is_written)
    }

    /// Notes that an object was read completely. An object with one reader is removed by the reader; an object with
    /// several readers is removed by its publisher.
    fn finish_read(&self, name: &ObjectName, key: String, pieces: u64) {
        if !matches!(name, ObjectName::Published { .. }) {
            self.mark_for_removal((1..=pieces).map(|number| object::piece_key(&key, number)));
            if !S::HEADS_ARE_TAKEN {
                self.mark_for_removal([key]);
            }
        }
        lock(&self.boards).note_read(name);
    }

    /// Marks keys for removal from the store.
    pub(crate) fn mark_for_removal(&self, keys: impl IntoIterator<Item = String>) {
        let mut garbage = lock(&self.garbage);
        garbage.extend(keys);
        if !garbage.is_empty() {
            self.has_garbage.notify_one();
        }
    }

    /// Ends the courier. Removes everything from the store that no member will read any more.
    pub(crate) async fn end(self: &Arc<Self>, until: Instant) {
        let until = until.max(Instant::now() + CLEANING);
        let Some((beats, remover)) = lock(&self.permanent_tasks).take() else {
            return;
        };
        let gets = std::mem::take(&mut *lock(&self.gets));
        gets.into_values().for_each(|task| task.abort());
        let cleaned = async {
            self.is_ending.store(true, Ordering::Release);
            self.is_urgent.notify_one();
            self.news.notify_one();
            // Waits for a write of the board that may be under way: the write could create the board again after all
            // members have left.
            let _ = beats.await;
            if self.is_severed.load(Ordering::Acquire) {
                return;
            }
            // If all other members left earlier, this member has not announced yet that it leaves.
            lock(&self.boards).leave();
            let left_over = lock(&self.boards).take_left_over();
            self.mark_for_removal(left_over);
            self.mark_for_removal(self.store.private());
            while self.is_removing.load(Ordering::Acquire) || !lock(&self.garbage).is_empty() {
                if self.is_severed.load(Ordering::Acquire) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if let Err(fault) = boards::remove_boards(self).await {
                tracing::warn!(store = self.plan.label, why = fault.why, "objects may be left there");
            }
        };
        if tokio::time::timeout_at(until.into(), cleaned).await.is_err() {
            tracing::warn!(
                store = self.plan.label,
                "objects are left there: there was no time to remove them"
            );
        }
        remover.abort();
    }
}

impl<S: LinkStore> RequestReceiver for Courier<S> {
    fn begin(self: Arc<Self>, requests: VecDeque<CourierRequest>) {
        // Reads begin first: a store can then send writes together with them.
        let is_get = |request: &CourierRequest| matches!(request, CourierRequest::Order(StoreOrder::Get { .. }));
        let (gets, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(is_get);
        for request in gets.into_iter().chain(others) {
            self.begin_request(request);
        }
    }
}

async fn join_next(tasks: &mut JoinSet<Result<bool, StoreFault>>) -> Result<bool, StoreFault> {
    match tasks.join_next().await {
        None => Ok(true),
        Some(Ok(result)) => result,
        Some(Err(error)) => Err(StoreFault {
            why: format!("a task of its link ended: {error}"),
        }),
    }
}

async fn run_remover<S: LinkStore>(courier: Arc<Courier<S>>) {
    loop {
        if lock(&courier.garbage).is_empty() {
            courier.is_removing.store(false, Ordering::Release);
            courier.has_garbage.notified().await;
            continue;
        }
        courier.is_removing.store(true, Ordering::Release);
        if S::IS_POLLED && !courier.is_ending.load(Ordering::Acquire) {
            let _ = tokio::time::timeout(GATHER_TIME, courier.is_urgent.notified()).await;
        }
        let keys = std::mem::take(&mut *lock(&courier.garbage));
        if let Err(fault) = courier.store.remove(&keys).await {
            return courier.sever(&fault);
        }
    }
}
