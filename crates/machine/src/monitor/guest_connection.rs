//! Orders and calls for the worker inside, and the machine's messages.

use crate::messages;
use crate::monitor::RunningMachine;
use crate::monitor::files::FileServer;
use hotlease_wire::frame::InvocationStatus;
use hotlease_wire::limits::CODE_BYTES_MAX;
use hotlease_wire::machine::{Assignment, CARRIED_BYTES_MAX, FILE_BYTES_MAX, FromGuest, GuestCrash, GuestEnd, ToGuest};
use hotlease_worker::{RemoteCall, RemoteCallResult, RemoteWorker, Worker, WorkerEnd};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, recv, send, shutdown, socketpair};
use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Part of a machine's memory that its kernel and the guest need, MiB.
const GUEST_MIB: u64 = 96;

/// First messages of a machine.
pub enum StartMessage {
    /// The machine waits for the program to run.
    Booted,
    /// The worker accepts orders.
    Ready { version: u32, imports: Duration },
    /// The worker will never be ready.
    Ended { why: String },
}

/// Last message of a machine.
#[derive(Debug, PartialEq, Eq)]
enum LastMessage {
    /// End of its worker.
    Ended(GuestEnd),
    /// The machine is unusable.
    Lost(String),
}

/// Connection to the worker inside.
pub struct GuestConnection {
    port: Mutex<UnixStream>,
    /// Receivers of the results of each slot's call.
    waiting: Mutex<BTreeMap<u16, SyncSender<Result<RemoteCallResult, InvocationStatus>>>>,
    obeyed: Mutex<Receiver<Result<(), String>>>,
    /// Socket to the file server, for questions about files and their answers: one in each message.
    files: OwnedFd,
    /// First question of the machine's kernel about files.
    greeting: Mutex<Vec<u8>>,
    qemu: Mutex<Option<Child>>,
    /// Whether the machine is ended on purpose: then its end is not reported.
    rests: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    memory_mib: u32,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GuestConnection {
    /// Connects to a running machine, with these files. The connection is never freed: it serves as long as the process
    /// lives, which ends with the worker inside. `greeting`: the first question of the machine's kernel about files, if
    /// another process has answered it.
    pub fn over(
        running: RunningMachine,
        memory_mib: u32,
        heard: Sender<StartMessage>,
        files: &FileServer,
        greeting: Option<&[u8]>,
    ) -> io::Result<&'static Self> {
        let from = running.port.try_clone()?;
        let kind = SockType::SeqPacket;
        let (ours, theirs) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?;
        let (far, obeyed) = Self::new(running.port, ours, Some(running.qemu), memory_mib);
        let far: &'static Self = Box::leak(Box::new(far));
        let files = files.clone();
        far.thread("files", move || {
            let served = files.serve(theirs);
            if !far.rests.load(Ordering::Relaxed)
                && let Err(error) = served
            {
                eprintln!("hotlease-machine: the files of the virtual machine: {error}");
            }
        })?;
        if let Some(greeting) = greeting {
            send(far.files.as_raw_fd(), greeting, MsgFlags::MSG_NOSIGNAL)?;
            // The machine has already received this answer.
            recv(far.files.as_raw_fd(), &mut [0; 4096], MsgFlags::empty())?;
        }
        far.thread("answers", move || far.forward_answers())?;
        far.thread("port", move || far.listen(from, &heard, &obeyed))?;
        Ok(far)
    }

    /// Makes a connection without threads; also returns the sender for answers to orders.
    fn new(
        port: UnixStream,
        files: OwnedFd,
        qemu: Option<Child>,
        memory_mib: u32,
    ) -> (Self, SyncSender<Result<(), String>>) {
        let (obeyed, answers) = mpsc::sync_channel(1);
        let far = Self {
            port: Mutex::new(port),
            waiting: Mutex::default(),
            obeyed: Mutex::new(answers),
            files,
            greeting: Mutex::default(),
            qemu: Mutex::new(qemu),
            rests: AtomicBool::new(false),
            threads: Mutex::default(),
            memory_mib,
        };
        (far, obeyed)
    }

    fn thread(&self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(format!("hotlease-{name}"));
        locked(&self.threads).push(thread.spawn(body)?);
        Ok(())
    }

    /// Makes the machine silent, once all its questions are answered: anything that is under way when a machine is
    /// saved is lost to all machines that are resumed from it. No other order may be under way.
    pub fn pause(&self) -> Result<(), String> {
        self.order(&ToGuest::Pause, &[])
    }

    /// Ends the machine and all threads that serve it; returns the first question of its kernel about files.
    pub fn stop(&self) -> Vec<u8> {
        // Threads read this only after they see the effects of this call: a closed port or socket.
        self.rests.store(true, Ordering::Relaxed);
        self.end_qemu();
        let _ = shutdown(self.files.as_raw_fd(), Shutdown::Both);
        for thread in std::mem::take(&mut *locked(&self.threads)) {
            // A thread that has panicked is gone too.
            let _ = thread.join();
        }
        std::mem::take(&mut *locked(&self.greeting))
    }

    fn end_qemu(&self) {
        if let Some(qemu) = locked(&self.qemu).as_mut() {
            let _ = qemu.kill();
            let _ = qemu.wait();
        }
    }

    /// Loop of the thread that passes on answers about files.
    fn forward_answers(&self) {
        let mut answer = vec![0; FILE_BYTES_MAX as usize];
        while let Ok(bytes @ 1..) = recv(self.files.as_raw_fd(), &mut answer, MsgFlags::empty()) {
            // If this fails, the machine has ended: the listening thread notices the end. Until then this thread
            // continues to take answers, so that the listening thread never waits for it.
            let _ = self.tell(&ToGuest::File, &answer[..bytes]);
        }
    }

    /// Passes on a question about files.
    fn forward_question(&self, question: Vec<u8>) -> Result<(), String> {
        let sent = send(self.files.as_raw_fd(), &question, MsgFlags::MSG_NOSIGNAL);
        let mut greeting = locked(&self.greeting);
        if greeting.is_empty() {
            *greeting = question;
        }
        // Fails if the message is longer than any question can be, or if the file server is gone.
        sent.map(drop)
            .map_err(|errno| format!("it asks for files, which fails: {errno}"))
    }

    /// Sends a message to the guest.
    pub fn tell(&self, message: &ToGuest, brought: &[u8]) -> io::Result<()> {
        messages::send(&mut *locked(&self.port), message, brought)
    }

    /// Sends an order and waits for the answer.
    fn order(&self, message: &ToGuest, brought: &[u8]) -> Result<(), String> {
        let gone = || "the virtual machine is gone".to_owned();
        // Locked from here on, so that the answer belongs to this order.
        let obeyed = locked(&self.obeyed);
        self.tell(message, brought).map_err(|_| gone())?;
        obeyed.recv().unwrap_or_else(|_| Err(gone()))
    }

    /// Loop of the thread that receives from the guest.
    fn listen(&self, from: UnixStream, heard: &Sender<StartMessage>, obeyed: &SyncSender<Result<(), String>>) {
        let mut is_ready = false;
        let mut from = BufReader::with_capacity(64 << 10, from);
        let last = self.handle_messages(&mut from, &mut is_ready, heard, obeyed);
        if self.rests.load(Ordering::Relaxed) {
            return;
        }
        let why = match last {
            // Ends as the worker would have ended without a machine. The worker's output has the reason.
            LastMessage::Ended(ended) if is_ready || ended.failure.is_empty() => end_as(&ended),
            LastMessage::Ended(ended) => ended.failure,
            LastMessage::Lost(why) => why,
        };
        if is_ready {
            // The machine's end is the worker's end: calls under way may have run.
            eprintln!("hotlease-machine: {why}{}", super::kernel_messages());
            let out_of_memory = super::has_run_out_of_memory();
            let status = if out_of_memory { -(Signal::SIGKILL as i32) } else { 1 };
            end_as(&GuestEnd {
                failure: String::new(),
                status,
                out_of_memory,
                crash: None,
            })
        }
        // Ends QEMU first, so that its last output is complete.
        self.end_qemu();
        let _ = heard.send(StartMessage::Ended { why });
    }

    /// Handles messages until the guest's last message. A guest may send anything.
    fn handle_messages(
        &self,
        from: &mut impl Read,
        is_ready: &mut bool,
        heard: &Sender<StartMessage>,
        obeyed: &SyncSender<Result<(), String>>,
    ) -> LastMessage {
        let lost = |why: &str| LastMessage::Lost(why.to_owned());
        loop {
            let (message, brought) = match messages::receive::<FromGuest>(from) {
                Ok(Some(received)) => received,
                Ok(None) => return lost("QEMU has ended"),
                Err(error) => return LastMessage::Lost(format!("its message cannot be decoded: {error}")),
            };
            match message {
                FromGuest::Ready { .. } if *is_ready => return lost("it says twice that it is ready"),
                FromGuest::Ready { version, imports_us } => {
                    *is_ready = true;
                    let imports = Duration::from_micros(imports_us);
                    // If the starting thread has given up, it does not get this message.
                    let _ = heard.send(StartMessage::Ready { version, imports });
                }
                FromGuest::Booted if *is_ready => return lost("it says that it boots, and it has"),
                FromGuest::Booted => drop(heard.send(StartMessage::Booted)),
                FromGuest::Obeyed(answer) => {
                    // The queue has room for the answer to the one order that is under way.
                    if obeyed.try_send(answer).is_err() {
                        return lost("it answers an order that it was not given");
                    }
                }
                FromGuest::Returned {
                    slot,
                    status,
                    code,
                    bytes,
                } => {
                    let Some(waiting) = locked(&self.waiting).remove(&slot) else {
                        return LastMessage::Lost(format!("it answers slot {slot}, which did not ask"));
                    };
                    // The queue has room for one result, and one result is sent.
                    let _ = waiting.try_send(call_result((status, code, bytes), brought));
                }
                FromGuest::File => {
                    if let Err(why) = self.forward_question(brought) {
                        return LastMessage::Lost(why);
                    }
                }
                FromGuest::Printed => print(&brought),
                FromGuest::Ended(ended) => return LastMessage::Ended(ended),
            }
        }
    }
}

/// Result of a call, from the guest's report, which may contain anything.
fn call_result((status, code, bytes): (u16, i32, u64), output: Vec<u8>) -> Result<RemoteCallResult, InvocationStatus> {
    match InvocationStatus::from_number(status) {
        Some(status) if status.has_run() => Ok(RemoteCallResult {
            status,
            code,
            bytes,
            output,
        }),
        Some(status) => Err(status),
        None => Err(InvocationStatus::BadHeader),
    }
}

/// Prints the worker's output here: the agent stores the end of it.
fn print(text: &[u8]) {
    let mut out = io::stdout().lock();
    // Fails if the agent has closed the pipe: then no output is needed.
    let _ = out.write_all(text).and_then(|()| out.flush());
}

fn end_as(ended: &GuestEnd) -> ! {
    let end = end_of(ended);
    if ended.out_of_memory {
        eprintln!("hotlease-machine: the virtual machine has run out of memory (--sandbox-machine-memory)");
    }
    Worker::end_as(end)
}

/// End of the worker, as it is recorded. If the machine's kernel killed the worker for lack of memory, the record says
/// so by a signal that no process can record of itself (SIGKILL).
fn end_of(ended: &GuestEnd) -> WorkerEnd {
    let want = (ended.out_of_memory && ended.status == -(Signal::SIGKILL as i32)).then_some(GuestCrash {
        slot: None,
        signal: Signal::SIGKILL as i32,
        overrun_capacity: None,
    });
    // A signal that only stops a process is no end.
    let stops = [Signal::SIGSTOP, Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];
    let is_end = stops.iter().all(|signal| ended.status != -(*signal as i32));
    WorkerEnd {
        status: if is_end { ended.status } else { 1 },
        crash: want.or(ended.crash),
    }
}

impl RemoteWorker for GuestConnection {
    fn assign(&self, assignment: Assignment) -> Result<(), String> {
        let has = u64::from(self.memory_mib).saturating_sub(GUEST_MIB) << 20;
        if assignment.memory_bytes > has {
            return Err(format!(
                "the lease has {} MiB of memory, and virtual machines of this site have {} for their workers (hotlease agent \
                 --sandbox-machine-memory)",
                assignment.memory_bytes >> 20,
                has >> 20
            ));
        }
        self.order(&ToGuest::Assign(assignment), &[])
    }

    fn load(&self, code: &[u8], base: u16) -> Result<(), String> {
        if code.len() as u64 > CODE_BYTES_MAX {
            return Err(format!("a library of {} bytes", code.len()));
        }
        self.order(&ToGuest::Load { base }, code)
    }

    fn call(&self, call: RemoteCall<'_>) -> Result<RemoteCallResult, InvocationStatus> {
        if call.input.len() as u64 > CARRIED_BYTES_MAX {
            return Err(InvocationStatus::BadSpan);
        }
        let (sender, answer) = mpsc::sync_channel(1);
        locked(&self.waiting).insert(call.slot, sender);
        let message = ToGuest::Call {
            slot: call.slot,
            function: call.function,
            timeout_us: call.timeout_us,
            capacity: call.capacity.min(CARRIED_BYTES_MAX),
        };
        let sent = self.tell(&message, call.input);
        match sent.map(|()| answer.recv()) {
            Ok(Ok(returned)) => returned,
            // The thread that listens ends the process; the agent then reports whether the function ran.
            _ => loop {
                std::thread::park();
            },
        }
    }
}

#[cfg(test)]
mod tests;
