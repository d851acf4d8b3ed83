//! Results that stay with the worker that made them: which workers get them, and which peers do not.

use crate::requests::*;
use hotlease_client::{Code, Error, Function, Invoker, LeaseOptions};
use hotlease_tests::process::Process;
use hotlease_tests::wait::until_true;
use hotlease_wire::task::left_results::{
    CHALLENGE_BYTES, CLAIM_BYTES, Challenge, Claim, DELIVERY_BYTES, Exchange, LeftResult, ResultSecret,
};
use hotlease_wire::task::{TaskRequest, reply, request};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NONCE: [u8; 32] = [5; 32];
const LIMIT: Duration = Duration::from_secs(60);

/// A lease of one worker that is reached over a fabric, as on another host; `None` if there is no fabric here.
fn over_a_fabric(scene: &Scene) -> Option<(Invoker, Function)> {
    let options = LeaseOptions {
        python: Some(scene.python.clone()),
        transport: Some("ofi".into()),
        ..scene.platform.lease_options()
    };
    match Invoker::allocate(&Code::python(), options) {
        Ok(invoker) => {
            let function = invoker.function("hotlease.call").expect("the one function");
            Some((invoker, function))
        }
        Err(error @ Error::Refused(_)) => panic!("no lease: {error}"),
        Err(error) => {
            eprintln!("skipped: no fabric: {error}");
            None
        }
    }
}

/// Runs `large`, whose result may stay.
fn leave(function: &Function, kib: i8) -> LeftResult {
    let mut asked = plain(&by_reference("tasks", "large"), true, &tuple(&[int(kib)]));
    asked[1] |= request::STAYS;
    let told = function.call(&asked).expect("it runs");
    LeftResult::decode(&told).unwrap_or_else(|error| panic!("{error}: {:02x?}", &told[..told.len().min(80)]))
}

fn claim(left: &LeftResult) -> (TcpStream, Result<Vec<u8>, ErrorKind>) {
    let mut stream = TcpStream::connect(left.address).expect("its worker listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    let got = claim_over(&mut stream, left);
    (stream, got.map_err(|error| error.kind()))
}

fn claim_over(stream: &mut TcpStream, left: &LeftResult) -> std::io::Result<Vec<u8>> {
    let mut said = [0; CHALLENGE_BYTES];
    stream.read_exact(&mut said)?;
    let Challenge(challenge) = Challenge::decode(&said).expect("a challenge");
    let exchange = Exchange {
        secret: &left.secret,
        ticket: left.ticket,
        challenge,
        nonce: NONCE,
    };
    stream.write_all(&exchange.claim().encode())?;
    let mut delivery = [0; DELIVERY_BYTES];
    stream.read_exact(&mut delivery)?;
    let size = exchange.delivered(&delivery).expect("who delivers has the secret");
    let mut bytes = vec![0; size as usize];
    stream.read_exact(&mut bytes)?;
    let mut code = [0; 32];
    stream.read_exact(&mut code)?;
    let mut content = exchange.content();
    content.update(&bytes);
    assert!(content.matches_code(&code), "the code of what was delivered");
    Ok(bytes)
}

#[test]
fn a_result_stays_only_for_workers_that_have_its_secret() {
    let scene = Scene::new();
    let Some((_invoker, function)) = over_a_fabric(&scene) else {
        return;
    };
    let left = leave(&function, 100);
    assert_eq!(
        left.address.ip().to_string(),
        "127.0.0.1",
        "where its client reaches it"
    );
    let (_, got) = claim(&left);
    let got = got.expect("with the secret");
    assert_eq!(got.len() as u64, left.bytes);
    assert_eq!(got[0], reply::PICKLED);
    assert!(got.ends_with(&[b'x'; 100 << 10]), "the result");
    let others = [
        LeftResult {
            secret: ResultSecret([1; 32]),
            ..left.clone()
        },
        LeftResult {
            ticket: left.ticket + 1,
            ..left.clone()
        },
    ];
    for other in others {
        let (mut stream, got) = claim(&other);
        assert_eq!(got, Err(ErrorKind::UnexpectedEof), "{other:?}");
        let mut more = Vec::new();
        assert_eq!(
            stream.read_to_end(&mut more).unwrap_or(0),
            0,
            "not a byte but the challenge"
        );
    }
    let again = claim(&left).1.expect("it is still there");
    assert_eq!(again, got);
    // The client takes the result, and the worker no longer has it.
    let large = function.clone().output_bytes(left.bytes as usize);
    let taken = large.call(&take(&left.ticket.to_le_bytes()));
    assert_eq!(taken.expect("it is taken"), got);
    assert_eq!(claim(&left).1, Err(ErrorKind::UnexpectedEof));
}

#[test]
fn strangers_get_a_nonce_and_are_gone_after_two_seconds_and_stop_nothing() {
    let scene = Scene::new();
    let Some((_invoker, function)) = over_a_fabric(&scene) else {
        return;
    };
    let left = leave(&function, 100);
    // Workers that wait for a lease do not count: they load the library for fabrics in the meantime.
    let leased = scene.platform.json(&["ps", "--leased"]);
    let pid = leased[0]["pid"].as_i64().expect("a worker");
    let worker = Process::of(pid as i32).expect("it runs");
    let before = worker.descriptors();
    let strangers: Vec<_> = (0..200).filter_map(|_| TcpStream::connect(left.address).ok()).collect();
    assert!(strangers.len() > 64, "more than are served at a time");
    // Tasks run in the meantime.
    let (kind, _) = ask(&function, "pid", NOTHING).expect("it runs");
    assert_eq!(kind, PLAIN);
    let begun = Instant::now();
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(LIMIT)).expect("a limit");
        let mut got = Vec::new();
        // The connection is closed, perhaps with a reset if bytes were on their way.
        let _ = stranger.read_to_end(&mut got);
        assert!(got.len() <= CHALLENGE_BYTES, "{} bytes", got.len());
    }
    assert!(begun.elapsed() < LIMIT, "they were not closed: {:?}", begun.elapsed());
    until_true("the connections are gone", LIMIT, || worker.descriptors() == before);
    assert!(claim(&left).1.is_ok(), "who has the secret is served again");
}

#[test]
fn results_that_no_task_needs_any_more_are_released() {
    let scene = Scene::new();
    let Some((_invoker, function)) = over_a_fabric(&scene) else {
        return;
    };
    let left = [leave(&function, 100), leave(&function, 101)];
    let mut asked = vec![request::RELEASE];
    asked.resize(24, 0);
    left.iter().for_each(|left| asked.extend(left.ticket.to_le_bytes()));
    assert_eq!(function.call(&asked).expect("a reply"), [0; 9], "None");
    for left in left {
        assert_eq!(claim(&left).1, Err(ErrorKind::UnexpectedEof));
    }
    assert_eq!(function.call(&asked).expect("a reply"), [0; 9], "again: nothing");
}

#[test]
fn no_more_than_a_gibibyte_stays_and_the_rest_is_kept_for_the_client() {
    let scene = Scene::new();
    let Some((_invoker, function)) = over_a_fabric(&scene) else {
        return;
    };
    let mut asked = plain(&by_reference("tasks", "very_large"), true, &tuple(&[int(100)]));
    asked[1] |= request::STAYS;
    let kinds: Vec<u8> = (0..11).map(|_| function.call(&asked).expect("it runs")[0]).collect();
    assert_eq!(kinds[..10], [reply::LEFT; 10]);
    assert_eq!(kinds[10], KEPT, "as without the flag");
}

/// Deviation of a fake maker of a result from an honest maker.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Lie {
    /// No deviation.
    Honest,
    Secret,
    /// The fake announces more bytes than the result has.
    Length,
    Content,
    /// The fake ends in the middle of the result.
    Short,
    /// Another program listens there.
    Other,
    Silent,
}

/// Listens as a worker that has this result would; returns the reference to the result.
fn maker(whole: Vec<u8>, lie: Lie) -> (LeftResult, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let left = LeftResult {
        ticket: 7,
        bytes: whole.len() as u64,
        secret: ResultSecret([9; 32]),
        address: listener.local_addr().expect("its address"),
    };
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a worker comes");
        // The test checks how the worker at the other end reacts.
        let _ = deliver(&mut stream, &whole, lie);
    });
    (left, thread)
}

fn deliver(stream: &mut TcpStream, whole: &[u8], lie: Lie) -> std::io::Result<()> {
    let mut rest = Vec::new();
    match lie {
        Lie::Silent => return stream.read_to_end(&mut rest).map(drop),
        Lie::Other => {
            stream.write_all(&[b'S'; CHALLENGE_BYTES])?;
            return stream.read_to_end(&mut rest).map(drop);
        }
        _ => stream.write_all(&Challenge([1; 32]).encode())?,
    }
    let mut claim = [0; CLAIM_BYTES];
    stream.read_exact(&mut claim)?;
    let claim = Claim::decode(&claim);
    let secret = ResultSecret(if lie == Lie::Secret { [8; 32] } else { [9; 32] });
    let exchange = Exchange {
        secret: &secret,
        ticket: claim.ticket,
        challenge: [1; 32],
        nonce: claim.nonce,
    };
    assert_eq!(exchange.accepts(&claim), lie != Lie::Secret);
    let size = if lie == Lie::Length {
        1 << 40
    } else {
        whole.len() as u64
    };
    stream.write_all(&exchange.delivery(size))?;
    let sent = if lie == Lie::Short {
        whole.len() / 2
    } else {
        whole.len()
    };
    stream.write_all(&whole[..sent])?;
    if lie != Lie::Short {
        let mut content = exchange.content();
        content.update(whole);
        content.update(if lie == Lie::Content { b"another byte" } else { b"" });
        stream.write_all(&content.code())?;
    }
    Ok(())
}

/// A call of `summed` with a result of another task.
fn summed(result: &[u8]) -> Vec<u8> {
    let blob = by_reference("tasks", "summed");
    let arguments = [0x0b, 1, 0x0c, 0, 0];
    let head = TaskRequest::head(
        request::PLAIN,
        false,
        &key(&blob),
        blob.len(),
        arguments.len(),
        &[],
        &[result.len()],
    );
    let head = head.expect("within the bounds");
    [&head, &blob[..], &arguments, result].concat()
}

#[test]
fn a_worker_takes_a_result_from_an_honest_maker_only_and_runs_nothing_without_it() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    let mut whole = vec![reply::PICKLED, 0, 1, 0, 0, 0, 0, 0];
    // A pickle of protocol 5 that consists of the buffer.
    let pickle = b"\x80\x05\x97.";
    whole.extend((pickle.len() as u64).to_le_bytes());
    whole.extend((1_u64 << 20).to_le_bytes());
    whole.extend(pickle);
    whole.resize(64, 0);
    whole.resize(64 + (1 << 20), 3);
    // Makes the worker open the descriptors that it opens only once.
    ask(&function, "pid", NOTHING).expect("it runs");
    let worker = scene.platform.workers().swap_remove(0);
    let before = worker.descriptors();
    for lie in [
        Lie::Honest,
        Lie::Secret,
        Lie::Length,
        Lie::Content,
        Lie::Short,
        Lie::Other,
        Lie::Silent,
    ] {
        let (left, thread) = maker(whole.clone(), lie);
        let told = function.call(&summed(&left.encode())).expect("a reply");
        let text = String::from_utf8_lossy(&told[8..]).into_owned();
        match lie {
            Lie::Honest => assert_eq!(told[8..], [&[3][..], &768_i64.to_le_bytes()].concat()),
            _ => assert_eq!(told[0], reply::NOT_HAD, "{lie:?}: {text}"),
        }
        if lie != Lie::Honest {
            assert!(text.contains(&left.address.to_string()), "{lie:?}: {text}");
        }
        if lie == Lie::Length {
            assert!(text.contains("another length"), "{text}");
        }
        thread.join().expect("the maker ends");
    }
    // An address where no worker listens.
    let (left, _) = maker(Vec::new(), Lie::Honest);
    let nowhere = LeftResult { bytes: 1 << 20, ..left };
    let mut told = nowhere.encode();
    // A port that the system never assigns by itself.
    told[72..].copy_from_slice(&1_u16.to_le_bytes());
    let reply_to = function.call(&summed(&told)).expect("a reply");
    assert_eq!(
        reply_to[0],
        reply::NOT_HAD,
        "{}",
        String::from_utf8_lossy(&reply_to[8..])
    );
    // References that make no sense are refused.
    for (at, byte) in [(72, 0), (73, 0), (23, 255), (1, 1), (66, 0)] {
        let mut told = nowhere.encode();
        if at >= 72 {
            told[72..].fill(0);
        }
        told[at] = byte;
        let told = function.call(&summed(&told)).expect("a reply");
        assert!([REFUSED, reply::NOT_HAD].contains(&told[0]), "byte {at}: {told:02x?}");
    }
    assert_eq!(worker.descriptors(), before, "nothing stays open");
}
