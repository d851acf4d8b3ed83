//! Slots that the holder of a lease lends to its peers.

use hotlease_client::{Code, EndReason, Error, Invitation, Invoker, LeaseOptions, Offer, Rejection};
use hotlease_tests::connection::SHAPE;
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_tests::session::{NoAnswer, RawSession};
use hotlease_tests::wait::until_true;
use hotlease_wire::grpc::{AcquireRequest, Grant};
use hotlease_wire::ids::{SlotIndex, WorkerIndex};
use hotlease_wire::session::{SessionReply, SessionRequest, SlotPlace};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A peer in a process of its own, which goes on calling. Killed when dropped.
struct Peer {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a peer; `action` is `join` with an invitation, or `find`.
    fn start(platform: &Platform, action: &str, invitation: Option<&Invitation>) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hotlease-test-client"))
            .arg(platform.directory())
            .arg(library("behaved"))
            .args(["5000", action])
            .env("HOTLEASE_JOB", "job 7")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the peer starts");
        if let Some(invitation) = invitation {
            let mut input = child.stdin.take().expect("a pipe");
            writeln!(input, "{invitation}").expect("it reads");
        }
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }

    /// Reads lines until one begins with `beginning`; returns it.
    fn says(&mut self, beginning: &str) -> String {
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "it ended without saying {beginning:?}");
            if line.starts_with(beginning) {
                return line;
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A lease of one worker with as many slots as there are cores, at most two.
fn holder(platform: &Platform) -> Invoker {
    let options = LeaseOptions {
        slots: platform.cores().len().min(2) as u16,
        job: "job 7".into(),
        ..platform.lease_options()
    };
    platform.invoker_with("behaved", options)
}

fn code() -> Code {
    Code::open(library("behaved")).expect("a library")
}

fn join(platform: &Platform, offer: &Offer) -> Result<Invoker, Error> {
    Invoker::join(&code(), offer.invitation(), platform.lease_options())
}

#[test]
fn peer_calls_on_lent_slots_and_its_death_harms_no_other_client() {
    let platform = Platform::start_alone();
    let holder = holder(&platform);
    let own = holder.function("process").unwrap();
    let pid = u32::from_le_bytes(own.call(b"").unwrap().try_into().unwrap());
    let offer = holder.offer(&[0], None).expect("it is the holder");
    let mut peer = Peer::start(&platform, "join", Some(offer.invitation()));
    assert_eq!(peer.line(), "ready");
    assert_eq!(peer.says("called"), format!("called {pid}"), "the same worker");
    drop(peer);
    for _ in 0..20 {
        assert_eq!(own.call(b"").expect("the holder goes on"), pid.to_le_bytes());
    }
    // Its place is free for the next peer.
    let mut next = Peer::start(&platform, "join", Some(offer.invitation()));
    assert_eq!(next.says("called"), format!("called {pid}"));
    assert!(holder.usage().expect("known").invocations > 0);
}

#[test]
fn peer_is_told_that_slots_are_taken_back_and_the_holder_goes_on() {
    let platform = Platform::start_alone();
    let holder = holder(&platform);
    let offer = holder.offer(&[0], None).expect("it is the holder");
    let invitation = offer.invitation().clone();
    let peer = join(&platform, &offer).expect("it is invited");
    let echo = peer.function("echo").unwrap();
    assert_eq!(echo.call(b"lent").unwrap(), b"lent");
    let mut other = Peer::start(&platform, "join", Some(&invitation));
    other.says("called");
    offer.revoke().expect("the agent does it");
    until_true("the peer is told", LIMIT, || {
        matches!(
            echo.call(b"lent"),
            Err(Error::LeaseEnded {
                reason: EndReason::TakenBack,
                ..
            })
        )
    });
    let told = other.says("failed");
    assert!(told.contains("taken back"), "{told}");
    let again = Invoker::join(&code(), &invitation, platform.lease_options());
    assert!(
        matches!(again, Err(Error::Refused(Rejection::LeaseEnded(EndReason::TakenBack)))),
        "{again:?}"
    );
    assert_eq!(holder.function("echo").unwrap().call(b"own").unwrap(), b"own");
}

#[test]
fn an_offer_ends_with_its_time_and_with_its_lease() {
    let platform = Platform::start_alone();
    let holder = holder(&platform);
    // Long enough to join within it.
    let short = holder.offer(&[0], Some(Duration::from_secs(3))).unwrap();
    let long = holder.offer(&[0], None).unwrap();
    let (first, second) = (join(&platform, &short).unwrap(), join(&platform, &long).unwrap());
    let ends_with = |peer: &Invoker, expected: EndReason| {
        let echo = peer.function("echo").unwrap();
        until_true("the peer is told", LIMIT, || match echo.call(b"") {
            Err(Error::LeaseEnded { reason, .. }) => {
                assert_eq!(reason, expected);
                true
            }
            _ => false,
        });
    };
    ends_with(&first, EndReason::NoLongerLent);
    assert_eq!(second.function("echo").unwrap().call(b"on").unwrap(), b"on");
    let used = holder.deallocate().expect("it went on until now");
    assert!(used.invocations >= 1, "the holder pays for its peers: {used:?}");
    ends_with(&second, EndReason::Released);
}

#[test]
fn peer_leaves_without_ending_anything() {
    let platform = Platform::start_alone();
    let holder = holder(&platform);
    let offer = holder.offer(&[0], None).unwrap();
    let peer = join(&platform, &offer).unwrap();
    assert_eq!(peer.lease(), holder.lease());
    let used = peer.clone().deallocate().expect("it leaves");
    assert_eq!(used.invocations, 0, "what it used is the holder's");
    drop(peer);
    assert_eq!(holder.function("echo").unwrap().call(b"on").unwrap(), b"on");
    let bad = holder.offer(&[99], None);
    assert!(matches!(bad, Err(Error::NoSuchSlot { .. })), "{bad:?}");
    assert!(matches!(holder.offer(&[], None), Err(Error::Options { .. })));
    let again = join(&platform, &offer).unwrap();
    let lends = again.offer(&[0], None);
    assert!(
        matches!(lends, Err(Error::Refused(Rejection::NotPermitted { .. }))),
        "{lends:?}"
    );
}

#[test]
fn peers_token_opens_the_lent_slots_and_nothing_else() {
    let platform = Platform::start_alone();
    let grant = platform.manager().lease(1, Duration::from_secs(60)).unwrap();
    let mut own = RawSession::attached(&grant);
    own.load_file(&library("echo"));
    let delegate = |session: &mut RawSession, worker, slot| {
        let place = SlotPlace {
            worker: WorkerIndex(worker),
            slot: SlotIndex(slot),
        };
        let request = SessionRequest::Delegate {
            places: vec![place],
            within_ms: 0,
        };
        session.ask(&request, &[])
    };
    for (worker, slot) in [(1, 0), (0, 1), (u16::MAX, 0), (0, u16::MAX)] {
        let refused = delegate(&mut own, worker, slot);
        assert!(
            matches!(&refused, Ok(SessionReply::Refused(_))),
            "worker {worker}, slot {slot}: {refused:?}"
        );
    }
    let Ok(SessionReply::Delegated { delegation, token }) = delegate(&mut own, 0, 0) else {
        panic!("not lent");
    };
    assert_ne!(token, grant.token);
    let mut peer = RawSession::connect(std::path::Path::new(&grant.session_socket)).unwrap();
    match peer.attach(&token) {
        Ok(SessionReply::Attached { lent: Some(lent), .. }) => assert_eq!(lent.len(), 1),
        other => panic!("not attached: {other:?}"),
    }
    for forbidden in [
        SessionRequest::Renew,
        SessionRequest::Release,
        SessionRequest::Revoke { delegation },
        SessionRequest::Delegate {
            places: Vec::new(),
            within_ms: 1,
        },
    ] {
        let refused = peer.ask(&forbidden, &[]);
        assert!(
            matches!(&refused, Ok(SessionReply::Refused(Rejection::NotPermitted { .. }))),
            "{forbidden:?}: {refused:?}"
        );
    }
    // The peer may look up what the holder has loaded; it cannot load anything itself.
    peer.load_file(&library("echo"));
    let bytes = std::fs::read(library("behaved")).unwrap();
    let loaded = peer.load(&bytes);
    assert!(matches!(loaded, Err(Rejection::NotPermitted { .. })), "{loaded:?}");
    let (connection, _) = peer.worker(0).expect("it is lent");
    assert!(matches!(peer.worker(1), Err(Rejection::NotPermitted { .. })));
    drop(connection.channel(0));
    // After the revocation the peer's connection is closed, and so is its session.
    let revoked = own.ask(&SessionRequest::Revoke { delegation }, &[]);
    assert!(matches!(revoked, Ok(SessionReply::Revoked { .. })), "{revoked:?}");
    assert!(connection.is_closed(LIMIT), "the worker serves it no more");
    let (event, _) = peer.event(LIMIT);
    assert!(
        matches!(
            event,
            SessionReply::LeaseEnded {
                reason: EndReason::TakenBack,
                ..
            }
        ),
        "{event:?}"
    );
    assert!(matches!(peer.next(LIMIT), Err(NoAnswer::Closed)));
    let (connection, _) = own.worker(0).expect("the holder's own");
    drop(connection.channel(0));
    own.release();
}

#[test]
fn slots_that_were_not_lent_are_refused_by_the_worker_itself() {
    let platform = Platform::start_alone();
    if platform.cores().len() < 2 {
        eprintln!("skipped: needs two cores");
        return;
    }
    let two_slots = AcquireRequest {
        workers: 1,
        slots_per_worker: 2,
        ttl_ms: 60_000,
        ..AcquireRequest::default()
    };
    let grant = platform.manager().acquire(two_slots).expect("two cores");
    let mut own = RawSession::attached(&grant);
    let delegate = SessionRequest::Delegate {
        places: vec![SlotPlace {
            worker: WorkerIndex(0),
            slot: SlotIndex(1),
        }],
        within_ms: 0,
    };
    let Ok(SessionReply::Delegated { token, .. }) = own.ask(&delegate, &[]) else {
        panic!("not lent");
    };
    let mut peer = RawSession::attached(&Grant { token, ..grant });
    let (connection, _) = peer.worker(0).expect("one slot of it is lent");
    match connection.open(0, SHAPE, SHAPE) {
        Some(Err(Rejection::NotPermitted { .. })) => {}
        Some(Err(other)) => panic!("slot 0 was not lent: {other}"),
        Some(Ok(_)) => panic!("slot 0 was not lent, and is open"),
        None => panic!("the worker closed the connection"),
    }
    drop(connection.channel(1));
    own.release();
}

#[test]
fn ranks_of_a_job_find_what_is_offered_to_them_through_the_manager() {
    let platform = Platform::start_alone();
    let holder = holder(&platform);
    let offer = holder.offer(&[0], None).unwrap();
    let of_job = |job: &str| LeaseOptions {
        job: job.into(),
        ..platform.lease_options()
    };
    assert_eq!(
        Invitation::find(&of_job("job 7")).unwrap(),
        [],
        "not before it is published"
    );
    offer.publish().expect("the manager knows the lease");
    let found = Invitation::find(&of_job("job 7")).unwrap();
    assert_eq!(found, [offer.invitation().clone()]);
    assert_eq!(Invitation::find(&of_job("job 8")).unwrap(), [], "another job");
    assert!(Invitation::find(&of_job("")).is_err(), "of no job");
    let mut peer = Peer::start(&platform, "find", None);
    assert_eq!(peer.line(), "found 1");
    peer.says("called");
    offer.revoke().unwrap();
    assert_eq!(Invitation::find(&of_job("job 7")).unwrap(), [], "taken back");
    let second = holder.offer(&[0], None).unwrap();
    second.publish().unwrap();
    assert_eq!(Invitation::find(&of_job("job 7")).unwrap().len(), 1);
    holder.deallocate().unwrap();
    until_true("it is forgotten with its lease", LIMIT, || {
        Invitation::find(&of_job("job 7")).unwrap().is_empty()
    });
}
